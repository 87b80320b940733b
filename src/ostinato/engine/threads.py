"""Threads for handlers that are plain functions.

They are daemons, unlike those of concurrent.futures, which the interpreter joins at exit: a handler that hangs must
not keep a worker from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..model.outcome import Stop

if TYPE_CHECKING:
    from .active import Active

T = TypeVar("T")


class Threads:
    """As many threads as are busy at once, kept for the next handler."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = 0
        self._count = 0
        self._lock = threading.Lock()

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Calls the function in a thread, with the caller's context variables."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        self._jobs.put(lambda: self._work(loop, future, context, function))
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._count += 1
                threading.Thread(target=self._serve, name=f"ostinato handler {self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        for _ in range(self._count):
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._idle += 1

    @staticmethod
    def _work(
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[Any],
        context: contextvars.Context,
        function: Callable[[], Any],
    ) -> None:
        try:
            result, error = context.run(function), None
        except BaseException as raised:
            result, error = None, raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, future, result, error)


async def in_thread(threads: Threads, active: Active, function: Callable[[], Any]) -> Any:
    """Calls a function of the user's in a thread. A thread cannot be ended: what is stopped keeps its slot until the
    function returns; only what may not wait is let go."""
    thread = threads.call(function)
    while True:
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            if active.stop in (Stop.SHUTDOWN, Stop.LEASE_LOST):
                raise
            await asyncio.wait([thread])
            thread.exception()
            raise


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing, on the calling thread and without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError(f"{work!r} awaited something, and there is no event loop in this thread")


async def in_context(work: Coroutine[Any, Any, T]) -> tuple[T, contextvars.Context]:
    """The result of work done on another thread's event loop, and the context variables as it left them."""
    return await work, contextvars.copy_context()


def waited(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """The result of work done on an event loop, for another thread that waits for it."""
    result, context = asyncio.run_coroutine_threadsafe(in_context(work), loop).result()
    adopt(context)
    return result


def adopt(context: contextvars.Context) -> None:
    """Sets here what was set there: that a transaction is open, say."""
    for variable, value in context.items():
        if variable.get(None) is not value:
            variable.set(value)


@contextmanager
def entered(manager: AbstractAsyncContextManager[T], wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> Iterator[T]:
    """A block of `async with`, for a thread that waits for an event loop elsewhere."""
    value: T = wait(manager.__aenter__())
    try:
        yield value
    except BaseException as error:
        if not wait(manager.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        wait(manager.__aexit__(None, None, None))


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError("the handler raised StopIteration"))
    else:
        future.set_exception(error)
