"""Subscriptions as they are declared: what `app.subscribe` says is checked here, and becomes a value."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Raw, json, structs

from ...codec import to_json
from ...errors import ConfigError, InvalidInput
from ...model import glob as globs
from ...model.event import NOT_CAUGHT_UP, Place, Subscription
from ...model.filter import compile_filter
from ...model.mapper import compile_mapper
from ...model.schedule import micros
from ...store.ports import Store
from ..registry import FunctionSpec, Registry, StartAt, SubscriptionSpec
from .consumers import check_start

LONGEST_NAME = 500
MAPPER_LIMIT = 64 * 1024

CODE = "code"
RUNTIME = "runtime"


def subscription(
    glob: str,
    function: str,
    schema: Raw | None,
    *,
    filter: str | None = None,  # noqa: A002 - what it is called everywhere
    map: Mapping[str, Any] | None = None,  # noqa: A002
    name: str | None = None,
    ordered: bool = False,
    enabled: bool = True,
    start_at: StartAt | str = "now",
    origin: str = RUNTIME,
) -> SubscriptionSpec:
    """A subscription of a function, whose input has the JSON Schema, as far as that is known."""
    named = name if name is not None else f"{function}:{glob}"
    what = f"subscription {named!r}"
    try:
        checked = Subscription(
            name=_checked_name(named),
            glob=globs.checked(glob),
            function=function,
            filter=_checked_filter(filter),
            mapper=_checked_mapper(map),
            ordered=_truth(ordered, "ordered"),
            enabled=_truth(enabled, "enabled"),
            origin=origin,
        )
        if schema is not None and map is not None:
            check_fields(map, schema, function)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    return SubscriptionSpec(checked, check_start(start_at, what))


def origin_of(spec: FunctionSpec | None, function: str, module: str) -> str:
    """The place in the code that declares a subscription: its handler, or the module that names a function of
    others."""
    if spec is None:
        return f"{CODE} {module}:{function}"
    handler = inspect.unwrap(spec.handler)
    return f"{CODE} {handler.__module__}:{getattr(handler, '__qualname__', spec.name)}"


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ConfigError(f"its name must have 1 to {LONGEST_NAME} printable characters")
    return name


def _truth(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{what}={value!r} must be True or False")
    return value


def _checked_filter(text: str | None) -> str | None:
    if text is not None:
        compile_filter(text)
    return text


def _checked_mapper(recipe: Mapping[str, Any] | None) -> Raw | None:
    if recipe is None:
        return None
    if not isinstance(recipe, Mapping):
        raise ConfigError(f"map={recipe!r} must be a mapping, like {{'sku': '$.entity_id'}}")
    compile_mapper(dict(recipe))
    try:
        return Raw(to_json(dict(recipe), what="map", limit=MAPPER_LIMIT))
    except InvalidInput as error:
        raise ConfigError(str(error)) from error


# --- the function's input -------------------------------------------------------------------------------------------


def check_fields(recipe: Mapping[str, Any], schema: Raw, function: str) -> None:
    """Refuses a mapper that gives a function what it does not take, or not what it needs. Whether the values are
    right, only an event can tell."""
    root = _object(json.decode(schema))
    known = root.get("properties", {})
    missing = sorted(set(root.get("required", ())) - set(recipe))
    unknown = sorted(set(recipe) - set(known)) if _is_closed(root) else []
    if missing:
        raise ConfigError(
            f"map does not give {missing[0]!r}, which {function!r} needs; add it, like "
            f"{{{missing[0]!r}: '$.payload.{missing[0]}'}}, or let the handler have a default for it"
        )
    if unknown:
        takes = ", ".join(sorted(known)) or "nothing"
        raise ConfigError(f"map gives {unknown[0]!r}, which {function!r} does not take; it takes {takes}")


def _object(root: dict[str, Any]) -> dict[str, Any]:
    """What a schema says of an object, at its root or where that refers to."""
    referred: dict[str, Any] = root.get("$defs", {}).get(str(root.get("$ref", "")).rpartition("/")[2], root)
    return referred


def _is_closed(root: dict[str, Any]) -> bool:
    """Whether what is not named is refused, or dropped without a word. A handler with `**fields` takes it."""
    more = root.get("additionalProperties")
    if more is None and str(root.get("title", "")).startswith("input of "):
        return False
    return more is False or (more is None and "properties" in root)


# --- declaring ------------------------------------------------------------------------------------------------------


async def declare_subscriptions(store: Store, registry: Registry) -> None:
    """Writes down what the app declares. A mapper is checked again: its function may have been declared after it."""
    specs = registry.subscriptions.values()
    for spec in specs:
        _check_again(spec.subscription, registry)
    modules = sorted({*_modules(registry), *(_module(spec.subscription.origin) for spec in specs)})
    if modules:
        place = await store.place()
        await store.declare_subscriptions([placed(spec, place) for spec in specs], modules)


def _check_again(given: Subscription, registry: Registry) -> None:
    function = registry.get(given.function)
    if function is None or function.input.schema is None or given.mapper is None:
        return
    try:
        check_fields(json.decode(given.mapper), function.input.schema, given.function)
    except ConfigError as error:
        raise ConfigError(f"subscription {given.name!r}: {error}") from error


def placed(spec: SubscriptionSpec, place: Place) -> Subscription:
    """The subscription with where it begins. What is in the ledger already it still has to catch up on."""
    match spec.start_at:
        case "now":
            return structs.replace(spec.subscription, since_sequence=place.sequence_no)
        case datetime():
            return structs.replace(spec.subscription, since_sequence=NOT_CAUGHT_UP, since_at=micros(spec.start_at))
        case _:
            return structs.replace(spec.subscription, since_sequence=NOT_CAUGHT_UP)


def _modules(registry: Registry) -> Iterable[str]:
    return {_module(origin_of(spec, spec.name, "")) for spec in registry}


def _module(origin: str) -> str:
    return origin.removeprefix(f"{CODE} ").partition(":")[0]
