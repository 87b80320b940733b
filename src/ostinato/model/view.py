"""What people see of runs, workers and functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any

from msgspec import Struct

from .event import event_of
from .run import Reason, State
from .schedule import Cron, Missed, cron_of
from .step import Kind, Status, StepError


class RunError(Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    step: str | None = None
    """The step whose failure it was."""


class AttemptView(Struct, frozen=True):
    """An attempt that did not end in completion."""

    attempt: int
    lease_no: int
    worker: str
    code: str
    message: str
    started_at: datetime
    ended_at: datetime
    traceback: str | None = None


class RunView(Struct, frozen=True, kw_only=True):
    """A run as it stands in the database."""

    id: str
    function: str
    queue: str
    state: State
    reason: str | None = None
    priority: int = 0
    attempt: int = 0
    attempts_allowed: int | None = None
    lease_no: int = 0
    key: str | None = None
    invoked_by: str
    timeout: float | None = None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    start_by: datetime | None = None
    """When it is cancelled if it has not started,"""
    finish_by: datetime | None = None
    """or not ended."""
    cancel_requested: bool = False
    suspect: bool = False
    queue_paused: bool = False
    locked_by: str | None = None
    lease_expires_at: datetime | None = None
    input: Any = None
    output: Any = None
    error: RunError | None = None
    metadata: dict[str, Any] | None = None
    version: str | None = None
    """Of the function, when the run last started."""
    parent: str | None = None
    """The run that waits for it."""
    copied_from: str | None = None
    """The run whose first steps it was given."""
    pending_steps: int | None = None
    """How many of its steps have begun and not ended; None in lists, which do not count them."""
    attempts: list[AttemptView] = []

    @property
    def event_id(self) -> str | None:
        """The event that started it; None if something else did."""
        return event_of(self.invoked_by)

    @property
    def status(self) -> str:
        """The word for people: *pending* before the first start, *waiting* after it."""
        if self.state is State.READY:
            return "pending"
        if self.state is State.HELD:
            return "waiting" if self.started_at else "pending"
        return self.state.value

    @property
    def held_because(self) -> str | None:
        """Why it does not start, in one word; None when nothing holds it."""
        if self.state in (State.READY, State.HELD) and self.queue_paused:
            return Reason.PAUSED.value
        return self.reason


class StepView(Struct, frozen=True, kw_only=True):
    """A step of a run as it stands in the database."""

    id: str
    name: str
    index: int
    """Its place in the order of the first calls."""
    kind: Kind
    status: Status
    input: Any = None
    """Its arguments, as `[positional, named]`; the type and the condition of an event, the input of a run."""
    output: Any = None
    error: StepError | None = None
    retry_count: int = 0
    started_at: datetime
    ended_at: datetime | None = None
    wake_at: datetime | None = None
    """When a pending one goes on by itself."""
    child: str | None = None
    """The run that it has started."""
    awaits: str | None = None
    """The events that it waits for, a glob over types,"""
    matches: str | None = None
    """what it asks of them,"""
    since: datetime | None = None
    """and from when on."""
    event_id: str | None = None
    """The event that it got."""


def labels(steps: Sequence[StepView]) -> list[str]:
    """What the steps of a run are called: by their names, and from the second of a name on also by their number."""
    seen: Counter[str] = Counter()
    made = []
    for step in steps:
        seen[step.name] += 1
        made.append(step.name if seen[step.name] == 1 else f"{step.name}#{seen[step.name]}")
    return made


def step_named(wanted: str, steps: Sequence[StepView]) -> StepView | None:
    """The step of a label, or of an id. `fetch#1` is the same as `fetch`."""
    found: dict[str, StepView] = {}
    for label, step in zip(labels(steps), steps, strict=True):
        for name in (step.id, f"{label}#1", label):
            found.setdefault(name, step)
    return found.get(wanted)


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first. Ages are in seconds, since the run ended, or since it was created if it has
    not."""

    function: str | None = None
    queue: str | None = None
    state: State | None = None
    key: str | None = None
    code: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    before: str | None = None
    limit: int = 50


class Selection(Struct, frozen=True, kw_only=True):
    """Runs to do something with. The moments are microseconds since 1970 by the database's clock, so that what is
    selected stays the same while it is walked through: when a run ended, or was created if it has not ended."""

    function: str | None = None
    queue: str | None = None
    key: str | None = None
    code: str | None = None
    since: int = 0
    until: int


class BulkOutcome(Struct, frozen=True, kw_only=True):
    """What a verb has done to many runs, or in a dry run, would do."""

    count: int
    """Runs that it changed; in a dry run, those that match."""
    left: int = 0
    """Runs that match and could not be changed: another run holds the key, or somebody else has the row locked."""
    sample: list[str]
    """The first of them by their ids."""
    dry_run: bool = False


class RunCount(Struct, frozen=True):
    function: str
    queue: str
    state: State
    count: int


class WorkerView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    queues: dict[str, int]
    lease: float
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    stopping: bool
    dead_at: datetime | None = None
    alive: bool
    running: int


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue: what waits and runs in it, and who works on it."""

    name: str
    paused: bool = False
    max_waiting: int | None = None
    ready: int = 0
    held: int = 0
    running: int = 0
    longest_wait: float | None = None
    """Seconds that a ready run has waited for a worker, the longest of the hundred that come next."""
    slots: int = 0
    """How many runs the workers that are alive may execute at a time."""
    workers: int = 0


class EndedCount(Struct, frozen=True):
    """How many runs of a queue have ended in a state."""

    queue: str
    state: State
    count: int


class FailureView(Struct, frozen=True, kw_only=True):
    """A run that failed for good, in short."""

    id: str
    function: str
    queue: str
    attempt: int
    ended_at: datetime
    error: RunError | None = None


class Overview(Struct, frozen=True, kw_only=True):
    """Everything at a glance: what waits, what runs, who works, and what ended between two moments."""

    since: datetime
    until: datetime
    queues: list[QueueView]
    ended: list[EndedCount]
    workers: list[WorkerView]
    failures: list[FailureView]
    """The latest ones, however long ago."""
    counted_to: int
    """Where counts of waiting runs end: a queue that shows so many may have more."""

    @property
    def seconds(self) -> float:
        return (self.until - self.since).total_seconds()


class FunctionView(Struct, frozen=True, kw_only=True):
    name: str
    queue: str
    attempts: int
    timeout: float
    retry: Any = None
    input_schema: Any = None
    version: str | None = None
    priority: int = 0
    start_timeout: float | None = None
    finish_timeout: float | None = None
    lifecycle: list[str] | None = None
    """Which ends of its runs are recorded in the ledger."""
    on_failure: str | None = None
    cancel_on: Any = None
    declared_at: datetime


class ScheduleView(Struct, frozen=True, kw_only=True):
    name: str
    function: str
    queue: str | None = None
    expression: str
    tz: str
    missed: Missed
    catch_up: float
    jitter: float = 0.0
    priority: int = 0
    input: Any = None
    gives_slot: bool = False
    origin: str
    paused: bool = False
    declared: bool
    """Whether a worker that declares it lives, or did a moment ago: nobody else fires it."""
    next_at: datetime
    last_slot: datetime | None = None
    last_run_id: str | None = None
    last_state: State | None = None
    declared_at: datetime
    seen_at: datetime

    @property
    def cron(self) -> Cron:
        return cron_of(self.name, self.expression, self.tz)

    @property
    def state(self) -> str:
        """In one word: `active`, `paused`, or `undeclared` when no worker declares it any more."""
        if self.paused:
            return "paused"
        return "active" if self.declared else "undeclared"

    def upcoming(self, count: int) -> list[datetime]:
        """The next slots, in the schedule's own time; none while it does not fire."""
        if self.state != "active":
            return []
        slots = chain([self.next_at], self.cron.following(self.next_at))
        return [slot.astimezone(self.cron.zone) for slot in islice(slots, count)]


class SubscriptionView(Struct, frozen=True, kw_only=True):
    name: str
    glob: str
    function: str
    filter: str | None = None
    mapper: Any = None
    ordered: bool = False
    enabled: bool
    origin: str
    """`code module:name` where code declares it, `undeclared module:name` where code did; else `runtime`."""
    since_sequence: int
    since_at: datetime | None = None
    declared_at: datetime
    function_known: bool
    """Whether a worker has ever declared the function."""
    parked: int = 0

    @property
    def state(self) -> str:
        """In one word: `enabled` or `disabled`."""
        return "enabled" if self.enabled else "disabled"

    @property
    def declared_in_code(self) -> bool:
        """Whether a worker that starts declares it again."""
        return self.origin.startswith("code ")

    @property
    def is_left_over(self) -> bool:
        """Whether code declared it once, and does so no more."""
        return self.origin.startswith("undeclared ")


class Match(Struct, frozen=True, kw_only=True):
    """What an event would mean for a subscription whose glob means it."""

    subscription: str
    function: str
    outcome: str
    """`start`, `filtered`, `parked`, or `same run` when another subscription has started the function by then."""
    input: Any = None
    code: str | None = None
    message: str | None = None
