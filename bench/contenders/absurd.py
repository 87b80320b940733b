"""Absurd: an asynchronous task with steps, spawned by its client; the SQL that it is made of comes with `absurdctl`.

- `AsyncAbsurd.start_worker(concurrency=…)`, which is how its documentation starts a worker (docs/sdks/python). The
  example there has a concurrency of 4. Of 1, 4, 10, 20, 50 and 100, tried three times each on a busy machine, 20 and
  50 were the fastest in two of the three rounds, and alike; 20 is taken.
- A client has one connection, on which the statements of all its tasks queue up. Several clients in one process, which
  the documentation does not show, were two to four times as fast in two short rounds on a very busy machine. They are
  not what is measured.
- A claim takes as many tasks as the concurrency says, and the next follows when all of them have ended. It polls
  every 0.25 s when there is nothing to claim, which is its default.
- No bulk call exists. Many tasks are spawned on a connection of ours, one commit per batch, which saves the commits and
  not the statements.
- The queue is not partitioned, which is the default.

Rows of finished tasks, and the checkpoints of their steps, are kept.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from psycopg import AsyncConnection

from bench.contenders import Handler, Target
from bench.contenders.polling import until
from bench.workflows import STEPS

QUEUE = "default"
TASK = "noop"
CONCURRENCY = 20
COUNT = "select count(*) from absurd.t_default where state = %s"
UNFINISHED = "select exists (select from absurd.t_default where state in ('pending', 'running', 'sleeping'))"


class AbsurdWorkflows:
    """A connection for spawning and looking; the worker's client has its own."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._stack = AsyncExitStack()

    async def migrate(self) -> None:
        async with self:
            await self._connection.execute(BUNDLED_SCHEMA_SQL)
            await self._client.create_queue(QUEUE)

    async def __aenter__(self) -> Self:
        self._connection = await AsyncConnection.connect(self.target.url, autocommit=True)
        self._stack.push_async_callback(self._connection.close)
        self._client = AsyncAbsurd(self._connection, queue_name=QUEUE)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def enqueue(self, n: int) -> None:
        await self._client.spawn(TASK, {"n": n}, queue=QUEUE)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        async with self._connection.transaction():
            for n in numbers:
                await self.enqueue(n)

    async def work(self, handle: Handler) -> None:
        worker = AsyncAbsurd(self.target.url, queue_name=QUEUE)
        self._stack.push_async_callback(worker.close)

        @worker.register_task(TASK)
        async def steps(params: Any, ctx: Any) -> None:
            async def step() -> None:
                await handle(params["n"])

            for name in STEPS:
                await ctx.step(name, step)

        await worker.start_worker(concurrency=CONCURRENCY)

    async def settled(self, count: int) -> None:
        await until(self._all_finished)

    async def waiting(self) -> int:
        return int(await self._ask(COUNT, "pending"))

    async def completed(self) -> int:
        return int(await self._ask(COUNT, "completed"))

    async def steps_completed(self) -> int:
        return int(await self._ask("select count(*) from absurd.c_default where status = 'committed'"))

    async def _all_finished(self) -> bool:
        return not await self._ask(UNFINISHED)

    async def _ask(self, query: str, *arguments: object) -> Any:
        row = await (await self._connection.execute(query, arguments or None)).fetchone()
        return row[0] if row else None
