"""What the engine may ask of a database. Every verb is atomic; there are no optional ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Raw, Struct

from ..errors import ConfigError
from ..model.change import Change, Committed
from ..model.run import Claimed, Mark, Orphan
from ..model.view import FunctionView, RunCount, RunFilter, RunView, WorkerView
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


class DeclaredQueue(Struct, frozen=True):
    """A queue's settings that the database enforces."""

    name: str
    max_waiting: int | None = None


# --- signals --------------------------------------------------------------------------------------------------------


class Rung(Struct, frozen=True):
    """Runs may be ready in this queue; in any queue, when it is None."""

    queue: str | None


class RunsEnded(Struct, frozen=True):
    """These runs have ended; any may have, when it is None."""

    ids: tuple[str, ...] | None


class CancelAsked(Struct, frozen=True):
    """Somebody wants a running run stopped."""


class ListenerChanged(Struct, frozen=True):
    """Wake-ups work again (everything armed is to be armed anew, and what was missed is to be looked for), or do
    not."""

    working: bool
    why: str


Signal = Rung | RunsEnded | CancelAsked | ListenerChanged

RESULTS = "r"
"""The topic of those who wait for results."""


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

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class Caller(Protocol):
    """A user's own connection with an open transaction, whatever the driver."""

    dialect: str
    is_async: bool
    """Whether it belongs to an event loop. One that does not is used inline, and its `drive` awaits nothing."""

    async def drive(self, flow: Flow[T], blocks: Mapping[str, Block]) -> T:
        """Executes a flow inside the caller's transaction."""


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
    async def cancel(self, ids: Sequence[str], reason: str) -> list[Cancellation]: ...

    async def retry(self, ids: Sequence[str]) -> dict[str, str]: ...

    async def prune(self, state: str, *, keep: float, limit: int) -> int: ...

    async def tidy(self) -> None:
        """Removes what nobody needs: keys past their time, workers long dead."""

    async def declare(self, functions: Sequence[DeclaredFunction], queues: Sequence[DeclaredQueue]) -> None: ...


class Views(Protocol):
    """Reads for people and for those who wait."""

    async def run(self, run_id: str) -> RunView | None: ...

    async def runs(self, where: RunFilter) -> list[RunView]: ...

    async def counts(self) -> list[RunCount]: ...

    async def outcomes(self, ids: Sequence[str]) -> dict[str, Ended]: ...

    async def existing(self, ids: Sequence[str]) -> set[str]: ...

    async def workers(self, *, dead: bool = False) -> list[WorkerView]: ...

    async def functions(self) -> list[FunctionView]: ...

    async def function_names(self) -> list[str]: ...


class Store(Commits, Claims, Leases, Verbs, Protocol):
    """A database."""

    @property
    def views(self) -> Views: ...

    async def open(self) -> None:
        """Connects, and makes sure that the schema is there."""

    async def close(self) -> None: ...

    def migrations(self) -> Migrations: ...

    def listener(self, on_signal: Callable[[Signal], None]) -> Listener: ...

    def keeper(self) -> AbstractAsyncContextManager[Leases]:
        """The leases through a connection of its own, for the event loop of the keeper's thread."""


class Migrations(Protocol):
    """The schema's numbered steps."""

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
