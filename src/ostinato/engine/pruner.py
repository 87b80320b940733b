"""Removes what has been kept long enough, a little at a time."""

from __future__ import annotations

import random

from ..config import Retention
from ..store.ports import Store
from ..telemetry import RunsPruned, Telemetry
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

    async def tick(self) -> float:
        full = [state for state, keep in self._keep.items() if await self._prune(state, keep) == BATCH]
        if full:
            return BETWEEN_BATCHES
        await self._store.tidy()
        return INTERVAL * random.uniform(0.8, 1.2)

    async def _prune(self, state: str, keep: float) -> int:
        count = await self._store.prune(state, keep=keep, limit=BATCH)
        if count:
            self.telemetry.announce(RunsPruned(state=state, count=count))
        return count
