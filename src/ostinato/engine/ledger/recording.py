"""The door for events: what is recorded is checked here, and becomes changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from msgspec import Raw

from ...clock import utc
from ...codec import to_json
from ...errors import ConfigError, InvalidInput, InvalidOption
from ...ids import new_id
from ...model.change import EventRecorded
from ...model.event import event_of
from ..door import LONGEST_KEY, Door, current_run, is_storable

LONGEST_TYPE = 200
LONGEST_ENTITY_TYPE = 100
LONGEST_SOURCE = 200

EMPTY = Raw(b"{}")
"""The payload of an event that has none."""


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What can be said about an event besides its type and payload."""

    entity: tuple[str, str] | None = None
    idempotency_key: str | None = None
    caused_by: str | None = None
    source: str | None = None
    occurred_at: datetime | None = None
    ordered: bool = False

    def changed(self, options: Mapping[str, Any]) -> RecordOptions:
        """These options with some replaced; unknown ones are refused."""
        if unknown := set(options) - set(self.__slots__):
            known = ", ".join(sorted((*self.__slots__, "payload")))
            raise InvalidOption(f"unknown option {min(unknown)!r}; what can be said about an event is {known}")
        return replace(self, **options)


NO_OPTIONS = RecordOptions()


def common(options: Mapping[str, Any]) -> RecordOptions:
    """The options of many events."""
    if options.get("idempotency_key") is not None:
        raise InvalidOption("idempotency_key= is one event's; give it with each, beside its payload")
    return NO_OPTIONS.changed(options)


def event_type(given: object) -> str:
    """The type of an event, or an error that says what is wrong with it."""
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST_TYPE or not given.isprintable():
        raise InvalidOption(f"event type {given!r} must be text of 1 to {LONGEST_TYPE} printable characters")
    if "*" in given or " " in given:
        raise InvalidOption(f"event type {given!r} must be without * and spaces; write it like price.changed")
    return given


def one(door: Door, kind: str, payload: Any, options: RecordOptions) -> EventRecorded:
    """The change that records one event."""
    encoded = _encoder(door, event_type(kind))(payload)
    return EventRecorded(new_id(), kind, Raw(encoded), **_fields(options))


def many(door: Door, kind: str, entries: Iterable[Mapping[str, Any]], common: RecordOptions) -> list[EventRecorded]:
    """The changes that record many events; the first bad one refuses them all."""
    encode, shared = _encoder(door, event_type(kind)), _fields(common)
    given = list(entries)
    changes: list[EventRecorded] = []
    try:
        for event_id, entry in zip(new_id.many(len(given)), given, strict=True):
            payload = encode(_entry(entry).get("payload", EMPTY))
            changes.append(EventRecorded(event_id, kind, Raw(payload), **_own(entry, common, shared)))
        return changes
    except InvalidInput as error:
        place = f"[{len(changes)}]"
        raise InvalidInput(f"{place}: {error}", path=f"{place}{error.path[1:]}") from error
    except InvalidOption as error:
        raise InvalidOption(f"[{len(changes)}]: {error}") from error


def _entry(entry: Any) -> Mapping[str, Any]:
    if type(entry) is dict or isinstance(entry, Mapping):
        return entry
    raise InvalidInput(f"an event of many must be like {{'payload': …}}, and is {type(entry).__name__}")


def _own(entry: Mapping[str, Any], common: RecordOptions, shared: dict[str, Any]) -> dict[str, Any]:
    """The fields of one of many, which has what is common to all unless it says otherwise. There may be many, so only
    what it says is looked at."""
    fields = shared.copy()
    for name, value in entry.items():
        if name == "payload":
            continue
        if name == "entity" and value is not None:
            fields["entity_type"], fields["entity_id"] = pair(value)
        elif name in _CHECKS and value is not None:
            fields[name] = _CHECKS[name](value)
        else:  # an order, which needs an entity; or nothing, or something unknown
            return _fields(common.changed({name: value for name, value in entry.items() if name != "payload"}))
    return fields


def _encoder(door: Door, kind: str) -> Callable[[Any], bytes]:
    """Encodes payloads of a type, and refuses those that it must not have."""
    what, limit, known = f"payload of {kind!r}", door.input_limit, door.registry.events.get(kind)

    def encode(payload: Any) -> bytes:
        encoded = to_json(payload, what=what, limit=limit)
        if known is not None:
            known.check(encoded)
        return encoded

    return encode


def _fields(options: RecordOptions) -> dict[str, Any]:
    """Options, and where we are, as fields of EventRecorded."""
    return {**_checked(options), **_origin(options)}


def _origin(options: RecordOptions) -> dict[str, str]:
    """The run in whose handler we are, and what the event follows from unless the caller says it."""
    run = current_run.get()
    if run is None:
        return {}
    if options.caused_by is not None:
        return {"run_id": run.id}
    event_id = event_of(run.invoked_by)
    return {"run_id": run.id, "caused_by": f"run:{run.id}" if event_id is None else f"event:{event_id}"}


def _checked(options: RecordOptions) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in _CHECKS}
    fields: dict[str, Any] = {name: _CHECKS[name](value) for name, value in given.items() if value is not None}
    if options.entity is not None:
        fields["entity_type"], fields["entity_id"] = pair(options.entity)
    if options.ordered:
        fields["ordered"] = _ordered(options)
    return fields


def pair(entity: Any) -> tuple[str, str]:
    """The type and the id of an entity, or an error that says what is wrong with them."""
    match entity:
        case (str() as kind, str() as name):
            return _text("entity's type", kind, LONGEST_ENTITY_TYPE), _text("entity's id", name, LONGEST_KEY)
    raise InvalidOption(f"entity={entity!r} must be a pair of texts, like ('product', '42')")


def _text(name: str, value: object, longest: int) -> str:
    if not is_storable(value) or not 0 < len(value) <= longest:
        raise InvalidOption(f"{name} {value!r} must be text of 1 to {longest} characters without NUL")
    return value


def _moment(moment: datetime) -> str:
    try:
        return utc(moment, what="occurred_at").isoformat()
    except ConfigError as error:
        raise InvalidOption(str(error)) from error


_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "idempotency_key": lambda value: _text("idempotency_key", value, LONGEST_KEY),
    "caused_by": lambda value: _text("caused_by", value, LONGEST_KEY),
    "source": lambda value: _text("source", value, LONGEST_SOURCE),
    "occurred_at": _moment,
}
"""What can be said of an event that has nothing to do with what else is said of it."""


def _ordered(options: RecordOptions) -> bool:
    if options.ordered is not True:
        raise InvalidOption(f"ordered={options.ordered!r} must be True or False")
    if options.entity is None:
        raise InvalidOption("ordered=True needs entity=: it is the events of one entity that are in order")
    return True


def ids_of(changes: Iterable[EventRecorded], recorded: Mapping[str, str]) -> list[str]:
    """For each change, the event that stands for it: an earlier one where the idempotency key was used before."""
    return [recorded.get(change.id, change.id) for change in changes]
