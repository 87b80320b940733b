"""Runs that wait, for events or for other runs, and what wakes them."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.change import WaitMet
from ...model.step import Waiting
from .calls import Call, Flow, Row, encoded


def holding_waiting(runs: Sequence[str]) -> Flow[Waiting]:
    """Locks runs, and answers which of their steps wait for events and which events they have got."""
    yield Call("lock_to_wake", {"ids": encoded(runs)})
    rows = yield Call("waiting_steps", {"ids": encoded(runs)})
    waiting = {(run_id, step_id) for run_id, step_id, event_id in rows if event_id is None}
    return Waiting(waiting, {(run_id, event_id) for run_id, _, event_id in rows if event_id is not None})


def meeting(waits: Sequence[WaitMet]) -> Flow[None]:
    """Gives events to the steps that wait for them."""
    yield Call("lock_to_wake", {"ids": encoded(sorted({wait.run_id for wait in waits}))})
    yield from waking((yield Call("meet_waits", {"waits": encoded(waits)})))


def locking_parents(ids: Sequence[str]) -> Flow[bool]:
    """Whether there are any."""
    if parents := [row[0] for row in (yield Call("parents_of", {"ids": encoded(ids)}))]:
        yield Call("lock_to_wake", {"ids": encoded(parents)})
    return bool(parents)


def waking(rows: Sequence[Row]) -> Flow[None]:
    if rows:
        yield Call("wake_runs", {"ids": encoded(sorted({row[0] for row in rows}))})
