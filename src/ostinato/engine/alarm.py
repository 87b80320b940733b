"""An event for one waiter, with a time limit and without a task per wait."""

from __future__ import annotations

import asyncio


class Alarm:
    """Set by anyone on the loop; `wait` answers whether it was set, and clears it."""

    __slots__ = ("_future", "_set")

    def __init__(self) -> None:
        self._set = False
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._set = True
        if self._future is not None:
            _release(self._future)

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, timeout: float) -> bool:
        """Waits until it is set or the time is over."""
        if not self._set and timeout > 0:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(timeout, _release, self._future)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        was_set, self._set = self._set, False
        return was_set


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
