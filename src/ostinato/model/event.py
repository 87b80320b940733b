"""Events, and how far somebody has read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Raw, Struct, json, structs

WORKFLOW_RUNNER = "workflow_runner"
"""The built-in drainer: it starts runs from subscriptions."""

DISPATCH_FAILED = "workflow.dispatch_failed"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Event(Struct, frozen=True, kw_only=True):
    """An immutable fact in the ledger."""

    id: str
    type: str
    payload: Any
    sequence_no: int
    """Its place among all events; taken when it was recorded, not when that was committed."""
    entity_type: str | None = None
    entity_id: str | None = None
    caused_by: str | None = None
    run_id: str | None = None
    source: str | None = None
    occurred_at: datetime
    """When it happened, as its producer says."""
    recorded_at: datetime
    """When it was recorded, as the database says."""
    idempotency_key: str | None = None

    @property
    def entity(self) -> tuple[str, str] | None:
        if self.entity_type is None or self.entity_id is None:
            return None
        return self.entity_type, self.entity_id

    @property
    def recorded_micros(self) -> int:
        return (self.recorded_at - _EPOCH) // timedelta(microseconds=1)

    @property
    def reason(self) -> str:
        """How a run that it starts was invoked."""
        return f"event:{self.type}:{self.id}"


def event_in(row: Sequence[Any]) -> Event:
    """The event in a row of the ledger, as the stores read it: moments are microseconds since 1970."""
    return Event(
        sequence_no=row[0],
        id=row[1],
        type=row[2],
        entity_type=row[3],
        entity_id=row[4],
        payload=json.decode(row[5]),
        caused_by=row[6],
        run_id=row[7],
        source=row[8],
        occurred_at=_EPOCH + timedelta(microseconds=row[9]),
        recorded_at=_EPOCH + timedelta(microseconds=row[10]),
        idempotency_key=row[11],
    )


def event_of(invoked_by: str) -> str | None:
    """The id of the event that started a run, by how that was invoked.

    >>> event_of("event:price.changed:01K9Z6Q2F3M8W5T7R1Y4X0V6B2"), event_of("api")
    ('01K9Z6Q2F3M8W5T7R1Y4X0V6B2', None)
    """
    return invoked_by.rpartition(":")[2] if invoked_by.startswith("event:") else None


LAST_NUMBER = 2**63 - 1
"""No event has a higher one."""


class Position(Struct, frozen=True, omit_defaults=True):
    """How far somebody has read.

    On SQLite it is the last number read. On PostgreSQL it is a snapshot, `after`: what was visible in it has been read.
    While a window between two snapshots is read that has more events than a page, `until` is its end, `last` the number
    last read of it, and `end` the highest it has.
    """

    last: int = 0
    after: str | None = None
    until: str | None = None
    end: int = 0
    restored: int = 0
    """The highest number of what came with a restore, of which `after` speaks in the numbers of another cluster."""
    read_until: str | None = None
    read_last: int = 0
    """The window that was being read there: its end, and the number last read of it."""

    def text(self) -> str:
        return json.encode(self).decode()


class Place(Struct, frozen=True):
    """Where the ledger is now."""

    lineage: str
    """Whose transactions positions speak of: those of a history of a server, until it is restored or another takes
    over. Empty where they speak of none."""
    now: Position
    beginning: Position
    sequence_no: int
    """The last number given, whether it is committed or not."""


def position_in(text: str) -> Position:
    return json.decode(text, type=Position)


class Page(Struct, frozen=True):
    """The next events in their order, and where one is after some or all of them."""

    events: Sequence[Event]
    start: Position
    end: Position

    def after(self, count: int) -> Position:
        """The position when as many of the events have been dealt with."""
        if count == len(self.events):
            return self.end
        return structs.replace(self.start, last=self.events[count - 1].sequence_no) if count else self.start

    def first(self, count: int) -> Page:
        """The page without what comes after so many events."""
        return Page(self.events[:count], self.start, self.after(count))


class Unsuitable(Exception):
    """An event that a subscription cannot be given: its filter, its mapper or the function's input refuses it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Subscription(Struct, frozen=True, kw_only=True):
    """Which events start which function, with what input."""

    name: str
    glob: str
    function: str
    filter: str | None = None
    mapper: Raw | None = None
    ordered: bool = False
    enabled: bool = True
    origin: str = "runtime"
    since_sequence: int = 0
    """Events up to this one are none of its business."""
    since_at: int | None = None
    """Nor those recorded before, in microseconds since 1970."""

    @property
    def is_behind(self) -> bool:
        """Whether it still has to be given what was in the ledger when it came."""
        return self.enabled and self.since_sequence == NOT_CAUGHT_UP


NOT_CAUGHT_UP = -1
"""Where a subscription begins that still has to be given what was in the ledger when it came."""


def subscription_in(row: Sequence[Any]) -> Subscription:
    """The subscription in a row, as the stores read it."""
    return Subscription(
        name=row[0],
        glob=row[1],
        function=row[2],
        filter=row[3],
        mapper=None if row[4] is None else Raw(row[4].encode()),
        ordered=bool(row[5]),
        enabled=bool(row[6]),
        origin=row[7],
        since_sequence=row[8],
        since_at=row[9],
    )
