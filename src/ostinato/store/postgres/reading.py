"""Reading the ledger in order, by the difference of snapshots (see ledger.sql and the migration).

Traps: what the reader's own transaction records must not count as read, so its id is added to those in progress; and
paging a large window by transactions would be quadratic, so it is frozen and walked by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec import structs

from ...errors import LedgerMoved
from ...model.event import Page, Place, Position, event_in, position_in
from ..flows import Call, Flow, Row

BEGINNING = "3:3:"
"""A snapshot in which nothing is visible yet."""

_sequence = attrgetter("sequence_no")


def taking(name: str, limit: int) -> Flow[Page | None]:
    """The next page of a drainer, which is ours until the transaction ends; None if another process holds it."""
    rows = yield Call("take_drainer", {"name": name})
    if not rows:
        return None
    text, lineage, here, own, snapshot = rows[0]
    position, until = position_in(text), with_own(snapshot, own)
    if lineage != here:
        position = yield from _rebasing(name, position, until, here)
    return (yield from paging(position, until, limit))


def peeking(name: str) -> Flow[bool]:
    """Whether there is something to read for a drainer, without taking it."""
    rows = yield Call("find_drainer", {"name": name})
    if not rows:
        return False
    text, lineage, here, _, snapshot = rows[0]
    position = position_in(text)
    if lineage != here or position.until is not None:
        return True
    between = {"after": position.after, "until": snapshot, "limit": 1}
    return bool((yield Call("events_between", between)))


def locating() -> Flow[Place]:
    ((lineage, snapshot, last),) = yield Call("place", {})
    return Place(lineage, Position(after=snapshot), Position(after=BEGINNING), last)


def reading_on(position: Position, limit: int) -> Flow[Page]:
    """The next page for one who keeps the position himself."""
    place = yield from locating()
    return (yield from paging(position, str(place.now.after), limit))


def paging(position: Position, until: str, limit: int) -> Flow[Page]:
    """The events after a position, up to a snapshot."""
    if position.until is None:
        between = {"after": position.after, "until": until}
        rows = yield Call("events_between", {**between, "limit": limit + 1})
        if len(rows) <= limit:
            return _whole(position, until, rows)
        ((first, last),) = yield Call("window", between)
        position = Position(after=position.after, until=until, last=first - 1, end=last)
    rows = yield from _reading(position, limit)
    events = [event_in(row) for row in rows]
    if len(events) < limit or events[-1].sequence_no == position.end:
        return Page(events, position, Position(after=position.until))
    return Page(events, position, structs.replace(position, last=events[-1].sequence_no))


def _whole(position: Position, until: str, rows: Sequence[Row]) -> Page:
    """A window that is no larger than a page."""
    events = sorted((event_in(row) for row in rows), key=_sequence)
    if not events:
        return Page(events, position, position)
    first, last = events[0].sequence_no, events[-1].sequence_no
    window = Position(after=position.after, until=until, last=first - 1, end=last)
    return Page(events, window, Position(after=until))


def _reading(position: Position, limit: int) -> Flow[Sequence[Row]]:
    """A page of a window that is larger."""
    window = {"after": position.after, "until": position.until, "last": position.last, "end": position.end}
    if not position.restored:
        return (yield Call("events_in_window", {**window, "limit": limit}))
    return (yield Call("restored_events", {**window, **_read_before(position), "limit": limit}))


def _rebasing(name: str, position: Position, until: str, lineage: str) -> Flow[Position]:
    """The database was restored into another cluster, whose transactions have other numbers: what the position has not
    seen of what came along, and all that was recorded here, is read by number."""
    if position.restored:
        raise LedgerMoved(
            f"drainer {name!r} was still reading what an earlier restore brought along when the database was restored "
            f"again; `ostinato drainers reset {name}` says from where to read"
        )
    rebased = Position(after=position.after, until=until, restored=True)
    if position.until is not None:
        rebased = structs.replace(rebased, read_until=position.until, read_last=position.last)
    window = {"after": rebased.after, "until": until, **_read_before(rebased)}
    ((first, last),) = yield Call("restored_window", window)
    if first is None:
        rebased = Position(after=until)
    else:
        rebased = structs.replace(rebased, last=first - 1, end=last)
    yield Call("set_lineage", {"name": name, "lineage": lineage, "position": rebased.text()})
    return rebased


def _read_before(position: Position) -> dict[str, object]:
    return {"read_until": position.read_until or BEGINNING, "read_last": position.read_last}


def with_own(snapshot: str, own: str | None) -> str:
    """A snapshot in which the transaction that took it is in progress, as it is for everybody else.

    >>> with_own("10:20:12,15", "14"), with_own("10:20:", "25"), with_own("10:20:", None)
    ('10:20:12,14,15', '10:20:', '10:20:')
    """
    lowest, end, open_ = snapshot.split(":")
    if own is None or int(own) >= int(end):
        return snapshot
    in_progress = sorted({int(own), *(int(each) for each in open_.split(",") if each)})
    return f"{min(int(lowest), int(own))}:{end}:{','.join(map(str, in_progress))}"
