"""Timeouts of many handlers with one timer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from .active import Active

_SLACK = 1000


class Deadlines:
    """A heap of moments. Runs that ended are not removed but passed over, and swept out when they are the most."""

    def __init__(self, on_expired: Callable[[Active], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_expired = on_expired
        self._heap: list[tuple[float, int, Active]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._live = 0

    def add(self, active: Active, delay: float) -> None:
        deadline = self._loop.time() + delay
        heapq.heappush(self._heap, (deadline, next(self._order), active))
        if self._heap[0][2] is active:
            self._schedule(deadline)
        if len(self._heap) > 2 * self._live + _SLACK:
            self._sweep()

    def earliest(self) -> float | None:
        """The loop's time at which the next handler is out of time; read by the keeper's thread."""
        heap = self._heap
        return heap[0][0] if heap else None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not _over(entry[2])]
        heapq.heapify(self._heap)
        self._live = len(self._heap)

    def _schedule(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            active = heapq.heappop(self._heap)[2]
            if not _over(active):
                self._on_expired(active)
        if self._heap:
            self._schedule(self._heap[0][0])


def _over(active: Active) -> bool:
    return active.task is None or active.task.done()
