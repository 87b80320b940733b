"""A service says what one tick does and when the next is due. The loop around it is written here, once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod

from ..errors import StoreError
from ..telemetry import StoreTroubled, Telemetry, logger
from .alarm import Alarm

LONGEST_PAUSE = 5.0
STOP_PATIENCE = 5.0

AT_ONCE = 0.0


class Service(ABC):
    """Something that happens again and again beside the handlers."""

    first_after = AT_ONCE
    """Seconds until the first tick, unless woken: what is not urgent leaves a worker that starts to its runs."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self._wake = Alarm()
        self._task: asyncio.Task[None] | None = None
        self.stopping = False

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @abstractmethod
    async def tick(self) -> float:
        """Does what is due and answers in how many seconds to come back."""

    def wake(self) -> None:
        """Makes the next tick due now."""
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._tick_for_ever(), name=f"ostinato {self.name}")

    async def stop(self) -> None:
        """Ends after the tick under way: what it has claimed must not be lost. A tick that hangs is cancelled."""
        self.stopping = True
        self.wake()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_PATIENCE)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def pause(self, delay: float) -> bool:
        """Waits for the time or a wake-up; answers whether it was woken."""
        return await self._wake.wait(delay)

    async def _tick_for_ever(self) -> None:
        failures = 0
        if self.first_after:
            await self.pause(self.first_after)
        while not self.stopping:
            try:
                delay = await self.tick()
                failures = 0
            except StoreError as error:
                failures += 1
                delay = self._back_off(failures, str(error))
            except Exception as error:
                failures += 1
                logger.exception("the %s failed and goes on", self.name)
                delay = self._back_off(failures, f"{type(error).__name__}: {error}")
            await self.pause(delay)

    def _back_off(self, failures: int, error: str) -> float:
        delay: float = random.uniform(0.5, 1.0) * min(0.1 * 2**failures, LONGEST_PAUSE)
        self.telemetry.announce(StoreTroubled(service=self.name, error=error, retry_in=delay))
        return delay
