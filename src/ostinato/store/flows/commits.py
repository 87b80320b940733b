"""Committing changes: all of them, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model.change import (
    CancelMet,
    Change,
    ChildEnded,
    Committed,
    EndTold,
    EventRecorded,
    RunCompleted,
    RunInserted,
    RunSettled,
    ScheduleMoved,
    StepSaved,
    WaitMet,
)
from ...model.run import State
from .calls import Call, Flow, encoded
from .cancellations import cancelling_by_events, cancelling_children
from .dialect import Dialect
from .ends import telling
from .ledger import LEDGER, writing_ledger
from .schedules import firing
from .settlements import areas_of, by_run, completing, settling
from .waits import locking_parents, meeting, waking


def committing(changes: Sequence[Change], dialect: Dialect) -> Flow[Committed]:
    """Applies changes in the one order that all commits share: runs, keys, attempts, steps, who waits for them,
    schedules, new runs, the ledger."""
    areas = areas_of(changes)
    if children := areas.get(ChildEnded):  # parents are locked before their children, as when they are cancelled
        yield from locking_parents([child.run_id for child in children])
    completed = areas.get(RunCompleted)
    refused = (yield from completing(completed, dialect)) if completed else frozenset[str]()
    if saved := areas.get(StepSaved):
        saved.sort(key=by_run)
        refused |= {step.run_id for step in saved}.difference((yield from dialect.saving(saved)))
    refused = yield from settling(areas, refused)
    if children and (ended := [child.run_id for child in children if child.run_id not in refused]):
        yield from waking((yield Call("end_children", {"ids": encoded(ended)})))
    if ended := [run.run_id for run in areas.get(EndTold, ()) if run.run_id not in refused]:
        yield from telling(ended, dialect)
    if cancelled := [change for change in areas.get(RunSettled, ()) if change.state == State.CANCELLED]:
        yield from cancelling_children([change for change in cancelled if change.run_id not in refused], dialect)
    if met := areas.get(WaitMet):
        yield from meeting(met)
    if cancels := areas.get(CancelMet):
        yield from cancelling_by_events(cancels, dialect)
    if ScheduleMoved in areas:
        return (yield from firing(changes, refused, dialect))
    if refused:
        _leave_out(areas, refused)
    inserted = areas.get(RunInserted)
    existing = (yield from dialect.inserting(inserted)) if inserted else {}
    recorded = (yield from writing_ledger(areas, dialect)) if LEDGER & areas.keys() else {}
    return Committed(refused, existing, recorded=recorded)


def _leave_out(areas: dict[type, list[Any]], refused: frozenset[str]) -> None:
    """Children and events of runs whose fence did not hold."""
    areas[RunInserted] = [run for run in areas.get(RunInserted, ()) if run.parent_run not in refused]
    areas[EventRecorded] = [event for event in areas.get(EventRecorded, ()) if event.run_id not in refused]


def single_statement(changes: Sequence[Change]) -> bool:
    """Whether the commit is one statement, which needs no transaction around it."""
    kinds = set(map(type, changes))
    if len(kinds) != 1 or kinds & _SEVERAL_STATEMENTS:
        return False
    if RunSettled not in kinds:
        return True
    return not any(isinstance(change, RunSettled) and change.state == State.CANCELLED for change in changes)


_SEVERAL_STATEMENTS = {ChildEnded, EndTold, WaitMet, CancelMet}
