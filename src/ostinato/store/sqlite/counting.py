"""How far a position is from the end of the ledger, and where a moment is."""

from __future__ import annotations

from ...model.event import Position
from .. import recalling
from ..flows import Call, Flow
from .reading import locating


def counting(position: Position, limit: int) -> Flow[int]:
    """How many events come after a position, counted to a limit."""
    ((count,),) = yield Call("count_after", {"last": position.last, "limit": limit})
    return int(count)


def finding(since: int) -> Flow[Position]:
    """The position before the first event that was recorded from a moment on."""
    place = yield from locating()
    rows = yield Call("first_since", {"since": since, "last": (yield from recalling.before(since))})
    return Position(last=rows[0][0] - 1) if rows else place.now
