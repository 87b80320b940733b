"""What a store does, written once for both databases and both colours.

A flow is a generator: it yields calls to named SQL blocks, gets their rows, and returns a result. It does not know
who executes them: an asyncpg connection, SQLite's writer thread, or the caller's own transaction through any driver.
Whoever does runs the whole flow in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Raw, json, structs

from ..ids import new_id
from ..model.change import (
    AttemptEnded,
    CancelMet,
    Change,
    ChildEnded,
    Committed,
    CursorMoved,
    EndTold,
    EventParked,
    EventRecorded,
    EventUnparked,
    Fenced,
    KeyFreed,
    RunCompleted,
    RunInserted,
    RunSettled,
    RunStarted,
    ScheduleMoved,
    StepSaved,
    WaitMet,
)
from ..model.event import Subscription
from ..model.lifecycle import End, told
from ..model.outcome import rescue
from ..model.run import Orphan, State
from ..model.schedule import Known, Missed, Planned, Schedule, first_slot, micros, moment
from ..model.step import Waiting

Row = Sequence[Any]
T = TypeVar("T")


class Call(NamedTuple):
    """One statement to execute."""

    block: str
    arguments: Mapping[str, object]


Flow = Generator[Call, Sequence[Row], T]


def encoded(value: object) -> str:
    """The one JSON argument that most blocks take."""
    return json.encode(value).decode()


# --- committing -----------------------------------------------------------------------------------------------------


class Dialect(Protocol):
    """What databases do so differently that a block of the same name is not enough."""

    def inserting(self, changes: Sequence[RunInserted]) -> Flow[dict[str, str]]:
        """Inserts runs; answers for those whose key was taken: the id asked for → the run that holds the key."""

    def completing(self, settlements: Sequence[RunCompleted]) -> Flow[Collection[str]]:
        """Completes runs; answers those for which the fence held, each once."""

    def saving(self, steps: Sequence[StepSaved]) -> Flow[Collection[str]]:
        """Saves steps of runs for which the fence holds; answers those runs."""

    def recording(self, events: Sequence[EventRecorded]) -> Flow[dict[str, str]]:
        """Records events; answers for those whose idempotency key was used before: the id asked for → the event that
        has the key."""


def committing(changes: Sequence[Change], dialect: Dialect) -> Flow[Committed]:
    """Applies changes in the one order that all commits share: runs, keys, attempts, steps, who waits for them,
    schedules, new runs, the ledger."""
    areas = _areas(changes)
    if children := areas.get(ChildEnded):  # parents are locked before their children, as when they are cancelled
        yield from _locking_parents([child.run_id for child in children])
    completed = areas.get(RunCompleted)
    refused = (yield from _completing(completed, dialect)) if completed else frozenset[str]()
    if saved := areas.get(StepSaved):
        saved.sort(key=_run_id)
        refused |= {step.run_id for step in saved}.difference((yield from dialect.saving(saved)))
    refused = yield from _settling(areas, refused)
    if children and (ended := [child.run_id for child in children if child.run_id not in refused]):
        yield from _waking((yield Call("end_children", {"ids": encoded(ended)})))
    if ended := [run.run_id for run in areas.get(EndTold, ()) if run.run_id not in refused]:
        yield from _telling(ended, dialect)
    if cancelled := [change for change in areas.get(RunSettled, ()) if change.state == State.CANCELLED]:
        yield from _cancelling_children([change for change in cancelled if change.run_id not in refused], dialect)
    if met := areas.get(WaitMet):
        yield from _meeting(met)
    if cancels := areas.get(CancelMet):
        yield from _cancelling_by_events(cancels, dialect)
    if ScheduleMoved in areas:
        return (yield from _firing(changes, refused, dialect))
    if refused:
        _leave_out(areas, refused)
    inserted = areas.get(RunInserted)
    existing = (yield from dialect.inserting(inserted)) if inserted else {}
    recorded = (yield from _ledger(areas, dialect)) if _LEDGER & areas.keys() else {}
    return Committed(refused, existing, recorded=recorded)


def _ledger(areas: Mapping[type, list[Any]], dialect: Dialect) -> Flow[dict[str, str]]:
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


def _leave_out(areas: dict[type, list[Any]], refused: frozenset[str]) -> None:
    """Children and events of runs whose fence did not hold."""
    areas[RunInserted] = [run for run in areas.get(RunInserted, ()) if run.parent_run not in refused]
    areas[EventRecorded] = [event for event in areas.get(EventRecorded, ()) if event.run_id not in refused]


def _telling_parents(ended: Sequence[str]) -> Flow[None]:
    """Tells those who wait for these runs what became of them."""
    if (yield from _locking_parents(ended)):
        yield from _waking((yield Call("end_children", {"ids": encoded(ended)})))


def _locking_parents(ids: Sequence[str]) -> Flow[bool]:
    """Whether there are any."""
    if parents := [row[0] for row in (yield Call("parents_of", {"ids": encoded(ids)}))]:
        yield Call("lock_to_wake", {"ids": encoded(parents)})
    return bool(parents)


def _telling(ended: Sequence[str], dialect: Dialect) -> Flow[None]:
    """Records the ends of runs whose functions ask for that, and starts the functions that are for failures."""
    ends = [End(*row) for row in (yield Call("ends", {"ids": encoded(sorted(ended))}))]
    changes = _areas(change for end in ends for change in told(end, new_id))
    if inserted := changes.get(RunInserted):
        yield from dialect.inserting(inserted)
    if recorded := changes.get(EventRecorded):
        yield from dialect.recording(recorded)


def _cancelling_by_events(cancels: Sequence[CancelMet], dialect: Dialect) -> Flow[None]:
    """Each for its own event, and what they wait for with them."""
    reasons = {cancel.run_id: cancel.reason for cancel in cancels}
    yield from cancelling(sorted(reasons), "cancelled with the run that waited for it", dialect, reasons=reasons)


def _cancelling_children(cancelled: Sequence[RunSettled], dialect: Dialect) -> Flow[None]:
    """Cancels what runs wait for that have cancelled themselves."""
    for change in cancelled:
        if children := [row[0] for row in (yield Call("children_of", {"ids": encoded([change.run_id])}))]:
            reason = "cancelled" if change.error is None else json.decode(change.error)["message"]
            yield from cancelling(children, reason, dialect)


def holding_waiting(runs: Sequence[str]) -> Flow[Waiting]:
    """Locks runs, and answers which of their steps wait for events and which events they have got."""
    yield Call("lock_to_wake", {"ids": encoded(runs)})
    rows = yield Call("waiting_steps", {"ids": encoded(runs)})
    waiting = {(run_id, step_id) for run_id, step_id, event_id in rows if event_id is None}
    return Waiting(waiting, {(run_id, event_id) for run_id, _, event_id in rows if event_id is not None})


def _meeting(waits: Sequence[WaitMet]) -> Flow[None]:
    """Gives events to the steps that wait for them."""
    yield Call("lock_to_wake", {"ids": encoded(sorted({wait.run_id for wait in waits}))})
    yield from _waking((yield Call("meet_waits", {"waits": encoded(waits)})))


def _waking(rows: Sequence[Row]) -> Flow[None]:
    if rows:
        yield Call("wake_runs", {"ids": encoded(sorted({row[0] for row in rows}))})


_LEDGER = {EventRecorded, EventParked, EventUnparked, CursorMoved}


def _areas(changes: Iterable[Change]) -> dict[type, list[Any]]:
    """Changes of a kind, in the order in which they were given."""
    areas: dict[type, list[Any]] = {}
    for change in changes:
        kind = type(change)
        if kind in areas:
            areas[kind].append(change)
        else:
            areas[kind] = [change]
    return areas


def _firing(changes: Sequence[Change], refused: frozenset[str], dialect: Dialect) -> Flow[Committed]:
    """Moves schedules, and inserts the runs of those that could be moved."""
    moves = sorted((change for change in changes if isinstance(change, ScheduleMoved)), key=lambda move: move.name)
    moved = {row[0] for row in (yield Call("move_schedules", {"moves": encoded(moves)}))}
    left_out = {run_id for move in moves if move.name not in moved for run_id in move.runs}
    inserted = [change for change in changes if isinstance(change, RunInserted) and change.id not in left_out]
    existing = (yield from dialect.inserting(inserted)) if inserted else {}
    return Committed(refused, existing, frozenset(move.name for move in moves) - moved)


def _completing(completed: list[RunCompleted], dialect: Dialect) -> Flow[frozenset[str]]:
    completed.sort(key=_run_id)
    held = yield from dialect.completing(completed)
    if len(held) == len(completed):
        return frozenset()
    return frozenset(change.run_id for change in completed).difference(held)


def _settling(areas: Mapping[type, list[Any]], refused: frozenset[str] = frozenset()) -> Flow[frozenset[str]]:
    """Settles what has ended otherwise, and does what follows for all whose fence held."""
    for kind, block, parameter in _FENCED_AREAS:
        if batch := areas.get(kind):
            batch.sort(key=_run_id)
            accepted = yield Call(block, {parameter: encoded(batch)})
            if len(accepted) < len(batch):
                refused |= {change.run_id for change in batch} - {row[0] for row in accepted}
    for kind, block, parameter in _FOLLOWING_AREAS:
        if batch := [change for change in areas.get(kind, ()) if change.run_id not in refused]:
            batch.sort(key=_run_id)
            yield Call(block, {parameter: encoded(batch)})
    return refused


_run_id = attrgetter("run_id")
_orphan: Callable[..., Orphan] = Orphan


_FENCED_AREAS: tuple[tuple[type[Fenced], str, str], ...] = (
    (RunStarted, "start_runs", "starts"),
    (RunSettled, "settle_runs", "settlements"),
)
"""Blocks that hold the fence: they return the runs for which it held."""

_FOLLOWING_AREAS: tuple[tuple[type[Fenced], str, str], ...] = (
    (KeyFreed, "free_keys", "freed"),
    (AttemptEnded, "add_attempts", "attempts"),
)
"""Blocks for what follows from a settlement, executed for the runs whose fence held."""


def single_statement(changes: Sequence[Change]) -> bool:
    """Whether the commit is one statement, which needs no transaction around it."""
    kinds = set(map(type, changes))
    if len(kinds) != 1 or kinds & _SEVERAL_STATEMENTS:
        return False
    if RunSettled not in kinds:
        return True
    return not any(isinstance(change, RunSettled) and change.state == State.CANCELLED for change in changes)


_SEVERAL_STATEMENTS = {ChildEnded, EndTold, WaitMet, CancelMet}


# --- claiming -------------------------------------------------------------------------------------------------------


def owned(queue: str, worker: str) -> Flow[list[tuple[str, int]]]:
    return [(row[0], row[1]) for row in (yield Call("owned_runs", {"queue": queue, "worker": worker}))]


def releasing(queue: str, limit: int) -> Flow[int]:
    return len((yield Call("release_due", {"queue": queue, "limit": limit})))


def looking_ahead(queue: str) -> Flow[float | None]:
    rows = yield Call("next_due", {"queue": queue})
    return max(0.0, rows[0][0]) if rows else None


# --- leases ---------------------------------------------------------------------------------------------------------


def registering(worker: str, *, name: str, queues: Mapping[str, int], lease: float) -> Flow[None]:
    yield Call("register_worker", {"worker": worker, "name": name, "queues": encoded(queues), "lease": lease})


def renewing(worker: str, *, stopping: bool) -> Flow[bool]:
    return bool((yield Call("renew_worker", {"worker": worker, "stopping": stopping})))


def retiring(worker: str) -> Flow[None]:
    yield Call("retire_worker", {"worker": worker})


def expired() -> Flow[dict[str, str]]:
    """Workers whose lease has run out → when they last renewed it."""
    return {row[0]: row[1] for row in (yield Call("expired_workers", {}))}


def burying(worker: str, renewed: str) -> Flow[bool]:
    """Declares a worker dead, unless it has renewed its lease since."""
    return bool((yield Call("bury_worker", {"worker": worker, "renewed": renewed})))


def rescuing(limit: int, dialect: Dialect) -> Flow[list[Orphan]]:
    rows = yield Call("lock_orphans", {"limit": limit})
    orphans = [_orphan(*row[:6], bool(row[6]), bool(row[7]), *row[8:]) for row in rows]  # SQLite has no booleans
    if orphans:
        changes = [change for orphan in orphans for change in rescue(orphan)]
        yield from _settling(_areas(changes))
        if ended := [change.run_id for change in changes if isinstance(change, KeyFreed)]:
            yield from _telling_parents(ended)
            yield from _telling(ended, dialect)
    return orphans


def cancelled_of(worker: str) -> Flow[dict[str, str]]:
    return {row[0]: row[1] or "cancelled" for row in (yield Call("cancelled_of", {"worker": worker}))}


# --- verbs of people ------------------------------------------------------------------------------------------------


class Cancellation(NamedTuple):
    """A run that was cancelled at once, or whose worker was asked to stop it."""

    id: str
    state: str
    worker: str | None


def cancelling(
    ids: Sequence[str],
    reason: str,
    dialect: Dialect,
    *,
    state: str | None = None,
    code: str = "cancelled",
    reasons: Mapping[str, str] | None = None,
) -> Flow[list[Cancellation]]:
    """`state`: only those that are still in it, and that nobody else is changing at the moment. `code`: why, in one
    word; what they wait for is cancelled with them. `reasons`: of those that have their own."""
    if state is not None:
        ids = yield from _still(state, ids)
    own = encoded(reasons) if reasons else None
    cancelled: list[Cancellation] = []
    while ids:
        rows = yield Call("cancel_runs", {"ids": encoded(ids), "reason": reason, "code": code, "reasons": own})
        cancelled += [Cancellation(row[0], row[1], row[2]) for row in rows]
        ids = [row[0] for row in (yield Call("children_of", {"ids": encoded(ids)}))] if rows else []
        code = "cancelled"
    if ended := [run.id for run in cancelled if run.state == "cancelled"]:
        freed = [{"run_id": run_id, "state": "cancelled"} for run_id in sorted(ended)]
        yield Call("free_keys", {"freed": encoded(freed)})
        yield from _telling_parents(ended)
        yield from _telling(ended, dialect)
    return cancelled


OVERDUE = {"start_timeout": "it had not started in time", "finish_timeout": "it had not ended in time"}
"""What is told of runs that are cancelled since they are late."""


def looking_for_overdue() -> Flow[float | None]:
    """Seconds until a run is overdue."""
    wait = (yield Call("next_overdue", {}))[0][0]
    return None if wait is None else max(0.0, wait)


def ending_overdue(limit: int, dialect: Dialect) -> Flow[list[Cancellation]]:
    """Cancels what has not started, or not ended, by its time."""
    late: dict[str, str] = {}
    for run_id, code in (yield Call("overdue", {"limit": limit})):
        late.setdefault(run_id, code)
    cancelled: list[Cancellation] = []
    for code, reason in OVERDUE.items():
        if ids := [run_id for run_id in late if late[run_id] == code]:
            cancelled += yield from cancelling(ids, reason, dialect, code=code)
    return cancelled


def retrying(ids: Sequence[str], *, state: str | None = None) -> Flow[dict[str, str]]:
    """Failed and cancelled runs back to ready → their queues."""
    if state is not None:
        ids = yield from _still(state, ids)
    yield Call("retake_keys", {"ids": encoded(ids)})
    rows = yield Call("retry_runs", {"ids": encoded(ids)})
    yield Call("forget_unfinished", {"ids": encoded([row[0] for row in rows])})
    return {row[0]: row[1] for row in rows}


def copying(run_id: str, *, copy: str, place: int) -> Flow[bool]:
    """A new run like one that has ended, which remembers what that had completed before a place; False if it has not
    ended."""
    copied = yield Call("copy_run", {"id": run_id, "copy": copy})
    if copied:
        yield Call("copy_steps", {"id": run_id, "copy": copy, "place": place})
    return bool(copied)


def purging(ids: Sequence[str], dialect: Dialect, *, state: str) -> Flow[list[str]]:
    """Deletes runs that are still in the state. The keys of ended ones were freed when they ended, as far as they ever
    are; waiting ones are cancelled first, so that their keys are freed and whoever waits for them is told."""
    if purged := (yield from _still(state, ids)):
        if state in ("held", "ready"):
            yield from cancelling(purged, "purged", dialect)
        yield Call("purge_runs", {"ids": encoded(purged)})
        yield Call("prune_attempts", {"ids": encoded(purged)})
        yield Call("prune_steps", {"ids": encoded(purged)})
    return purged


def _still(state: str, ids: Sequence[str]) -> Flow[list[str]]:
    return [row[0] for row in (yield Call("lock_runs", {"ids": encoded(ids), "state": state}))]


def pruning(state: str, *, keep: float, limit: int) -> Flow[int]:
    ids = [row[0] for row in (yield Call("prune_runs", {"state": state, "keep": keep, "limit": limit}))]
    if ids:
        yield Call("prune_attempts", {"ids": encoded(ids)})
        yield Call("prune_steps", {"ids": encoded(ids)})
    return len(ids)


def tidying() -> Flow[None]:
    yield Call("prune_keys", {"limit": 1000})
    yield Call("forget_workers", {})
    yield Call("forget_schedules", {})


def declaring(functions: Sequence[object], queues: Sequence[object]) -> Flow[None]:
    if functions:
        yield Call("declare_functions", {"functions": encoded(functions)})
    if queues:
        yield Call("declare_queues", {"queues": encoded(queues)})


def pausing(queue: str) -> Flow[bool]:
    return bool((yield Call("pause_queue", {"queue": queue})))


def resuming(queue: str) -> Flow[bool]:
    return bool((yield Call("resume_queue", {"queue": queue})))


# --- schedules ------------------------------------------------------------------------------------------------------


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


# --- drainers -------------------------------------------------------------------------------------------------------


def resetting_drainer(name: str, position: str) -> Flow[bool]:
    """Puts a drainer elsewhere, once nobody holds it; whether there is one of the name."""
    rows = yield Call("lock_drainer", {"name": name})
    for _, lineage in rows:
        yield Call("reset_drainer", {"name": name, "position": position, "lineage": lineage})
    return bool(rows)


def acknowledging(name: str, start: str, end: str, count: int) -> Flow[bool]:
    """Moves a drainer on, once nobody holds it, if it is still where its reader began."""
    rows = yield Call("lock_drainer", {"name": name})
    if not rows or rows[0][0] != start:
        return False
    yield Call("move_drainer", {"drainer": name, "position": end, "processed": count})
    return True


def holding_drainer(name: str) -> Flow[str | None]:
    """Keeps a drainer from passing on until the transaction ends; answers where it is."""
    rows = yield Call("lock_drainer", {"name": name})
    return rows[0][0] if rows else None


# --- subscriptions --------------------------------------------------------------------------------------------------


def declaring_subscriptions(subscriptions: Sequence[Subscription], modules: Sequence[str]) -> Flow[None]:
    yield Call("lock_subscriptions", {})
    if subscriptions:
        yield Call("declare_subscriptions", {"subscriptions": encoded(subscriptions)})
    if modules:
        names = encoded([subscription.name for subscription in subscriptions])
        yield Call("undeclare_subscriptions", {"names": names, "modules": encoded(modules)})


def adding_subscription(subscription: Subscription) -> Flow[bool]:
    """Whether there was none of the name."""
    yield Call("lock_subscriptions", {})
    if (yield Call("subscription_views", {"name": subscription.name})):
        return False
    yield Call("declare_subscriptions", {"subscriptions": encoded([subscription])})
    return True


def switching_subscription(name: str, *, enabled: bool) -> Flow[bool]:
    yield Call("lock_subscriptions", {})
    return bool((yield Call("switch_subscription", {"name": name, "enabled": enabled})))


def removing_subscription(name: str) -> Flow[bool]:
    yield Call("lock_subscriptions", {})
    removed = yield Call("remove_subscription", {"name": name})
    yield Call("forget_parked", {"name": name})
    return bool(removed)


def having_caught_up(name: str) -> Flow[None]:
    yield Call("lock_subscriptions", {})
    yield Call("caught_up", {"name": name})


def reading(block: str, **arguments: object) -> Flow[Sequence[Row]]:
    return (yield Call(block, arguments))
