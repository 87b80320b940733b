"""DBOS: an asynchronous workflow on a queue, without steps or with them, enqueued from outside by its client.

- `DBOSClient.enqueue` for a process that only enqueues (docs.dbos.dev: python/reference/client). It is
  synchronous inside; its asynchronous form is the same in a thread, which is slower when calls come one by one.
- No bulk call exists. Many workflows are enqueued by `enqueue_in_transaction`, one commit per batch
  (the same page), which saves the commits and not the statements.
- A queue with no limit of concurrency, which is the default (python/reference/queues). A limit would throttle it: a
  queue is polled once a second by default, and a poll starts as many workflows as the limit leaves room for.
- Polling once a second is its default too; a shorter interval is a trade of the pick-up for load.
- LISTEN/NOTIFY is on by default, but is not used for queues.

Rows of finished workflows are kept, with the result.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import sqlalchemy
from dbos import DBOS, DBOSClient

from bench.contenders import Handler, Target
from bench.contenders.polling import until
from bench.workflows import STEPS

APPLICATION = "bench"
VERSION = "1"
QUEUE = "bench"
WORKFLOW = "noop"
OPTIONS: Any = {"queue_name": QUEUE, "workflow_name": WORKFLOW, "app_version": VERSION}
COUNT = "select count(*) from dbos.workflow_status where status = :status"
UNFINISHED = "select exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING'))"


class Dbos:
    """A client for enqueueing and looking; the runtime itself only where there is something to work on."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._url = target.url.replace("postgresql://", "postgresql+psycopg://")
        self._stack = AsyncExitStack()

    async def migrate(self) -> None:
        await self._launch()
        await DBOS.register_queue_async(QUEUE)
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        self._engine = sqlalchemy.create_engine(self._url)
        self._stack.callback(self._engine.dispose)
        self._client = DBOSClient(system_database_url=self.target.url, application_name=APPLICATION)
        self._stack.callback(self._client.destroy)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def enqueue(self, n: int) -> None:
        self._client.enqueue(OPTIONS, n)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        with self._engine.begin() as connection:
            for n in numbers:
                self._client.enqueue_in_transaction(connection, OPTIONS, n)

    async def work(self, handle: Handler) -> None:
        @DBOS.workflow(name=WORKFLOW)
        async def noop(n: int) -> None:
            await handle(n)

        await self._launch()
        await asyncio.Event().wait()

    async def settled(self, count: int) -> None:
        await until(self._all_finished)

    async def waiting(self) -> int:
        return int(self._ask(COUNT, status="ENQUEUED"))

    async def completed(self) -> int:
        return int(self._ask(COUNT, status="SUCCESS"))

    async def _all_finished(self) -> bool:
        return not await asyncio.to_thread(self._ask, UNFINISHED)

    async def _launch(self) -> None:
        """From inside the event loop, so that workflows run on it rather than on a loop in another thread."""
        DBOS(
            config={
                "name": APPLICATION,
                "system_database_url": self.target.url,
                "application_version": VERSION,
                "log_level": "ERROR",
            }
        )
        DBOS.launch()
        self._stack.callback(DBOS.destroy)

    def _ask(self, query: str, **arguments: Any) -> Any:
        with self._engine.connect() as connection:
            return connection.execute(sqlalchemy.text(query), arguments).scalar()


class DbosWorkflows(Dbos):
    """A workflow with steps: `DBOS.step` on the function that each of them calls (python/tutorials/step-tutorial)."""

    async def work(self, handle: Handler) -> None:
        @DBOS.step(name="step")
        async def step(n: int) -> None:
            await handle(n)

        @DBOS.workflow(name=WORKFLOW)
        async def steps(n: int) -> None:
            for _ in STEPS:
                await step(n)

        await self._launch()
        await asyncio.Event().wait()

    async def steps_completed(self) -> int:
        return int(self._ask("select count(*) from dbos.operation_outputs where error is null"))
