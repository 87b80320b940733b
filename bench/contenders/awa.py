"""awa (`awa-pg`), as its README and its own cross-system benchmark configure the Python client.

- Its queue storage, "install_queue_storage" for new databases, with its defaults for slots and rotation.
- A pool of 20 connections and `poll_interval_ms=50` (its repository: benchmarks/portable/awa-python-bench), and one
  queue rather than several, "use multi-queue for isolation … not for throughput" (docs/benchmarking).
- Bulk: `enqueue_many_copy`, "for high-volume Python producers" (README, "COPY ingestion"); it names no size of
  batches, and 10,000 was faster than the 500 of its benchmark.

Completed jobs are counted in its tables of terminal entries, and in its own count of those it has pruned.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import awa

from bench.contenders import Handler, Target
from bench.contenders.polling import until

QUEUE = "bench"
POOL_SIZE = 20
POLL_MILLISECONDS = 50

WAITING = "select count(*) as jobs from awa.ready_entries"
# What its view `terminal_jobs` unites, without the join to the inputs, for which a new table has no good plan; and what
# its maintenance has pruned, which it does to a slot once all of the slot's jobs have ended.
COMPLETED = """
select (select count(*) from awa.done_entries where state = 'completed')
    + coalesce((select sum(completed_count) from awa.receipt_completion_batches), 0)::bigint
    + coalesce((select sum(pruned_completed_count) from awa.queue_terminal_rollups), 0)::bigint as jobs
"""


@dataclass
class Noop:
    """The input of a job; its kind is the class's name."""

    n: int


class Awa:
    """One client, which is the producer, the worker and the observer."""

    def __init__(self, target: Target) -> None:
        self.target = target

    async def migrate(self) -> None:
        client = awa.AsyncClient(self.target.url)
        await client.migrate()
        await client.install_queue_storage()
        await client.close()

    async def __aenter__(self) -> Self:
        self._client = awa.AsyncClient(self.target.url, max_connections=POOL_SIZE)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def enqueue(self, n: int) -> None:
        await self._client.insert(Noop(n), queue=QUEUE)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._client.enqueue_many_copy([Noop(n) for n in numbers], queue=QUEUE)

    async def work(self, handle: Handler) -> None:
        @self._client.task(Noop, queue=QUEUE)
        async def noop(job: "awa.Job[Noop]") -> None:
            await handle(job.args.n)

        await self._client.start([(QUEUE, self.target.concurrency)], poll_interval_ms=POLL_MILLISECONDS)
        try:
            await asyncio.Event().wait()
        finally:
            await self._client.shutdown()

    async def settled(self, count: int) -> None:
        async def all_completed() -> bool:
            return await self._ask(COMPLETED) >= count

        await until(all_completed)

    async def waiting(self) -> int:
        return await self._ask(WAITING)

    async def completed(self) -> int:
        return await self._ask(COMPLETED)

    async def _ask(self, query: str) -> int:
        transaction: Any = await self._client.transaction()
        try:
            return int((await transaction.fetch_one(query))["jobs"])
        finally:
            await transaction.rollback()
