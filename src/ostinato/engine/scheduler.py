"""Releases held runs whose time has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..store.ports import Store
from ..telemetry import Telemetry
from .service import AT_ONCE, Service

BATCH = 500
LONGEST_LOOK_AHEAD = 1.0


class Scheduler(Service):
    """Looks at least once a second, since others may hold runs too, and exactly when the next known one is due."""

    def __init__(
        self, queues: Sequence[str], *, store: Store, telemetry: Telemetry, on_released: Callable[[str], None]
    ) -> None:
        super().__init__(telemetry)
        self._queues, self._store, self._on_released = queues, store, on_released

    async def tick(self) -> float:
        return min([await self._release(queue) for queue in self._queues])

    async def _release(self, queue: str) -> float:
        wait = await self._store.next_due(queue)
        if wait is None or wait > 0:
            return LONGEST_LOOK_AHEAD if wait is None else min(wait + 0.001, LONGEST_LOOK_AHEAD)
        released = await self._store.release_due(queue, BATCH)
        if released:
            self._on_released(queue)
            await self._store.ring(queue)
        return AT_ONCE if released == BATCH else 0.001
