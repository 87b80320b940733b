"""The door: where input and options are checked, and become changes. Nothing behind it sees bad input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeGuard

from msgspec import Raw

from ..clock import Duration, seconds, utc
from ..codec import encode_input, to_json
from ..config import queue_name
from ..errors import ConfigError, InvalidInput, InvalidOption, UnknownFunction
from ..ids import new_id
from ..model.change import RunInserted, Terms
from ..model.run import Claimed
from ..store.ports import Views
from .registry import FunctionSpec, Registry
from .tracing import carried

PRIORITIES = range(-600, 601)
LONGEST_KEY = 500
METADATA_LIMIT = 16 * 1024

current_run: ContextVar[Claimed | None] = ContextVar("ostinato_current_run", default=None)
"""The run in whose handler we are."""


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    """What can be said about a run besides its input."""

    delay: Duration | None = None
    run_at: datetime | None = None
    priority: int | None = None
    key: str | None = None
    unique: Duration = "active"
    queue: str | None = None
    timeout: Duration | None = None
    metadata: Mapping[str, Any] | None = None
    force: bool = False
    conn: object | None = None

    def changed(self, **options: Any) -> EnqueueOptions:
        """These options with some replaced; unknown ones are refused."""
        if unknown := set(options) - set(self.__slots__):
            raise InvalidOption(f"unknown option {min(unknown)!r}; options are {', '.join(sorted(self.__slots__))}")
        return replace(self, **options)


NO_OPTIONS = EnqueueOptions()
_DECLARED = Terms(declared=True)


class Door:
    def __init__(self, registry: Registry, *, input_limit: int) -> None:
        self.registry = registry
        self.input_limit = input_limit

    def one(
        self, name: str, given: tuple[Any, ...], fields: Mapping[str, Any], options: EnqueueOptions, *, invoked_by: str
    ) -> RunInserted:
        """The change that enqueues one run."""
        spec = self.registry.get(name)
        encoded = self._encoded(spec, name, given, fields)
        return RunInserted(new_id(), name, Raw(encoded), **checked_options(options, spec, invoked_by))

    def many(self, name: str, inputs: Iterable[Any], options: EnqueueOptions, *, invoked_by: str) -> list[RunInserted]:
        """The changes that enqueue many runs; the first bad input refuses them all."""
        spec = self.registry.get(name)
        encoded = [self._nth(spec, name, place, value) for place, value in enumerate(inputs)]
        common = checked_options(options, spec, invoked_by)
        ids = new_id.many(len(encoded))
        return [RunInserted(run_id, name, Raw(value), **common) for run_id, value in zip(ids, encoded, strict=True)]

    async def unknown(self, name: str, views: Views) -> UnknownFunction:
        """The refusal of a name that the database does not know, with the one that may be meant: a function of this
        app, or one that a worker elsewhere has declared."""
        return UnknownFunction.named(name, {*await views.function_names(), *self.registry.functions})

    def _nth(self, spec: FunctionSpec | None, name: str, place: int, value: Any) -> bytes:
        try:
            return self._encoded(spec, name, (value,), {})
        except InvalidInput as error:
            raise InvalidInput(f"[{place}]: {error}", path=f"[{place}]{error.path[1:]}") from error

    def _encoded(
        self, spec: FunctionSpec | None, name: str, given: tuple[Any, ...], fields: Mapping[str, Any]
    ) -> bytes:
        if spec is not None:
            return encode_input(spec.input, given, fields, name=name, limit=self.input_limit)
        value = given[0] if given else fields
        if not isinstance(value, Mapping):
            raise InvalidInput(f"input of {name!r} must be an object, like {{'id': 1}}, and is {type(value).__name__}")
        return to_json(value, what=f"input of {name!r}", limit=self.input_limit)


def invoked_by(default: str = "api") -> str:
    """How what is enqueued now came to be: by the run in whose handler we are, or as the caller says."""
    run = current_run.get()
    return default if run is None else f"run:{run.id}"


def checked_options(options: EnqueueOptions, spec: FunctionSpec | None, invoked: str) -> dict[str, Any]:
    """Options as fields of RunInserted."""
    try:
        fields = {
            "queue": _queue(options, spec),
            "priority": _priority(options, spec),
            "invoked_by": invoked,
            **_when(options),
            **_key(options),
        }
        if options.timeout is not None:
            fields["timeout"] = _timeout(options.timeout)
        if (terms := _terms(options, spec)) is not None:
            fields["terms"] = terms
    except ConfigError as error:
        raise InvalidOption(str(error)) from error
    if options.metadata is not None:
        fields["metadata"] = _metadata(options.metadata)
    if (trace := carried()) is not None:
        fields["trace"] = trace
    return fields


def _queue(options: EnqueueOptions, spec: FunctionSpec | None) -> str | None:
    if options.queue is not None:
        return queue_name(options.queue)
    return spec.queue if spec else None


def _terms(options: EnqueueOptions, spec: FunctionSpec | None) -> Terms | None:
    """Without a queue the database looks them up by itself."""
    if spec is not None:
        return spec.terms
    return None if options.queue is None else _DECLARED


def _priority(options: EnqueueOptions, spec: FunctionSpec | None) -> int | None:
    """Without the function's code the database looks it up."""
    if options.priority is None:
        return spec.priority if spec else None
    priority = options.priority
    if type(priority) is not int or priority not in PRIORITIES:
        raise InvalidOption(f"priority={priority!r} must be a whole number of seconds from -600 to 600")
    return priority


def _when(options: EnqueueOptions) -> dict[str, Any]:
    if options.delay is not None and options.run_at is not None:
        raise InvalidOption("give delay= or run_at=, not both")
    if options.delay is not None:
        return {"delay": seconds(options.delay, what="delay")}
    if options.run_at is not None:
        return {"run_at": utc(options.run_at).isoformat()}
    return {}


def _key(options: EnqueueOptions) -> dict[str, Any]:
    if options.force not in (True, False):
        raise InvalidOption(f"force={options.force!r} must be True or False")
    if options.key is None:
        if options.unique != "active":
            raise InvalidOption(f"unique={options.unique!r} needs key=")
        return {}
    if not is_storable(options.key) or not 0 < len(options.key) <= LONGEST_KEY:
        raise InvalidOption(f"key={options.key!r} must be text of 1 to {LONGEST_KEY} characters without NUL")
    fields: dict[str, Any] = {"key": options.key, "force": True} if options.force else {"key": options.key}
    match options.unique:
        case "active" | "failed":
            return {**fields, "unique": options.unique}
        case "forever":
            return {**fields, "unique": "until"}
        case period:
            return {**fields, "unique": "until", "unique_for": _period(period)}


def is_storable(text: object) -> TypeGuard[str]:
    """Whether it is text that both databases keep."""
    try:
        return isinstance(text, str) and "\x00" not in text and (text.isascii() or text.encode() is not None)
    except UnicodeEncodeError:
        return False


def _period(period: Duration) -> float:
    try:
        return seconds(period, what="unique")
    except ConfigError as error:
        raise InvalidOption(
            f"unique={period!r} must be 'active', 'failed', 'forever' or a duration like '1d'"
        ) from error


def _timeout(timeout: Duration) -> float:
    if not (amount := seconds(timeout, what="timeout")):
        raise InvalidOption(f"timeout={timeout!r} must be longer than zero")
    return amount


def _metadata(metadata: Mapping[str, Any]) -> Raw:
    if not isinstance(metadata, Mapping):
        raise InvalidOption(f"metadata={metadata!r} must be a mapping")
    return Raw(to_json(dict(metadata), what="metadata", limit=METADATA_LIMIT))


def ids_of(changes: Sequence[RunInserted], existing: Mapping[str, str]) -> list[tuple[str, bool]]:
    """For each change, the run that stands for it and whether it is new."""
    return [(existing.get(change.id, change.id), change.id not in existing) for change in changes]
