"""Oban for Python, embedded as its "Ready for Production" guide has it.

- uvloop, as its command line uses it where it is installed; psycopg with its C part.
- The pool's default size, which the guide calls comfortable: jobs hold no connections ("Sizing the Connection Pool").
- A queue whose limit is the concurrency; fetching and acknowledging are batched by its producer, without a setting.
- Bulk: `enqueue_many`, whose own benchmark gives it 10,000 jobs per call; it is an `executemany` inside.

Completed jobs are kept for a day by default, and are counted.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import uvloop
from oban import Oban as Library
from oban import job
from oban.schema import install

from bench.contenders import Handler, Target
from bench.contenders.polling import until

QUEUE = "default"
COUNT = "select count(*) from oban_jobs where state = %s"
UNFINISHED = "select exists (select from oban_jobs where state in ('available', 'executing'))"

_handle: Handler


@job(queue=QUEUE)
async def noop(n: int) -> None:
    await _handle(n)


class Oban:
    """One pool for all; a client that only enqueues, and the worker beside it."""

    run = staticmethod(uvloop.run)

    def __init__(self, target: Target) -> None:
        self.target = target

    async def migrate(self) -> None:
        async with await Library.create_pool(self.target.url) as pool:
            await install(pool)

    async def __aenter__(self) -> Self:
        self._pool = await Library.create_pool(self.target.url)
        self._client = Library(pool=self._pool)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._pool.close()

    async def enqueue(self, n: int) -> None:
        await self._client.enqueue(noop.new(n))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._client.enqueue_many([noop.new(n) for n in numbers])

    async def work(self, handle: Handler) -> None:
        global _handle  # noqa: PLW0603  (its workers are found by their module's name)
        _handle = handle
        async with Library(pool=self._pool, queues={QUEUE: self.target.concurrency}, name="worker"):
            await asyncio.Event().wait()

    async def settled(self, count: int) -> None:
        await until(self._all_finished)

    async def waiting(self) -> int:
        return int(await self._ask(COUNT, "available"))

    async def completed(self) -> int:
        return int(await self._ask(COUNT, "completed"))

    async def _all_finished(self) -> bool:
        return not await self._ask(UNFINISHED)

    async def _ask(self, query: str, *arguments: str) -> Any:
        async with self._pool.connection() as connection:
            row = await (await connection.execute(query, arguments)).fetchone()
            return row[0]
