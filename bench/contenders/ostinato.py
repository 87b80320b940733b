"""Ostinato through its public surface, with its defaults, as an application would use it."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from bench.claims import Statement
from bench.contenders import Handler, Target
from ostinato import App


class Ostinato:
    """One app with one queue of the wanted width and one no-op function."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._app = App(
            target.url,
            queues={"default": target.concurrency},
            notify=target.wake_ups,
            poll=target.poll_seconds,
        )
        self._handle: Handler
        self._working: asyncio.Future[Any] = asyncio.Future()
        self._noop = self._app.function(name="noop")(self._call_handler)
        self._stepper = _Stepper(self._app)

    async def _call_handler(self, n: int) -> None:
        await self._handle(n)

    async def migrate(self) -> None:
        await self._app.migrations().up()

    async def __aenter__(self) -> Self:
        await self._app.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._app.__aexit__(None, None, None)

    async def enqueue(self, n: int) -> None:
        await self._noop.enqueue(n=n)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._noop.enqueue_many([{"n": n} for n in numbers])

    async def work(self, handle: Handler) -> None:
        self._handle = handle
        async with self._app.worker() as worker:
            self._working.set_result(worker)
            await asyncio.Event().wait()

    async def settled(self, count: int) -> None:
        """Ask the worker's own bookkeeping: an event per run would cost what the figure is to measure."""
        worker = await self._working
        await worker.settled()

    async def waiting(self) -> int:
        return await self._count("ready")

    async def completed(self) -> int:
        return await self._count("completed")

    async def _count(self, state: str) -> int:
        return sum(entry.count for entry in await self._app.runs.counts() if entry.state == state)

    async def next_claims(self, limit: int) -> dict[str, Statement]:
        return await self._stepper.next_claims(limit)

    async def advance(self, count: int) -> None:
        await self._stepper.advance(count, batch=self.target.concurrency)

    @property
    def claim_session(self) -> dict[str, str]:
        return self._stepper.session


class _Stepper:
    """The worker's claiming taken step by step (see `bench.claims`): the only part that looks inside the engine.

    It keeps the low-water mark as the engine's intake does: the place of the last run claimed.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._worker = ""
        self._mark: Any = None

    @property
    def session(self) -> dict[str, str]:
        from ostinato.store.postgres.store import _ENGINE_SESSION

        return {name: value for name, value in _ENGINE_SESSION.items() if name != "application_name"}

    async def next_claims(self, limit: int) -> dict[str, Statement]:
        from ostinato.model.run import START

        await self._begin()
        return {
            "ostinato": self._statement(limit, self._mark),
            "ostinato, once a second": self._statement(limit, START),
        }

    async def advance(self, count: int, *, batch: int) -> None:
        from msgspec import Raw

        from ostinato.model.change import RunCompleted
        from ostinato.model.run import Mark

        for first in range(0, count, batch):
            limit = min(batch, count - first)
            async with self._app._site.store() as store:
                claimed = await store.claim("default", limit, worker=self._worker, mark=self._mark)
                await store.commit([RunCompleted(run.id, run.lease_no, Raw(b"null")) for run in claimed])
            self._mark = Mark(claimed[-1].due, claimed[-1].id)

    async def _begin(self) -> None:
        from ostinato.model.run import START

        if not self._worker:
            self._worker, self._mark = "bench", START
            async with self._app._site.store() as store:
                await store.register(self._worker, name="bench", queues={"default": 1}, lease=3600)

    def _statement(self, limit: int, mark: Any) -> Statement:
        from ostinato.store.postgres.claiming import claiming
        from ostinato.store.postgres.store import load_blocks

        call = next(claiming("default", limit, worker=self._worker, mark=mark, suspect=False))
        block = load_blocks(self._app.settings.schema)[call.block]
        return block.text, tuple(block.arguments(call.arguments))
