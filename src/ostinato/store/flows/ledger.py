"""The ledger, and how far its drainers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from ...model.change import CursorMoved, EventParked, EventRecorded, EventUnparked, StepSaved
from .calls import Call, Flow, Row, encoded
from .dialect import Dialect

LEDGER = {EventRecorded, EventParked, EventUnparked, CursorMoved}
"""The changes that are written there."""


def writing_ledger(areas: Mapping[type, list[Any]], dialect: Dialect) -> Flow[dict[str, str]]:
    """New events, what could not be given to subscriptions, and how far drainers are."""
    recorded = (yield from dialect.recording(areas[EventRecorded])) if EventRecorded in areas else {}
    if recorded and StepSaved in areas:  # what a run has sent was recorded before, under the same key
        found = [(event.run_id, event.id, recorded[event.id]) for event in areas[EventRecorded] if event.id in recorded]
        yield Call("correct_sent", {"recorded": encoded(found)})
    if parked := areas.get(EventParked):
        yield Call("park_events", {"parked": encoded(parked)})
    if unparked := areas.get(EventUnparked):
        yield Call("unpark_events", {"unparked": encoded(unparked)})
    for moved in areas.get(CursorMoved, ()):
        yield Call("move_drainer", structs.asdict(moved))
    return recorded


def resetting_drainer(name: str, position: str) -> Flow[bool]:
    """Puts a drainer elsewhere, once nobody holds it; whether there is one of the name."""
    rows = yield Call("lock_drainer", {"name": name})
    for _, lineage, _ in rows:
        yield Call("reset_drainer", {"name": name, "position": position, "lineage": lineage})
    return bool(rows)


def acknowledging(name: str, start: str, end: str, count: int) -> Flow[bool]:
    """Moves a drainer on, once nobody holds it, if it is still where its reader began, and was nowhere else since."""
    rows = yield Call("lock_drainer", {"name": name})
    if not rows or _stand(rows[0]) != start:
        return False
    yield Call("move_drainer", {"drainer": name, "position": end, "processed": count})
    return True


def holding_drainer(name: str) -> Flow[str | None]:
    """Keeps a drainer from passing on until the transaction ends; answers where it is."""
    rows = yield Call("lock_drainer", {"name": name})
    return _stand(rows[0]) if rows else None


def _stand(drainer: Row) -> str:
    """Where a drainer is, and after how many resets: one of them may have put it back to where it was."""
    position, _, resets = drainer
    return f"{resets} {position}"
