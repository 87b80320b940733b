"""Group commit: settlements of many runs share statements and commits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from ..errors import StoreError
from ..model.change import Change, Committed
from ..model.outcome import Failed, settle
from ..store.ports import Store
from ..telemetry import StoreTroubled, Telemetry, logger
from .active import Active

LARGEST_BATCH = 1000
LONGEST_PAUSE = 5.0
UNSETTLED = "unsettled"

T = TypeVar("T")


class Settlement(Struct, frozen=True):
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
        self._under_way: list[Settlement] = []
        self._arrived = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def backlog(self) -> int:
        return len(self._pending)

    @property
    def unsettled(self) -> list[Settlement]:
        """What has come in and is not known to be committed."""
        return self._under_way + self._pending

    def start(self) -> None:
        self._task = asyncio.create_task(self._flush_for_ever(), name="ostinato committer")

    async def stop(self) -> None:
        """Ends after everything that came in is committed."""
        await self.idle.wait()
        await self.abandon()

    async def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def add(self, settlement: Settlement) -> None:
        if not self._pending:
            self._arrived.set()
            self.idle.clear()
        self._pending.append(settlement)

    async def settled(self) -> None:
        """Until nothing waits to be committed."""
        await self.idle.wait()

    async def _flush_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            self._under_way, self._pending = self._pending[:LARGEST_BATCH], self._pending[LARGEST_BATCH:]
            if not self._pending:
                self._arrived.clear()
            await self._flush(self._under_way)
            self._under_way = []
            if not self._pending:
                self.idle.set()

    async def _flush(self, batch: Sequence[Settlement]) -> None:
        try:
            committed = await self._patiently(lambda: self._store.commit(_changes(batch)))
            await self._patiently(lambda: self._on_committed(batch, committed))
        except Exception as error:
            await self._isolate(batch, error)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Tries until the database answers: the attempts are over and their results are here, and nowhere else."""
        failures = 0
        while True:
            try:
                return await work()
            except StoreError as error:
                failures += 1
                delay = min(0.05 * 2**failures, LONGEST_PAUSE)
                self._telemetry.announce(StoreTroubled(service="committer", error=str(error), retry_in=delay))
                await asyncio.sleep(delay)

    async def _isolate(self, batch: Sequence[Settlement], error: Exception) -> None:
        """A settlement that the database cannot take must not take the others with it: its run fails."""
        if len(batch) > 1:
            for settlement in batch:
                await self._flush([settlement])
            return
        active = batch[0].active
        logger.error("run %s could not be settled", active.claimed.id, exc_info=error)
        if not isinstance(active.outcome, Failed) or active.outcome.code != UNSETTLED:
            active.outcome = Failed(UNSETTLED, f"the outcome could not be stored: {error}", error, retriable=False)
            changes = settle(
                active.claimed,
                active.outcome,
                active.retry,
                worker=active.worker,
                duration=active.duration,
                told=active.told,
            )
            await self._flush([Settlement(active, changes)])


def _changes(batch: Sequence[Settlement]) -> list[Change]:
    return [change for settlement in batch for change in settlement.changes]
