"""How far a position is from the end of the ledger, and where a moment is."""

from __future__ import annotations

from ...model.event import Position
from .. import recalling
from ..flows import Call, Flow
from .reading import BEGINNING, attending, between, locating, opened, within


def counting(position: Position, limit: int) -> Flow[int]:
    """How many events come after a position, counted to a limit."""
    present = yield from attending()
    position = yield from opened(position, present)
    after, count = position.after, 0
    if position.until is not None:
        ((count,),) = yield Call("count_in_window", {**within(position), "limit": limit})
        after = position.until
    ((younger,),) = yield Call("count_between", {**between(after, present), "limit": limit})
    return min(limit, int(count + younger))


def finding(since: int) -> Flow[Position]:
    """The position before the first event that was recorded from a moment on: all from its number on is a window, up
    to what is visible now."""
    place = yield from locating()
    rows = yield Call("first_since", {"since": since, "last": (yield from recalling.before(since))})
    if not rows:
        return place.now
    return Position(after=BEGINNING, until=place.now.after, last=rows[0][0] - 1, end=place.sequence_no)
