"""Removes what has been kept long enough, a little at a time."""

from __future__ import annotations

import random

from ..config import Retention
from ..store.ports import Store
from ..telemetry import EventsPruned, RunsPruned, Telemetry
from .service import Service

BATCH = 500
FIRST = 2.0
INTERVAL = 60.0
BETWEEN_BATCHES = 0.1


class Pruner(Service):
    def __init__(self, retention: Retention, *, store: Store, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self.first_after = FIRST * random.uniform(0.8, 1.2)
        self._store = store
        self._keep = retention.limits()
        self._keep_events = retention.events_limit()
        self._passed = 0
        """The number of the event removed last, while there are more to remove."""

    async def tick(self) -> float:
        full = [state for state, keep in self._keep.items() if await self._prune(state, keep) == BATCH]
        if await self._prune_events() or full:
            return BETWEEN_BATCHES
        await self._store.tidy()
        return INTERVAL * random.uniform(0.8, 1.2)

    async def _prune_events(self) -> bool:
        """Removes a batch of events; whether there may be more. Numbers that come late are met in the next round."""
        if self._keep_events is None:
            return False
        keep, unread = self._keep_events
        gone = await self._store.prune_events(keep=keep, keep_unread=unread, passed=self._passed, limit=BATCH)
        more = len(gone) == BATCH
        self._passed = gone[-1] if more else 0
        if gone:
            self.telemetry.announce(EventsPruned(count=len(gone)))
        return more

    async def _prune(self, state: str, keep: float) -> int:
        count = await self._store.prune(state, keep=keep, limit=BATCH)
        if count:
            self.telemetry.announce(RunsPruned(state=state, count=count))
        return count
