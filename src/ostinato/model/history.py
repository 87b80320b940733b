"""What people see of the ledger: events as they look for them, the types there are, and what followed from what."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from msgspec import Struct

from .event import Event, event_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which events to show."""

    on: str | None = None
    """A type, or a glob over types."""
    entity: tuple[str, str] | None = None
    source: str | None = None
    since: datetime | None = None
    """Recorded then or later."""
    limit: int = 50


MOST_COUNTED = 10_000
"""So many events of a type are counted, the latest ones."""


class EventCount(Struct, frozen=True):
    """The latest events of a type, as far as they are from a source."""

    type: str
    source: str | None
    count: int
    last_seen: datetime
    more: bool = False
    """Whether the type may have older events, which were not looked at."""

    @property
    def in_words(self) -> str:
        return f"{self.count:,}+" if self.more else f"{self.count:,}"


class EventPage(Struct, frozen=True):
    """Events for one who reads from outside, in order, and where he is after them."""

    events: Sequence[Event]
    token: str
    """For the next call of `read`, in any process, at any time."""
    more: bool
    """Whether there may be more to read at once."""


class EventLink(Struct, frozen=True):
    """An event in a chain."""

    id: str
    type: str
    caused_by: str | None
    run_id: str | None
    at: datetime

    @property
    def cause(self) -> tuple[Kind, str] | None:
        """What it follows from, if that can be looked up: the run that recorded it comes before the event behind it."""
        if self.run_id is not None:
            return "run", self.run_id
        return cause_in(self.caused_by)


class RunLink(Struct, frozen=True):
    """A run in a chain."""

    id: str
    function: str
    invoked_by: str
    state: str
    at: datetime

    @property
    def cause(self) -> tuple[Kind, str] | None:
        event_id = event_of(self.invoked_by)
        return cause_in(self.invoked_by) if event_id is None else ("event", event_id)


Kind = Literal["event", "run"]
Link = EventLink | RunLink


class Traced(Struct, frozen=True):
    """An event or a run in a trace."""

    kind: Kind
    id: str
    name: str
    """The event's type, or the run's function."""
    at: datetime
    """When the event was recorded, or the run enqueued."""
    parent: str | None = None
    """The id of what it follows from."""
    depth: int = 0
    """How far it is below the event that was asked for; below zero for what is before it."""
    state: str | None = None
    """The run's."""


class Trace(Struct, frozen=True):
    """What an event follows from, and what follows from it."""

    event: Traced
    ancestors: Sequence[Traced]
    """From the first to the one right before it."""
    descendants: Sequence[Traced]
    """Each before what follows from it."""
    truncated: bool = False
    """Whether there is more than is shown."""


def cause_in(text: str | None) -> tuple[Kind, str] | None:
    """What `event:<id>` or `run:<id>` names; other causes are only text.

    >>> cause_in("run:01K9"), cause_in("sync:tier=gold")
    (('run', '01K9'), None)
    """
    kind, _, found = (text or "").partition(":")
    if found and kind == "event":
        return "event", found
    return ("run", found) if found and kind == "run" else None


def traced(link: Link, *, depth: int, parent: str | None = None) -> Traced:
    if isinstance(link, EventLink):
        return Traced("event", link.id, link.type, link.at, parent, depth)
    return Traced("run", link.id, link.function, link.at, parent, depth, link.state)


# --- rows, as the stores read them: moments are microseconds since 1970 ----------------------------------------------


def count_in(row: Sequence[Any]) -> EventCount:
    return EventCount(row[0], row[1], row[2], _moment(row[3]), bool(row[4]))


def event_link_in(row: Sequence[Any]) -> EventLink:
    return EventLink(row[0], row[1], row[2], row[3], _moment(row[4]))


def run_link_in(row: Sequence[Any]) -> RunLink:
    return RunLink(row[0], row[1], row[2], row[3], _moment(row[4]))


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
