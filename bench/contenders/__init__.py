"""Who is measured. A contender is one file with one class and a line in `CONTENDERS`; see `bench.peers` for peers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, Self, cast

StoreName = Literal["postgres", "sqlite"]
Handler = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Target:
    """The database that a contender works on, and the few settings that measures vary."""

    url: str
    concurrency: int = 500
    wake_ups: bool = True
    poll_seconds: float = 30.0


class Contender(Protocol):
    """One way to queue and run jobs, as seen from one process.

    Every job carries the input `{"n": n}`, encoded and decoded by the contender, and everything is durable:
    `enqueue` and `enqueue_many` return after the commit, and `settled` waits for the commit of completions.
    Up to `target.concurrency` jobs run at a time. A class may have a `run`, like `asyncio.run`, for another event loop.
    """

    def __init__(self, target: Target) -> None: ...

    async def migrate(self) -> None:
        """Create the tables in an empty database; called on a contender that is not open."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def enqueue(self, n: int) -> None: ...

    async def enqueue_many(self, numbers: Sequence[int]) -> None: ...

    async def work(self, handle: Handler) -> None:
        """Run jobs until cancelled, awaiting `handle(n)` for each in an asyncio task of its own."""

    async def settled(self, count: int) -> None:
        """Return as soon as this worker has `count` jobs durably completed; costs nothing while the jobs run."""

    async def waiting(self) -> int:
        """Count the jobs in the database that wait to be run: the check after enqueueing."""

    async def completed(self) -> int:
        """Count the completed jobs in the database: the check after the clock has stopped."""


CONTENDERS: dict[tuple[str, StoreName], str] = {
    ("ostinato", "postgres"): "bench.contenders.ostinato:Ostinato",
    ("ostinato", "sqlite"): "bench.contenders.ostinato:Ostinato",
    ("bare", "postgres"): "bench.contenders.bare_postgres:BarePostgres",
    ("bare", "sqlite"): "bench.contenders.bare_sqlite:BareSqlite",
    ("bare-json", "postgres"): "bench.contenders.bare_postgres:BarePostgresJson",
    ("bare-json", "sqlite"): "bench.contenders.bare_sqlite:BareSqliteJson",
    ("ostinato-ledger", "postgres"): "bench.contenders.ostinato_ledger:OstinatoLedger",
    ("ostinato-ledger", "sqlite"): "bench.contenders.ostinato_ledger:OstinatoLedger",
    ("bare-events", "postgres"): "bench.contenders.bare_events:BarePostgresEvents",
    ("bare-events", "sqlite"): "bench.contenders.bare_events:BareSqliteEvents",
    ("ostinato-workflows", "postgres"): "bench.contenders.ostinato_workflows:OstinatoWorkflows",
    ("ostinato-workflows", "sqlite"): "bench.contenders.ostinato_workflows:OstinatoWorkflows",
    ("ostinato-sleepers", "postgres"): "bench.contenders.ostinato_sleepers:OstinatoSleepers",
    ("ostinato-sleepers", "sqlite"): "bench.contenders.ostinato_sleepers:OstinatoSleepers",
    ("bare-workflows", "postgres"): "bench.contenders.bare_workflows:BarePostgresWorkflows",
    ("bare-workflows", "sqlite"): "bench.contenders.bare_workflows:BareSqliteWorkflows",
    ("pgqueuer", "postgres"): "bench.contenders.pgqueuer:PgQueuer",
    ("procrastinate", "postgres"): "bench.contenders.procrastinate:Procrastinate",
    ("dbos", "postgres"): "bench.contenders.dbos:Dbos",
    ("dbos-workflows", "postgres"): "bench.contenders.dbos:DbosWorkflows",
    ("absurd-workflows", "postgres"): "bench.contenders.absurd:AbsurdWorkflows",
    ("awa", "postgres"): "bench.contenders.awa:Awa",
    ("oban", "postgres"): "bench.contenders.oban:Oban",
}


def contender(name: str, store: StoreName) -> type[Contender]:
    """Import the class only in the process that measures it, so that memory figures hold nothing of the others."""
    module, _, attribute = CONTENDERS[name, store].partition(":")
    return cast(type[Contender], getattr(import_module(module), attribute))
