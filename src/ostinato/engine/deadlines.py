"""Timeouts of many handlers, and steps that take long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from ..telemetry import Telemetry
from .active import Active
from .service import Service

LONG = 1.0
"""Seconds after which a step is seen to be running: most are over by then, and are written down once."""
FINEST = 0.01
COARSEST = 0.1
IDLE = 3600.0


class Deadlines(Service):
    """Looks through what is running ten times a second. Most runs are long over by then and cost nothing at all."""

    def __init__(
        self, running: Mapping[tuple[str, int], Active], *, telemetry: Telemetry, on_expired: Callable[[Active], None]
    ) -> None:
        super().__init__(telemetry)
        self._running, self._on_expired = running, on_expired
        self._loop = asyncio.get_running_loop()
        self._looked = 0.0
        self.earliest: float | None = None
        """The loop's time at which the next handler is out of time; read by the keeper's thread."""

    async def tick(self) -> float:
        if not self._running:
            self.earliest = None
            return IDLE
        now = self._loop.time()
        self.earliest = min(active.deadline for active in self._running.values())
        if self.earliest <= now:
            for active in [active for active in self._running.values() if active.deadline <= now]:
                self._on_expired(active)
        if now - self._looked >= LONG / 2:
            self._looked = now
            self._note_long_steps(now)
        return max(FINEST, min(COARSEST, self.earliest - now))

    def _note_long_steps(self, now: float) -> None:
        """Has the database know of steps that take long, for people who look."""
        began = monotonic() - LONG
        for active in self._running.values():
            if active.run is not None and now - active.started >= LONG:
                for step in active.run.running_steps:
                    if not step.noted and step.began <= began:
                        active.run.note_running(step)
