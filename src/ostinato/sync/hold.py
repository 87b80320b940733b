"""What keeps an app open between the calls of a client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..engine.site import Site
from .background import BACKGROUND, LoopThread

T = TypeVar("T")


class Hold:
    """An app that is open on the process's background loop, from the first call until it is let go."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._thread: LoopThread | None = None

    def let_go(self) -> None:
        """Closes what is open, and waits for it."""
        if BACKGROUND.is_running(self._thread):
            with BACKGROUND.thread() as thread:
                thread.wait(self._leave(thread))

    def drop(self) -> None:
        """The same without waiting: from wherever a client is collected, that may be the loop's own thread."""
        if self._thread is not None and BACKGROUND.is_running(self._thread):
            self._thread.start(self._leave(self._thread))

    # --- on the loop

    async def during(self, thread: LoopThread, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self.keep(thread)
        return await work()

    async def keep(self, thread: LoopThread) -> None:
        """Opens the app, unless it is open there."""
        if self._thread is thread:
            return
        await self._site.open()
        if self._thread is thread:  # another call was faster
            await self._site.close()
        else:
            self._thread = thread
            BACKGROUND.stay(thread)

    async def _leave(self, thread: LoopThread) -> None:
        if self._thread is thread:
            self._thread = None
            await self._site.close()
            BACKGROUND.leave(thread)
