"""Flows about events that were recorded: finding them, and removing the oldest."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice

from ..model.change import EventRecorded
from ..model.event import Event, event_in
from ..model.glob import checked, matches
from ..model.history import EventFilter
from ..model.schedule import micros
from .flows import Call, Flow, encoded

_MOST_TYPES = 50
"""As many types are looked up one by one; what a glob of more means is found among the latest anyway."""
_SLACK = 60_000_000
"""Numbers are in the order of time but for statements that overlap and clocks that are set: microseconds to begin
earlier."""


def recent(where: EventFilter) -> Flow[list[Event]]:
    """Events that match, the latest first."""
    types = yield from _types(where.on)
    if types is not None and not types:
        return []
    first = (yield from before(micros(where.since))) + 1 if where.since else 0
    since = micros(where.since) if where.since else 0
    common = {"first": first, "since": since, "source": where.source, "limit": where.limit}
    listed = None if types is None else encoded(types)
    if where.entity is not None:
        kind, entity = where.entity
        found = {"entity_type": kind, "entity_id": entity, "types": listed, **common}
        return [event_in(row) for row in (yield Call("recent_events_of_entity", found))]
    if types is None or len(types) > _MOST_TYPES:
        return [event_in(row) for row in (yield Call("recent_events", {"types": listed, **common}))]
    pages = []
    for each in types:
        rows = yield Call("recent_events_of_type", {"type": each, **common})
        pages.append([event_in(row) for row in rows])
    return list(islice(merge(*pages, key=_lateness), where.limit))


def earlier(glob: str, since: int, after: int, limit: int) -> Flow[list[Event]]:
    """Events of a type, recorded from a moment on and after a number, the earliest first."""
    first = max(after, (yield from before(since))) + 1
    types = yield from _types(glob)
    pages = []
    for kind in [row[0] for row in (yield Call("event_types", {}))] if types is None else types:
        rows = yield Call("events_from", {"type": kind, "first": first, "since": since, "limit": limit})
        pages.append([event_in(row) for row in rows])
    return list(islice(merge(*pages, key=_number), limit))


def _number(event: Event) -> int:
    return event.sequence_no


def _lateness(event: Event) -> int:
    return -event.sequence_no


def _types(glob: str | None) -> Flow[list[str] | None]:
    """The types that a glob means; None for all."""
    if glob is None or checked(glob) == "**":
        return None
    if "*" not in glob:
        return [glob]
    return [row[0] for row in (yield Call("event_types", {})) if matches(glob, row[0])]


def before(moment: int) -> Flow[int]:
    """A number below those of all events that were recorded at a moment or later, and not far below."""
    number: int = (yield Call("number_since", {"since": moment - _SLACK}))[0][0]
    return number - 1


def knowing(events: Sequence[EventRecorded]) -> Flow[dict[str, str]]:
    """For events that may have been recorded, the id asked for → the event that stands for it, of those that are
    there."""
    asked = [_reference(event) for event in events]
    return {row[0]: row[1] for row in (yield Call("known_events", {"events": encoded(asked)}))}


def _reference(event: EventRecorded) -> dict[str, str]:
    key = {} if event.idempotency_key is None else {"idempotency_key": event.idempotency_key}
    return {"id": event.id, **key}


def pruning(keep: float, keep_unread: float | None, passed: int, limit: int) -> Flow[list[int]]:
    """Removes the oldest events that have been kept long enough; answers their numbers."""
    yield Call("allow_pruning", {})
    asked = {"keep": keep, "keep_unread": keep_unread, "passed": passed, "limit": limit}
    rows = yield Call("prune_events", asked)
    yield Call("end_pruning", {})
    return sorted(row[0] for row in rows)
