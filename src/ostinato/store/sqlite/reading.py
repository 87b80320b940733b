"""Reading the ledger in order. There is one writer, so the numbers of events are in the order of their commits."""

from __future__ import annotations

from msgspec import structs

from ...model.event import Page, Place, Position, event_in, position_in
from ..flows import Call, Flow


def taking(name: str, limit: int) -> Flow[Page | None]:
    """The next page of a drainer."""
    rows = yield Call("find_drainer", {"name": name})
    return (yield from paging(position_in(rows[0][0]), limit)) if rows else None


def peeking(name: str) -> Flow[bool]:
    """Whether there is something to read for a drainer."""
    page = yield from taking(name, 1)
    return page is not None and bool(page.events)


def locating() -> Flow[Place]:
    ((last,),) = yield Call("place", {})
    return Place("", Position(last=last), Position(), last)


def paging(position: Position, limit: int) -> Flow[Page]:
    """The events after a position."""
    rows = yield Call("events_after", {"last": position.last, "limit": limit})
    events = [event_in(row) for row in rows]
    end = structs.replace(position, last=events[-1].sequence_no) if events else position
    return Page(events, position, end)
