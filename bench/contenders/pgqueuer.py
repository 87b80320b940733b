"""PgQueuer, as its "Performance Tuning" guide and its own benchmark have it.

- asyncpg, and uvloop as its command line uses it where it is installed (pgqueuer-docs: comparisons/benchmarks).
- The autovacuum settings of `pgq autovac`, durable tables (guides/performance-tuning, "Quick-Reference Checklist").
- A connection of its own for the worker, not a pool (the same, "Use a dedicated connection for LISTEN").
- A large `batch_size` for short jobs (the same, "Batch Size"): the concurrency of the others. Completions are flushed
  in batches of that size too. `max_concurrent_tasks` stays unset, its default: with a bound it was slower in trials.
- Bulk: `enqueue` with lists, one statement per call; no size of batches is named, and
  1,000 did a little better than 10,000 in trials.

A completed job is deleted from its queue and noted in its log, which is what is counted.
"""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Self

import asyncpg
import uvloop
from pgqueuer import PgQueuer as Library
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.contenders import Handler, Target
from bench.contenders.polling import until

ENTRYPOINT = "noop"
WAITING = "select count(*) from pgqueuer where status = 'queued'"
COMPLETED = "select count(*) from pgqueuer_log where status = 'successful'"


class PgQueuer:
    """One connection for producing, one for the worker, one for looking."""

    run = staticmethod(uvloop.run)

    def __init__(self, target: Target) -> None:
        self.target = target
        self._stack = AsyncExitStack()

    async def migrate(self) -> None:
        async with self._stack:
            queries = await self._open()
            await queries.install()
            await queries.optimize_autovacuum()

    async def __aenter__(self) -> Self:
        self._queries = await self._open()
        self._observer = await self._connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def enqueue(self, n: int) -> None:
        await self._queries.enqueue(ENTRYPOINT, _encoded(n))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        count = len(numbers)
        await self._queries.enqueue([ENTRYPOINT] * count, [_encoded(n) for n in numbers], [0] * count)

    async def work(self, handle: Handler) -> None:
        worker = Library(AsyncpgDriver(await self._connect()))

        @worker.entrypoint(ENTRYPOINT)
        async def noop(job: Job) -> None:
            assert job.payload is not None
            await handle(json.loads(job.payload)["n"])

        await worker.run(batch_size=self.target.concurrency)

    async def settled(self, count: int) -> None:
        await until(self._queue_is_empty)

    async def waiting(self) -> int:
        return int(await self._observer.fetchval(WAITING))

    async def completed(self) -> int:
        return int(await self._observer.fetchval(COMPLETED))

    async def _queue_is_empty(self) -> bool:
        return bool(await self._observer.fetchval("select not exists (select from pgqueuer)"))

    async def _open(self) -> Queries:
        return Queries(AsyncpgDriver(await self._connect()))

    async def _connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        connection = await asyncpg.connect(self.target.url)
        self._stack.push_async_callback(connection.close)
        return connection


def _encoded(n: int) -> bytes:
    return json.dumps({"n": n}).encode()
