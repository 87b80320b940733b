"""When a run is left to wait."""

from __future__ import annotations

import asyncio

from ...model.outcome import Suspended
from ...model.run import Reason

QUIET_FOR = 0.02
"""Seconds without a step in flight, after which what runs beside a waiting step is taken to wait for it too."""


class Suspending(BaseException):
    """Unwinds a function whose run waits for something; it is called again when that has come."""


class Suspension:
    """Whether something of the run is still going on.

    A function that waits in its own task waits as a whole, and is left at once. One that waits in one of several tasks
    may still do something in another: it is left when no step is in flight, and none has begun for a moment.
    """

    def __init__(self, main: asyncio.Task[None] | None) -> None:
        self._main = main
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._begun = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._reason: Reason | None = None
        self.outcome: Suspended | None = None

    def begin(self) -> None:
        """A step is about to do something."""
        if self.outcome is not None:
            raise Suspending
        self._in_flight += 1
        self._begun += 1

    def end(self) -> None:
        self._in_flight -= 1
        if self._waiting and not self._in_flight:
            self._look_later()

    async def wait(self, reason: Reason) -> None:
        """Never returns. To be called outside of `begin` and `end`."""
        self._reason = self._reason or reason
        if not self._in_flight and not self._waiting and asyncio.current_task() is self._main:
            self.outcome = Suspended(reason)
        if self.outcome is not None:
            raise Suspending
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        if not self._in_flight:
            self._look_later()
        await future

    def _look_later(self) -> None:
        self._loop.call_later(QUIET_FOR, self._look, self._begun)

    def _look(self, begun: int) -> None:
        if self.outcome is not None or self._in_flight or begun != self._begun:
            return
        assert self._reason is not None
        self.outcome = Suspended(self._reason)
        for future in self._waiting:
            if not future.done():
                future.set_exception(Suspending())
                future.exception()  # whoever awaited it may be gone
