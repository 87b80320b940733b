"""Schedules as they are declared: what `@app.cron` says is checked here, and becomes a value."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Raw, json

from ..clock import Duration, seconds
from ..codec import to_json
from ..errors import ConfigError, InvalidInput
from ..model.schedule import SLOT, Missed, Schedule
from .registry import FunctionSpec


def plan(
    spec: FunctionSpec,
    expression: str,
    *,
    name: str,
    tz: str,
    given: Mapping[str, Any] | None,
    missed: str,
    catch_up: Duration,
    jitter: Duration,
    limit: int,
) -> Schedule:
    """A schedule of a function. Its input is checked as if it fired now."""
    what = f"schedule {name!r}"
    _check_name(name, what)
    fields = _mapping(given, what)
    schedule = Schedule(
        name=name,
        function=spec.name,
        expression=expression,
        tz=tz,
        missed=_rule(missed, what),
        catch_up=seconds(catch_up, what=f"{what}: catch_up"),
        jitter=seconds(jitter, what=f"{what}: jitter"),
        priority=spec.priority,
        input=_encoded(fields, what, limit),
        gives_slot=SLOT not in fields and _takes_slot(spec),
        origin=f"{spec.handler.__module__}:{getattr(spec.handler, '__qualname__', spec.name)}",
    )
    _check_input(schedule, spec)
    return schedule


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise ConfigError(f"{what}: its name must have 1 to 200 printable characters")


def _mapping(given: Mapping[str, Any] | None, what: str) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{what}: input={given!r} must be a mapping, like {{'tier': 'gold'}}")
    return given or {}


def _rule(missed: str, what: str) -> Missed:
    try:
        return Missed(missed)
    except ValueError:
        raise ConfigError(f"{what}: missed={missed!r} must be one of {', '.join(Missed)}") from None


def _encoded(fields: Mapping[str, Any], what: str, limit: int) -> Raw:
    try:
        return Raw(to_json(dict(fields), what="input", limit=limit))
    except InvalidInput as error:
        raise ConfigError(f"{what}: {error}") from error


def _takes_slot(spec: FunctionSpec) -> bool:
    """Whether the handler has a parameter for the slot, or its one parameter a field."""
    return SLOT in inspect.signature(spec.handler).parameters or SLOT in _properties(spec.input.schema)


def _properties(schema: Raw | None) -> Mapping[str, Any]:
    """The names that a JSON Schema knows, at its root or where that refers to."""
    root = json.decode(schema) if schema is not None else {}
    referred = root.get("$defs", {}).get(str(root.get("$ref", "")).rpartition("/")[2], root)
    return referred.get("properties", {})  # type: ignore[no-any-return]


def _check_input(schedule: Schedule, spec: FunctionSpec) -> None:
    slot = schedule.cron.after(datetime(2000, 1, 1, tzinfo=UTC))
    try:
        spec.input.check(bytes(schedule.input_at(slot)))
    except InvalidInput as error:
        raise ConfigError(
            f"schedule {schedule.name!r}: {error}; give it with input=, or let the handler have a default for it"
        ) from error
