"""Reading the ledger in order, by the difference of snapshots (see ledger.sql and the migration).

Traps: what the reader's own transaction records must not count as read, so its id is added to those in progress; paging
a large window by transactions would be quadratic, so it is frozen and walked by number; and events that came with a
restore name transactions of another cluster, so they are compared with no snapshot of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from msgspec import structs

from ...errors import LedgerMoved
from ...model.event import Page, Place, Position, event_in, position_in
from ..flows import Call, Flow, Row

BEGINNING = "3:3:"
"""A snapshot in which nothing is visible yet."""

_sequence = attrgetter("sequence_no")


class Present(NamedTuple):
    """Up to where one can read now."""

    until: str
    """A snapshot in which the reader's own transaction is in progress, as it is for everybody else."""
    floor: int
    """Events up to this one came with a restore."""


class Taken(NamedTuple):
    """A drainer, and the ledger it is to read."""

    position: Position
    present: Present
    lineage: str
    moved: bool
    """Whether the position speaks of another cluster."""


def taking(name: str, limit: int) -> Flow[Page | None]:
    """The next page of a drainer, which is ours until the transaction ends; None if another process holds it."""
    taken = yield from _taking(name)
    if taken is None:
        return None
    position = taken.position
    if taken.moved:
        position = yield from _rebasing(name, taken)
    return (yield from paging(position, taken.present, limit))


def _taking(name: str) -> Flow[Taken | None]:
    rows = yield Call("take_drainer", {"name": name})
    if rows and not rows[0][4]:
        yield Call("adopt_ledger", {})
        rows = yield Call("take_drainer", {"name": name})
    return _taken(rows[0]) if rows else None


def _taken(row: Row) -> Taken:
    text, lineage, here, floor, at_home, own, snapshot = row
    present = Present(with_own(snapshot, own), floor)
    return Taken(position_in(text), present, here, moved=lineage != here or not at_home)


def peeking(name: str) -> Flow[bool]:
    """Whether there is something to read for a drainer, without taking it."""
    rows = yield Call("peek_drainer", {"name": name})
    if not rows:
        return False
    *row, younger = rows[0]
    position, present, _, moved = _taken(row)
    if moved or younger:
        return True
    return _begins(position, present) and (yield from _beginning(position, present)).until is not None


def locating() -> Flow[Place]:
    place, _ = yield from _locating()
    return place


def _locating() -> Flow[tuple[Place, Present]]:
    ((lineage, floor, at_home, own, snapshot, last),) = yield Call("place", {})
    if not at_home:
        yield Call("adopt_ledger", {})
        return (yield from _locating())
    present = Present(with_own(snapshot, own), floor)
    return Place(lineage, Position(after=present.until), Position(after=BEGINNING), last), present


def reading_on(position: Position, limit: int) -> Flow[Page]:
    """The next page for one who keeps the position himself."""
    present = yield from attending()
    return (yield from paging(position, present, limit))


def attending() -> Flow[Present]:
    _, present = yield from _locating()
    return present


def opened(position: Position, present: Present) -> Flow[Position]:
    """The position, or the window that a reader from the beginning has before him after a restore."""
    return (yield from _beginning(position, present)) if _begins(position, present) else position


def paging(position: Position, present: Present, limit: int) -> Flow[Page]:
    """The events after a position, up to the present."""
    position = yield from opened(position, present)
    if position.until is None:
        rows = yield Call("events_between", {**between(position.after, present), "limit": limit + 1})
        if len(rows) <= limit:
            return _whole(position, present.until, rows)
        ((first, last),) = yield Call("window", between(position.after, present))
        position = Position(after=position.after, until=present.until, last=first - 1, end=last)
    rows = yield from _reading(position, limit)
    events = [event_in(row) for row in rows]
    if len(events) < limit or events[-1].sequence_no == position.end:
        return Page(events, position, Position(after=position.until))
    return Page(events, position, structs.replace(position, last=events[-1].sequence_no))


def between(after: str | None, present: Present) -> dict[str, object]:
    return {"after": after, "until": present.until, "floor": present.floor}


def within(position: Position) -> dict[str, object]:
    """The window that a position is in."""
    window = {"after": position.after, "until": position.until, "last": position.last, "end": position.end}
    return {**window, **_restored(position)}


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
    return (yield Call("events_in_window", {**within(position), "limit": limit}))


# --- after a restore ------------------------------------------------------------------------------------------------


def _rebasing(name: str, taken: Taken) -> Flow[Position]:
    """The database was restored into another cluster, whose transactions have other numbers: what the position has not
    seen of what came along, and all that was recorded here, is read by number."""
    position = taken.position
    if position.restored:
        raise LedgerMoved(
            f"drainer {name!r} was still reading what an earlier restore brought along when the database was restored "
            f"again; `ostinato drainers reset {name}` says from where to read"
        )
    rebased = yield from _opening(position, taken.present)
    yield Call("set_lineage", {"name": name, "lineage": taken.lineage, "position": rebased.text()})
    return rebased


def _begins(position: Position, present: Present) -> bool:
    """Whether a reader from the beginning has before him what came with a restore."""
    return position.after == BEGINNING and present.floor > 0 and not position.restored


def _beginning(position: Position, present: Present) -> Flow[Position]:
    if position.until is None:
        return (yield from _opening(position, present))
    return structs.replace(position, restored=present.floor)


def _opening(position: Position, present: Present) -> Flow[Position]:
    """A window over what came with a restore and has not been read, and what was recorded since."""
    if not present.floor:  # nothing came along
        return Position(after=BEGINNING)
    window = Position(after=position.after, until=present.until, restored=present.floor)
    if position.until is not None:
        window = structs.replace(window, read_until=position.until, read_last=position.last)
    bounds = {"after": window.after, "until": window.until, **_restored(window)}
    ((first, last),) = yield Call("restored_window", bounds)
    return Position(after=present.until) if first is None else structs.replace(window, last=first - 1, end=last)


def _restored(position: Position) -> dict[str, object]:
    read_until = position.read_until or BEGINNING
    return {"restored": position.restored, "read_until": read_until, "read_last": position.read_last}


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
