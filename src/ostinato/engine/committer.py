"""Group commit: settlements of many runs share statements and commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from ..errors import StoreError
from ..model.change import Change, Committed
from ..store.ports import Store
from ..telemetry import StoreTroubled, Telemetry
from .active import Active

LARGEST_BATCH = 1000
LONGEST_PAUSE = 5.0


class Settlement(NamedTuple):
    """The end of one attempt, to be committed."""

    active: Active
    changes: Sequence[Change]


class Committer:
    """Flushes what has come in as soon as the flush before has returned: no timer, and no waiting when there is
    nothing to wait for."""

    def __init__(
        self,
        store: Store,
        telemetry: Telemetry,
        *,
        on_committed: Callable[[Sequence[Settlement], Committed], Awaitable[None]],
    ) -> None:
        self._store, self._telemetry, self._on_committed = store, telemetry, on_committed
        self._pending: list[Settlement] = []
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def backlog(self) -> int:
        return len(self._pending)

    def start(self) -> None:
        self._task = asyncio.create_task(self._flush_for_ever(), name="ostinato committer")

    async def stop(self) -> None:
        """Ends after everything that came in is committed."""
        await self._idle.wait()
        await self.abandon()

    async def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, settlement: Settlement) -> None:
        self._pending.append(settlement)
        self._arrived.set()
        self._idle.clear()

    async def settled(self) -> None:
        """Until nothing waits to be committed."""
        await self._idle.wait()

    async def _flush_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            batch, self._pending = self._pending[:LARGEST_BATCH], self._pending[LARGEST_BATCH:]
            if not self._pending:
                self._arrived.clear()
            await self._flush(batch)
            if not self._pending:
                self._idle.set()

    async def _flush(self, batch: Sequence[Settlement]) -> None:
        changes = [change for settlement in batch for change in settlement.changes]
        failures = 0
        while True:
            try:
                committed = await self._store.commit(changes)
                break
            except StoreError as error:
                # The attempts are over and their results are here: they are kept until the database takes them or
                # refuses them.
                failures += 1
                delay = min(0.05 * 2**failures, LONGEST_PAUSE)
                self._telemetry.announce(StoreTroubled(service="committer", error=str(error), retry_in=delay))
                await asyncio.sleep(delay)
        await self._on_committed(batch, committed)
