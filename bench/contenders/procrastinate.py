"""Procrastinate, with the settings that its documentation has for concurrent asynchronous tasks.

- The asynchronous connector on psycopg with its C part (docs: howto/basics/connector), and one worker with
  `concurrency` (howto/production/concurrency: for asynchronous tasks one process with a high concurrency).
- The pool's default size, which a larger or smaller one did not better; LISTEN/NOTIFY on.
- Finished jobs are kept (`delete_jobs="never"`), which is its default, and are counted.
- Bulk: `batch_defer_async` (howto/basics/batch_defer), one statement per call; no size of batches is named there.

It claims and completes each job by a statement of its own; no setting changes that.
"""

from collections.abc import Sequence
from typing import Any, Self

import procrastinate

from bench.contenders import Handler, Target
from bench.contenders.polling import until

COUNT = "select count(*) as jobs from procrastinate_jobs where status = %(status)s"
UNFINISHED = "select exists (select from procrastinate_jobs where status in ('todo', 'doing')) as unfinished"


class Procrastinate:
    """One app on one pool."""

    def __init__(self, target: Target) -> None:
        self.target = target
        connector = procrastinate.PsycopgConnector(conninfo=target.url)
        self._app = procrastinate.App(connector=connector)
        self._handle: Handler
        self._noop = self._app.task(name="noop")(self._call_handler)

    async def _call_handler(self, n: int) -> None:
        await self._handle(n)

    async def migrate(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def __aenter__(self) -> Self:
        await self._app.open_async()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._app.close_async()

    async def enqueue(self, n: int) -> None:
        await self._noop.defer_async(n=n)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._noop.batch_defer_async(*({"n": n} for n in numbers))

    async def work(self, handle: Handler) -> None:
        self._handle = handle
        await self._app.run_worker_async(
            concurrency=self.target.concurrency, install_signal_handlers=False, shutdown_graceful_timeout=1
        )

    async def settled(self, count: int) -> None:
        await until(self._all_finished)

    async def waiting(self) -> int:
        return int((await self._fetch(COUNT, status="todo"))["jobs"])

    async def completed(self) -> int:
        return int((await self._fetch(COUNT, status="succeeded"))["jobs"])

    async def _all_finished(self) -> bool:
        return not (await self._fetch(UNFINISHED))["unfinished"]

    async def _fetch(self, query: str, **arguments: Any) -> dict[str, Any]:
        return await self._app.connector.execute_query_one_async(query, **arguments)
