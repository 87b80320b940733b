"""Asking the database from beside the handlers: from any thread, also while their event loop is blocked."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from typing import TypeVar

from ..engine.site import Site
from ..errors import StoreUnavailable
from ..store.ports import Store

T = TypeVar("T")

LAST_WORD = 5.0


class Aside:
    """An event loop in a thread of its own, with a store of its own. Both begin with the first question, and again with
    the first after `close` or a fork."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._start_over()

    def _start_over(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._held: AsyncExitStack | None = None

    def ask(self, question: Callable[[Store], Awaitable[T]], *, timeout: float) -> T:
        """What the database answers; StoreUnavailable when it takes too long. Blocks the calling thread."""
        if self._process != os.getpid():  # forked: the parent's thread is not here
            self._start_over()
        with self._lock:
            future = asyncio.run_coroutine_threadsafe(self._answer(question, timeout), self._running())
        try:
            return future.result(timeout + LAST_WORD)
        except (TimeoutError, CancelledError):  # cancelled: closed meanwhile
            future.cancel()
            raise StoreUnavailable(f"the database has not answered within {timeout:g} s") from None

    def close(self) -> None:
        """Closes the connections and ends the thread."""
        if self._process != os.getpid():
            return
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(LAST_WORD)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="ostinato aside", daemon=True)
            self._thread.start()
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop().run_forever()
            runner.run(self._let_go())

    async def _answer(self, question: Callable[[Store], Awaitable[T]], timeout: float) -> T:
        async with asyncio.timeout(timeout), self._site.store() as store:
            answer = await question(store)
            if self._held is None:
                self._held = AsyncExitStack()
                await self._held.enter_async_context(self._site.store())
            return answer

    async def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()
