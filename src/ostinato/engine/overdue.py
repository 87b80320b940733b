"""Ends runs that are late."""

from __future__ import annotations

from ..store.ports import Store
from ..telemetry import Telemetry
from .service import AT_ONCE, Service

BATCH = 500
LONGEST_LOOK_AHEAD = 1.0


class Overdue(Service):
    """Cancels runs that have not started, or not ended, by their time. Looks at least once a second, since others
    insert runs too, and exactly when the next known one is due."""

    first_after = 0.2

    def __init__(self, *, store: Store, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._store = store

    async def tick(self) -> float:
        wait = await self._store.next_overdue()
        if wait is None or wait > 0:
            return LONGEST_LOOK_AHEAD if wait is None else min(wait + 0.001, LONGEST_LOOK_AHEAD)
        cancelled = await self._store.end_overdue(BATCH)
        return AT_ONCE if len(cancelled) >= BATCH else 0.05
