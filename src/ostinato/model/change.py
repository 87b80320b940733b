"""What a commit can do, as values. Deciding produces changes; a store applies all of them or none.

A change that concerns a claimed run carries its `run_id` and `lease_no`: the fence. When the fence does not hold any
more, that change and the others of the same run are refused, and the rest of the batch goes on. The fence of a schedule
is the slot that it waits for; the runs that it starts go with it.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from .run import State


class Terms(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a function declares about its runs besides their queue and priority. Seconds count from when one is due."""

    start_timeout: float | None = None
    finish_timeout: float | None = None
    watched: bool = False
    """An event may cancel it."""
    declared: bool = False
    """As the database knows them: who asks for the run does not know its function."""


class RunInserted(Struct, frozen=True, omit_defaults=True, gc=False):
    """A new run. Times are given as an instant (ISO 8601) or as a delay from the database's now."""

    id: str
    function: str
    input: Raw
    queue: str | None = None
    run_at: str | None = None
    delay: float | None = None
    priority: int | None = 0
    """None: what its function declares, as the database knows."""
    key: str | None = None
    unique: str = "active"
    unique_for: float | None = None
    timeout: float | None = None
    metadata: Raw | None = None
    invoked_by: str = "api"
    trace: Raw | None = None
    parent_run: str | None = None
    parent_step: str | None = None
    """The run and the step that wait for it; it is inserted only if that step is saved."""
    terms: Terms | None = None
    force: bool = False
    """Whoever holds the key: it passes to this run."""
    uncapped: bool = False
    """However full its queue is."""


class RunCompleted(Struct, frozen=True, array_like=True, gc=False):
    """The handler returned `output`."""

    run_id: str
    lease_no: int
    output: Raw


class RunSettled(Struct, frozen=True, omit_defaults=True, gc=False):
    """The attempt ended in any other way: held for a retry, failed, cancelled or given back."""

    run_id: str
    lease_no: int
    state: State
    reason: str | None = None
    delay: float = 0.0
    error: Raw | None = None
    refund: int = 0
    """Attempts returned to the budget."""
    suspect: bool = False
    uncounted: int = 0
    suspended: tuple[str, ...] = ()
    """The steps that it waits for: held until the first of these goes on by itself, or something wakes it."""


class RunStarted(Struct, frozen=True, gc=False):
    """The handler is about to start, for sure. Written ahead where a second start is not allowed."""

    run_id: str
    lease_no: int


class AttemptEnded(Struct, frozen=True, omit_defaults=True, gc=False):
    """An attempt that did not end in completion, kept for people to read."""

    run_id: str
    lease_no: int
    attempt: int
    code: str
    message: str
    worker: str
    duration: float
    traceback: str | None = None


class KeyFreed(Struct, frozen=True, gc=False):
    """The run ended as `state`; its key may be taken again if its mode says so."""

    run_id: str
    lease_no: int
    state: State


class StepSaved(Struct, frozen=True, array_like=True, gc=False):
    """What is to be remembered of a step. One that has ended is never changed."""

    run_id: str
    lease_no: int
    id: str
    name: str
    place: int
    kind: str
    status: str
    duration: float
    """Seconds since it began."""
    input: str | None = None
    output: str | None = None
    error: str | None = None
    retry_count: int = 0
    delay: float | None = None
    """Seconds until a pending one goes on by itself."""
    child: str | None = None
    awaits: str | None = None
    wild: bool = False
    matches: str | None = None
    since: int | None = None
    event_id: str | None = None


class ChildEnded(Struct, frozen=True, gc=False):
    """The run has ended, and another waits for it."""

    run_id: str
    lease_no: int


class EndTold(Struct, frozen=True, gc=False):
    """The run has ended, and its function asks for that to be told: to the ledger, or to another function."""

    run_id: str
    lease_no: int


class CancelMet(Struct, frozen=True, gc=False):
    """The event came that cancels a run."""

    run_id: str
    reason: str


class WaitMet(Struct, frozen=True, gc=False):
    """The event came that a step waits for."""

    run_id: str
    step_id: str
    event_id: str
    output: str


class ScheduleMoved(Struct, frozen=True):
    """A schedule goes on from the slot it waited for, `expected`, to the next one. Moments are in microseconds."""

    name: str
    expression: str
    tz: str
    expected: int
    next_at: int
    last_slot: int | None = None
    last_run_id: str | None = None
    runs: tuple[str, ...] = ()
    """The runs of the same commit that stand for the slots, inserted only if the schedule is moved."""


class EventRecorded(Struct, frozen=True, omit_defaults=True, gc=False):
    """A new event."""

    id: str
    type: str
    payload: Raw
    entity_type: str | None = None
    entity_id: str | None = None
    caused_by: str | None = None
    run_id: str | None = None
    source: str | None = None
    occurred_at: str | None = None
    idempotency_key: str | None = None
    ordered: bool = False
    """Holds the entity's lock until the commit, so that whoever asks for the same comes after it in the ledger."""


class EventParked(Struct, frozen=True, omit_defaults=True, gc=False):
    """An event that a subscription could not be given, or one that waits behind such an event of the same entity."""

    subscription: str
    sequence_no: int
    event_id: str
    code: str
    message: str
    entity_type: str | None = None
    entity_id: str | None = None


class EventUnparked(Struct, frozen=True, gc=False):
    """An event that a subscription was given after all, or that nobody wants any more."""

    subscription: str
    sequence_no: int


class CursorMoved(Struct, frozen=True):
    """A drainer has dealt with events; only in the transaction that holds its row."""

    drainer: str
    position: str
    processed: int


Settlement = RunCompleted | RunSettled
Fenced = RunCompleted | RunSettled | RunStarted | AttemptEnded | KeyFreed | StepSaved | ChildEnded | EndTold
Ledger = EventRecorded | EventParked | EventUnparked | CursorMoved
Change = RunInserted | WaitMet | CancelMet | ScheduleMoved | Ledger | Fenced


class Committed(Struct, frozen=True):
    """What became of a commit."""

    refused: frozenset[str] = frozenset()
    """Runs whose fence did not hold: nothing of theirs was written."""
    existing: dict[str, str] = {}
    """For inserted runs whose key was taken: the id asked for → the run that holds the key."""
    unmoved: frozenset[str] = frozenset()
    """Schedules that others had moved, changed or paused: nothing of theirs was written."""
    recorded: dict[str, str] = {}
    """For events whose idempotency key was used before: the id asked for → the event that has the key."""
