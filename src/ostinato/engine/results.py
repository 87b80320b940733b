"""Waiting for results: woken when runs end, polling in case the wake-up is lost."""

from __future__ import annotations

import asyncio
import contextlib

from ..store.ports import RESULTS, Ended, Store
from ..telemetry import Telemetry
from .alarm import Alarm
from .wakeups import Wakeups

POLL = 30.0
SHORTEST_POLL = 0.02
LONGEST_POLL_WITHOUT_SIGNALS = 1.0
ARMED_FOR = 0.2
KEPT_FOR = 10.0


class Results:
    """Those who wait for runs in one event loop share one listener, which is there only while somebody waits."""

    def __init__(self, store: Store, telemetry: Telemetry, *, notify: bool) -> None:
        self._store, self._telemetry, self._notify = store, telemetry, notify
        self._waiting: dict[str, set[asyncio.Future[Ended]]] = {}
        self._changed = Alarm()
        self._task: asyncio.Task[None] | None = None

    async def wait(self, run_id: str) -> Ended:
        """Until the run has ended."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, set()).add(future)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch(), name="ostinato results")
        try:
            return await future
        finally:
            futures = self._waiting.get(run_id, set())
            futures.discard(future)
            if not futures:
                self._waiting.pop(run_id, None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        """Until nobody waits. Who comes while the listener is being closed finds this task alive, and is seen here."""
        while self._waiting:
            await self._listen()

    async def _listen(self) -> None:
        wakeups = Wakeups(self._store, self._telemetry, enabled=self._notify)
        wakeups.on_runs_ended(self._changed.set)
        await wakeups.start()
        try:
            await self._serve(wakeups)
        except Exception as error:
            self._fail(error)
        finally:
            await wakeups.stop()

    async def _serve(self, wakeups: Wakeups) -> None:
        pause = SHORTEST_POLL
        while await self._somebody_waits(wakeups):
            quiet = await wakeups.arm(RESULTS)
            found = await self._store.views.outcomes(list(self._waiting))
            for run_id, ended in found.items():
                self._resolve(run_id, ended)
            pause = SHORTEST_POLL if found else min(pause * 1.5, LONGEST_POLL_WITHOUT_SIGNALS)
            if self._waiting:
                await self._changed.wait(POLL if quiet else pause)

    async def _somebody_waits(self, wakeups: Wakeups) -> bool:
        """Whether to go on. The connection is kept a little for who comes next, without asking to be rung."""
        if not self._waiting and not await self._changed.wait(ARMED_FOR):
            await wakeups.disarm(RESULTS)
            await self._changed.wait(KEPT_FOR)
        return bool(self._waiting)

    def _resolve(self, run_id: str, ended: Ended) -> None:
        for future in self._waiting.pop(run_id, set()):
            if not future.done():
                future.set_result(ended)

    def _fail(self, error: Exception) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._waiting.clear()
