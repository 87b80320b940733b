"""Telling of runs that have ended."""

from __future__ import annotations

from collections.abc import Sequence

from ...ids import new_id
from ...model.change import EventRecorded, RunInserted
from ...model.lifecycle import End, told
from .calls import Call, Flow, encoded
from .dialect import Dialect
from .settlements import areas_of
from .waits import locking_parents, waking


def telling(ended: Sequence[str], dialect: Dialect) -> Flow[None]:
    """Records the ends of runs whose functions ask for that, and starts the functions that are for failures."""
    ends = [End(*row) for row in (yield Call("ends", {"ids": encoded(sorted(ended))}))]
    changes = areas_of(change for end in ends for change in told(end, new_id))
    if inserted := changes.get(RunInserted):
        yield from dialect.inserting(inserted)
    if recorded := changes.get(EventRecorded):
        yield from dialect.recording(recorded)


def telling_parents(ended: Sequence[str]) -> Flow[None]:
    """Tells those who wait for these runs what became of them."""
    if (yield from locking_parents(ended)):
        yield from waking((yield Call("end_children", {"ids": encoded(ended)})))
