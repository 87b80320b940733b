"""Schedules: declaring, planning, firing and pausing them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Raw, structs

from ...model.change import Change, Committed, RunInserted, ScheduleMoved
from ...model.schedule import Known, Missed, Planned, Schedule, first_slot, micros, moment
from .calls import Call, Flow, Row, encoded
from .dialect import Dialect


def asking_the_time() -> Flow[datetime]:
    return moment((yield Call("moment", {}))[0][0])


def declaring_schedules(schedules: Sequence[Schedule]) -> Flow[None]:
    """Writes down schedules as they are declared, and works out what comes next for them."""
    known = yield from _locking_schedules([schedule.name for schedule in schedules])
    now = yield from asking_the_time()
    declared = [
        {**structs.asdict(schedule), "next_at": micros(first_slot(schedule, now, known.get(schedule.name)))}
        for schedule in schedules
    ]
    yield Call("declare_schedules", {"schedules": encoded(declared)})


def _locking_schedules(names: Sequence[str]) -> Flow[dict[str, Known]]:
    rows = yield Call("lock_schedules", {"names": encoded(sorted(names))})
    return {row[0]: Known(row[1], row[2], moment(row[3]), row[4] and moment(row[4])) for row in rows}


def keeping_schedules(names: Sequence[str]) -> Flow[None]:
    """Says that a worker still declares them."""
    yield Call("keep_schedules", {"names": encoded(names)})


def planning(names: Sequence[str], limit: int) -> Flow[list[Planned]]:
    rows = yield Call("planned_schedules", {"names": encoded(names), "limit": limit})
    return [Planned(_schedule(row[2:]), moment(row[0]), moment(row[1])) for row in rows]


def _schedule(row: Row) -> Schedule:
    """The order of the columns is the order of the fields."""
    fields = dict(zip(Schedule.__struct_fields__, row, strict=True))
    fields["input"] = Raw(fields["input"].encode())
    return Schedule(**{**fields, "missed": Missed(fields["missed"]), "gives_slot": bool(fields["gives_slot"])})


def firing(changes: Sequence[Change], refused: frozenset[str], dialect: Dialect) -> Flow[Committed]:
    """Moves schedules, and inserts the runs of those that could be moved."""
    moves = sorted((change for change in changes if isinstance(change, ScheduleMoved)), key=lambda move: move.name)
    moved = {row[0] for row in (yield Call("move_schedules", {"moves": encoded(moves)}))}
    left_out = {run_id for move in moves if move.name not in moved for run_id in move.runs}
    inserted = [change for change in changes if isinstance(change, RunInserted) and change.id not in left_out]
    existing = (yield from dialect.inserting(inserted)) if inserted else {}
    return Committed(refused, existing, frozenset(move.name for move in moves) - moved)


def pausing_schedule(name: str) -> Flow[bool]:
    """Whether there is such a schedule."""
    return bool((yield Call("pause_schedule", {"name": name})))


def resuming_schedule(name: str) -> Flow[bool]:
    """Lets a schedule go on from its next slot: those that came while it was paused are over."""
    known = (yield from _locking_schedules([name])).get(name)
    if known is None:
        return False
    now = yield from asking_the_time()
    schedule = Schedule(name=name, function="", expression=known.expression, tz=known.tz)
    next_at = schedule.cron.after(max(now, known.last_slot or now))
    yield Call("resume_schedule", {"name": name, "next_at": micros(next_at)})
    return True
