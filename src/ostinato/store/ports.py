"""What the engine may ask of a database. Every verb is atomic; there are no optional ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Raw, Struct

from ..errors import ConfigError
from ..model.change import Change, Committed
from ..model.diagnosis import FileFacts, MissingGrant, QueueHealth, ServerFacts, StrandedRuns
from ..model.drainer import DrainerView, ParkedView
from ..model.event import Event, Page, Place, Position, Subscription
from ..model.history import EventCount, EventFilter, EventLink, RunLink
from ..model.run import Claimed, Mark, Orphan, State
from ..model.schedule import Planned, Schedule
from ..model.view import (
    EndedCount,
    FailureView,
    FunctionView,
    QueueView,
    RunCount,
    RunFilter,
    RunView,
    ScheduleView,
    Selection,
    SubscriptionView,
    WorkerView,
)
from .flows import Cancellation, Flow
from .sql import Block

T = TypeVar("T")

# --- values ---------------------------------------------------------------------------------------------------------


class Fence(NamedTuple):
    """What the database knows of a run whose settlement was refused."""

    lease_no: int
    state: str
    cancel_requested: bool
    message: str | None


class Ended(NamedTuple):
    """What became of a run."""

    state: str
    output: str | None
    error: str | None


class DeclaredFunction(Struct, frozen=True):
    """A function as other processes, SQL and people see it."""

    name: str
    queue: str
    attempts: int
    timeout: float
    retry: Raw
    input_schema: Raw | None = None
    version: str | None = None
    priority: int = 0


class DeclaredQueue(Struct, frozen=True):
    """A queue's settings that the database enforces."""

    name: str
    max_waiting: int | None = None


class DeclaredDrainer(Struct, frozen=True):
    """A drainer as its code declares it, and where it begins if it is new."""

    name: str
    glob: str
    origin: str
    position: str


# --- signals --------------------------------------------------------------------------------------------------------


class Rung(Struct, frozen=True):
    """Runs may be ready in this queue; in any queue, when it is None."""

    queue: str | None


class RunsEnded(Struct, frozen=True):
    """These runs have ended; any may have, when it is None."""

    ids: tuple[str, ...] | None


class CancelAsked(Struct, frozen=True):
    """Somebody wants a running run stopped."""


class SchedulesChanged(Struct, frozen=True):
    """Somebody declared, paused or resumed schedules."""


class EventsRecorded(Struct, frozen=True):
    """There may be new events in the ledger."""


class ListenerChanged(Struct, frozen=True):
    """Wake-ups work again (everything armed is to be armed anew, and what was missed is to be looked for), or do
    not."""

    working: bool
    why: str


Signal = Rung | RunsEnded | CancelAsked | SchedulesChanged | EventsRecorded | ListenerChanged

RESULTS = "r"
"""The topic of those who wait for results."""

LEDGER = "e"
"""The topic of those who wait for events."""


def queue_topic(queue: str) -> str:
    return f"q:{queue}"


class Listener(Protocol):
    """A process's ear. Signals are only wake-ups: any of them may be lost, and polling is the truth."""

    @property
    def working(self) -> bool:
        """Whether signals arrive, as far as is known."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def arm(self, topic: str) -> bool:
        """Asks for signals about a topic from now on; asking again is harmless.

        Answers whether everything that began before the arming has ended by now. Until it has, its commits may
        come without a signal, and the caller looks for itself. Look *after* this answered, then wait.
        """

    async def disarm(self, topic: str) -> None: ...


# --- the store ------------------------------------------------------------------------------------------------------


class Transaction(Protocol):
    """An open transaction of ours: the user's statements and our changes, committed together."""

    async def execute(self, sql: str, *args: Any) -> int:
        """Executes one statement and answers how many rows it concerned."""

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]: ...

    async def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None: ...

    async def fetchval(self, sql: str, *args: Any) -> Any: ...

    async def apply(self, changes: Sequence[Change]) -> Committed:
        """Applies changes inside the transaction."""

    async def ask(self, flow: Flow[T]) -> T:
        """Executes a flow inside the transaction."""

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class Caller(Protocol):
    """A user's own connection with an open transaction, whatever the driver."""

    dialect: str
    is_async: bool
    """Whether it belongs to an event loop. One that does not is used inline, and its `drive` awaits nothing."""

    async def drive(self, flow: Flow[T], blocks: Mapping[str, Block]) -> T:
        """Executes a flow inside the caller's transaction. Refuses a connection that has none open."""

    async def driver(self) -> object:
        """The driver's own connection, without what a library has put around it."""

    def underlying(self, error: BaseException) -> BaseException:
        """What the driver raised, without what a library has put around it."""


def refuse_other_dialect(caller: Caller, dialect: str) -> None:
    if caller.dialect != dialect:
        raise ConfigError(f"conn= is a {caller.dialect} connection, but the app's database is {dialect}")


class Commits(Protocol):
    async def commit(self, changes: Sequence[Change]) -> Committed:
        """Applies all changes or none; those of a run whose fence does not hold are refused and named."""

    def begin(self, *, limit: float | None = None) -> AbstractAsyncContextManager[Transaction]:
        """A transaction, rolled back on leaving unless it was committed. `limit`: seconds it may last, where that
        matters."""

    async def apply_on(self, caller: Caller, changes: Sequence[Change]) -> Committed:
        """Applies changes in the caller's own open transaction."""

    async def fences(self, ids: Sequence[str]) -> dict[str, Fence]: ...


class Claims(Protocol):
    @property
    def works_aside(self) -> bool:
        """Whether the database works while Python does: then claiming in halves keeps both busy, else in wholes."""

    async def claim(self, queue: str, limit: int, *, worker: str, mark: Mark) -> list[Claimed]:
        """Takes at most `limit` ready runs, in order, for a live worker."""

    async def claim_suspect(self, queue: str, *, worker: str) -> Claimed | None:
        """Takes one run whose last worker died."""

    async def owned(self, queue: str, *, worker: str) -> list[tuple[str, int]]:
        """The running runs of a worker in a queue, by id and lease: also those of a claim whose answer was lost."""

    async def release_due(self, queue: str, limit: int) -> int:
        """Makes held runs ready whose time has come; answers how many."""

    async def next_due(self, queue: str) -> float | None:
        """Seconds until the next held run of the queue is due."""

    async def ring(self, queue: str) -> None:
        """Wakes the workers that sleep on a queue."""


class Leases(Protocol):
    async def register(self, worker: str, *, name: str, queues: Mapping[str, int], lease: float) -> None: ...

    async def renew(self, worker: str, *, stopping: bool) -> bool:
        """Whether the worker is still the owner of what it claimed."""

    async def retire(self, worker: str) -> None: ...

    async def expired(self) -> dict[str, str]:
        """Workers whose lease has run out → their last renewal, to be given to `bury`."""

    async def bury(self, worker: str, renewed: str) -> bool:
        """Declares a worker dead, unless it has renewed its lease since."""

    async def rescue(self, limit: int) -> list[Orphan]:
        """Takes runs away from workers declared dead."""

    async def cancelled_of(self, worker: str) -> dict[str, str]:
        """The worker's running runs that somebody wants stopped, and why."""


class Verbs(Protocol):
    async def cancel(self, ids: Sequence[str], reason: str, *, state: State | None = None) -> list[Cancellation]:
        """Ends what waits and asks for what runs to be stopped; with `state`, only what is still in it."""

    async def retry(self, ids: Sequence[str], *, state: State | None = None) -> dict[str, str]: ...

    async def purge(self, ids: Sequence[str], *, state: State) -> list[str]:
        """Deletes runs that are still in the state, with their attempts; answers those that it deleted."""

    async def pause(self, queue: str) -> bool:
        """Stops claims from a queue, which need not be known yet; False when it was paused already."""

    async def resume(self, queue: str) -> bool:
        """Lets claims go on and wakes who sleeps on the queue; False when it was not paused."""

    async def prune(self, state: str, *, keep: float, limit: int) -> int: ...

    async def prune_events(self, *, keep: float, keep_unread: float | None, passed: int, limit: int) -> Sequence[int]:
        """Removes the oldest events after the number `passed`, up to the first that is younger than `keep` seconds, or
        that a drainer has not read and that is younger than `keep_unread` (None: whatever its age). Those that are
        parked stay. Answers the numbers of those that are gone, in order."""

    async def tidy(self) -> None:
        """Removes what nobody needs: keys past their time, workers long dead."""

    async def declare(self, functions: Sequence[DeclaredFunction], queues: Sequence[DeclaredQueue]) -> None: ...


class Views(Protocol):
    """Reads for people and for those who wait."""

    async def run(self, run_id: str) -> RunView | None: ...

    async def runs(self, where: RunFilter) -> list[RunView]: ...

    async def counts(self) -> list[RunCount]: ...

    async def depths(self) -> dict[str, int]:
        """How many runs of each function could start now: ready, or held and due."""

    async def outcomes(self, ids: Sequence[str]) -> dict[str, Ended]: ...

    async def existing(self, ids: Sequence[str]) -> set[str]: ...

    async def workers(self, *, dead: bool = False) -> list[WorkerView]: ...

    async def schedules(self, name: str | None = None) -> list[ScheduleView]:
        """All schedules, or the one of that name."""

    async def subscriptions_version(self) -> tuple[int, int]:
        """Something that changes whenever a subscription does."""

    async def subscriptions(self) -> list[Subscription]: ...

    async def subscription_views(self, name: str | None = None) -> list[SubscriptionView]:
        """All subscriptions, or the one of that name."""

    async def events(self, ids: Sequence[str]) -> list[Event]:
        """Those of these events that are there."""

    async def recent_events(self, where: EventFilter) -> list[Event]:
        """Events that match, the latest first."""

    async def event_counts(self) -> list[EventCount]:
        """How many events there are, by type and source."""

    async def event_links(
        self, *, ids: Sequence[str] = (), causes: Sequence[str] = (), runs: Sequence[str] = ()
    ) -> list[EventLink]:
        """Events by their ids, by what caused them, and by the runs that recorded them."""

    async def run_links(self, *, ids: Sequence[str] = (), reasons: Sequence[str] = ()) -> list[RunLink]:
        """Runs by their ids, and by how they were invoked: by an event, or by a run."""

    async def parked_entities(self, subscriptions: Sequence[str]) -> set[tuple[str, tuple[str, str]]]:
        """The entities of which these subscriptions have events parked."""

    async def drainers(self, name: str | None = None, *, count_to: int) -> list[DrainerView]:
        """All drainers, or the one of that name. Counts of what they have not read end at `count_to`."""

    async def parked(
        self, subscription: str | None = None, event: str | None = None, *, limit: int
    ) -> list[ParkedView]:
        """What is parked, in order; for one subscription, or one event."""

    async def functions(self) -> list[FunctionView]: ...

    async def function_names(self) -> list[str]: ...

    async def queue_names(self) -> list[str]:
        """Queues that a worker, a function, or a run that has not ended names, or that have a row of their own."""

    async def queues(self, names: Sequence[str], *, count_to: int) -> list[QueueView]:
        """These queues by name, whether they are known or not. Counts of what waits end at `count_to`."""

    async def moment(self) -> int:
        """Microseconds since 1970, by the database's clock."""

    async def ended_lately(self, since: int, until: int, *, limit: int) -> list[EndedCount]:
        """Runs that have ended between two moments, at most `limit` of each state."""

    async def latest_failures(self, limit: int) -> list[FailureView]: ...

    def matching(self, state: State, where: Selection, *, limit: int) -> AsyncGenerator[list[str], None]:
        """The ids of runs in a state that match, in pages of those among `limit` runs."""


class Schedules(Protocol):
    """When functions are to be started. That they are is a commit like any other."""

    async def declare_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Writes down what a starting worker declares. What an operator paused stays so."""

    async def keep_schedules(self, names: Sequence[str]) -> None:
        """Says that a worker still declares them."""

    async def planned(self, names: Sequence[str], limit: int) -> list[Planned]:
        """Those of these schedules that are not paused, the next due first, with the database's time."""

    async def pause_schedule(self, name: str) -> bool:
        """Stops a schedule from firing; False when there is none of the name."""

    async def resume_schedule(self, name: str) -> bool:
        """Lets a paused schedule go on from its next slot; False when there is none of the name."""


class Pass(NamedTuple):
    """A drainer that is ours until its transaction ends, and what it is to deal with next."""

    transaction: Transaction
    page: Page


class Ledger(Protocol):
    """Reading events in order. That they are recorded, and that a drainer moves on, are changes of commits."""

    def draining(self, name: str, limit: int) -> AbstractAsyncContextManager[Pass | None]:
        """The next events of a drainer in a transaction that holds it; None if another process holds it. Whoever
        commits the transaction moves the drainer in it."""

    async def undrained(self, name: str) -> bool:
        """Whether there is something to read for a drainer."""

    async def halt(self, name: str, *, event: str | None, error: str, delay: float) -> None:
        """Notes that a drainer could not go on, and when it tries again."""

    async def declare_drainers(self, drainers: Sequence[DeclaredDrainer]) -> None:
        """Writes down what a starting worker declares. A drainer that is there keeps its position."""

    async def declare_subscriptions(self, subscriptions: Sequence[Subscription], modules: Sequence[str] = ()) -> None:
        """Writes down what a starting worker declares. What an operator has switched off stays off. Others that code of
        the same modules had declared are noted as left over."""

    async def add_subscription(self, subscription: Subscription) -> bool:
        """False when there is one of the name."""

    async def switch_subscription(self, name: str, *, enabled: bool) -> bool:
        """False when it is so already, or there is none of the name."""

    async def remove_subscription(self, name: str) -> bool:
        """Removes a subscription and what is parked for it; False when there is none of the name."""

    async def caught_up(self, subscription: str) -> None:
        """Notes that it was given what was in the ledger when it came."""

    async def knows_drainer(self, name: str) -> bool: ...

    async def hold_drainer(self, transaction: Transaction, name: str) -> str | None:
        """Waits until nobody has the drainer, and keeps it from passing on until the transaction ends; answers where it
        is, as it is stored."""

    async def reset_drainer(self, name: str, position: Position) -> bool:
        """Puts a drainer elsewhere and wakes who drains; False when there is none of the name."""

    async def acknowledge(self, name: str, *, start: str, end: str, count: int) -> bool:
        """Moves a drainer on; False when it is not where its reader began any more."""

    async def remove_drainer(self, name: str) -> bool:
        """Forgets a drainer and how far it was; False when there is none of the name."""

    async def blocked(self, transaction: Transaction, subscriptions: Sequence[str]) -> set[tuple[str, tuple[str, str]]]:
        """The entities of which these subscriptions have events parked, as the transaction sees it."""

    async def parked_chain(
        self, transaction: Transaction, subscription: str, event: str, entity: tuple[str, str] | None
    ) -> list[Event]:
        """A parked event in its order among those of the entity that are parked too, if one is given."""

    async def lag(self, position: Position, limit: int) -> int:
        """How many events come after a position, counted to a limit."""

    async def position_at(self, since: int) -> Position:
        """The position before the first event that was recorded from a moment on, in microseconds since 1970."""

    async def recorded(self, last: int, end: int, *, since: int, until: int, limit: int) -> list[Event]:
        """Events by number after `last` up to `end`, of those recorded between two moments."""

    async def place(self) -> Place:
        """Where the ledger is now."""

    async def read_on(self, position: Position, limit: int) -> Page:
        """The next events for one who keeps the position himself."""


class Store(Commits, Claims, Leases, Verbs, Schedules, Ledger, Protocol):
    """A database."""

    @property
    def views(self) -> Views: ...

    async def open(self) -> None:
        """Connects, and makes sure that the schema is there."""

    async def warm_up(self) -> None:
        """Opens what a worker will need, so that its first runs do not wait for connections."""

    async def close(self) -> None: ...

    def migrations(self) -> Migrations: ...

    def diagnosis(self) -> Diagnosis: ...

    def listener(self, on_signal: Callable[[Signal], None]) -> Listener: ...

    def keeper(self) -> AbstractAsyncContextManager[Leases]:
        """The leases through a connection of its own, for the event loop of the keeper's thread."""


class Diagnosis(Protocol):
    """What a doctor may ask. The first two need none of our tables, so they answer before there are any."""

    async def database(self, *, long_transaction: float) -> ServerFacts | FileFacts:
        """What the database says of itself; transactions of others are told that last longer than so many seconds."""

    async def missing_grants(self) -> list[MissingGrant] | None:
        """What roles lack; None where there are none."""

    async def now(self) -> float:
        """The database's clock, in seconds since 1970."""

    async def queues(self) -> list[QueueHealth]: ...

    async def stranded(self) -> list[StrandedRuns]: ...

    async def undeclared(self) -> dict[str, int]:
        """Functions that waiting runs name and nobody has declared → how many runs."""

    async def forget(self, *, runs: Sequence[str], function: str, queue: str, worker: str | None) -> None:
        """Removes every trace of a self-test."""


class Migrations(Protocol):
    """The schema's numbered steps."""

    @property
    def automatic(self) -> bool:
        """Whether opening the database applies what is missing."""

    def grants(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> str:
        """The SQL that gives roles what they need, where there are roles."""

    async def grant(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> None:
        """Gives roles what they need; again after a migration that adds something."""

    async def up(self) -> list[str]:
        """Applies what is missing; answers the names of what it applied."""

    async def status(self) -> list[MigrationView]: ...

    async def verify(self) -> list[str]:
        """Differences between what was applied and what this version ships, in words."""

    def sql(self) -> str:
        """Everything as one script, for people who apply it with their own tools."""


class MigrationView(Struct, frozen=True):
    version: int
    name: str
    applied_at: str | None
    checksum_matches: bool | None
