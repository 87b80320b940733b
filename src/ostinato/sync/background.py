"""The event loop behind blocking calls: one per process, in a daemon thread, there while somebody needs it."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from ..engine.site import keep_for_ever
from ..engine.threads import adopt
from ..errors import OstinatoError, TransactionMisused

T = TypeVar("T")

LAST_WORD = 5.0
FORK_PATIENCE = 1.0

_ENDED = "the process ends, and its connections are closed"


class _Call(Generic[T]):
    """Work of a thread, done on the loop as if it were done in the thread: with the thread's context variables, and
    what it sets is set there: that a transaction is open, say."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T]
        self.over = threading.Event()

    def result(self) -> T:
        if self._task.cancelled():
            raise OstinatoError(_ENDED)
        if (error := self._task.exception()) is not None:
            try:
                raise error
            finally:
                del error, self  # the error's traceback has this frame, and this frame would have the error
        adopt(self._context)
        return self._task.result()

    # --- on the loop

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work, context=self._context)
        self._task.add_done_callback(lambda _: self.over.set())

    def call_off(self) -> None:
        self._task.cancel()


class LoopThread:
    """An event loop that runs in a thread of its own until it is stopped.

    Around a fork it pauses: what is under way stands still, and goes on in the parent.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pausing = self._ending = False
        self.resume()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that is done on the loop. Who is interrupted meanwhile calls it off."""
        if self._process != os.getpid():
            keep_for_ever(work)  # and with it the parent's connection
            raise TransactionMisused("the transaction is the parent's, and this is a forked child; open one here")
        call = _Call(work)
        self.loop.call_soon_threadsafe(call.begin)
        try:
            call.over.wait()
        except BaseException:
            self.loop.call_soon_threadsafe(call.call_off)
            raise
        return call.result()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Has work done that nobody waits for."""
        self.loop.call_soon_threadsafe(_Call(work).begin)

    # --- the thread

    def resume(self) -> None:
        with self._lock:
            self._pausing = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="ostinato client", daemon=True)
                self._thread.start()

    def pause(self) -> None:
        """Ends the thread and leaves the loop as it is."""
        with self._lock:
            thread, self._pausing = self._thread, True
        self._halt(thread, FORK_PATIENCE)

    def stop(self) -> None:
        """Ends the thread; whatever is open on the loop is closed."""
        with self._lock:
            thread, self._ending = self._thread, True
        self._halt(thread, LAST_WORD)

    def _halt(self, thread: threading.Thread | None, patience: float) -> None:
        with suppress(RuntimeError):  # it was closed meanwhile
            self.loop.call_soon_threadsafe(self.loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    def _main(self) -> None:
        while True:
            self.loop.run_forever()
            with self._lock:
                if self._ending:
                    break
                if self._pausing:  # else it was resumed before it had paused
                    self._thread = None
                    return
        self._close()

    def _close(self) -> None:
        """Closes the loop, and before it what is open there. As asyncio.Runner does it, but without waiting for the
        default executor, which takes a thread that cannot be had when the interpreter ends."""
        for task in (tasks := asyncio.all_tasks(self.loop)):
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class Background:
    """The process's loop: started for the first who needs it, stopped after the last."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread: LoopThread | None = None
        self._ended = False

    @contextmanager
    def thread(self) -> Iterator[LoopThread]:
        """The loop, there for the block."""
        with self._lock:
            if self._ended:
                raise OstinatoError(_ENDED)
            thread = self._thread = self._thread or LoopThread()
            self._users += 1
        try:
            yield thread
        finally:
            self.leave(thread)

    def is_running(self, thread: LoopThread | None) -> bool:
        """Whether it is the one of this process, now."""
        return thread is not None and thread is self._thread

    def stay(self, thread: LoopThread) -> None:
        """One more needs it, until `leave`."""
        with self._lock:
            self._users += thread is self._thread

    def leave(self, thread: LoopThread) -> None:
        with self._lock:
            if thread is not self._thread:  # of before a fork, or of before the end
                return
            self._users -= 1
            if self._users:
                return
            self._thread = None
        thread.stop()

    # --- forks and the end

    def before_fork(self) -> None:
        self._paused = self._thread
        if self._paused is not None:
            self._paused.pause()

    def after_fork_in_parent(self) -> None:
        if self._paused is not None:
            self._paused.resume()

    def after_fork_in_child(self) -> None:
        keep_for_ever(self._paused)
        self._start_over()

    def end(self) -> None:
        """At exit."""
        with self._lock:
            thread, self._thread, self._ended = self._thread, None, True
        if thread is not None:
            thread.stop()


BACKGROUND = Background()

atexit.register(BACKGROUND.end)
os.register_at_fork(
    before=BACKGROUND.before_fork,
    after_in_parent=BACKGROUND.after_fork_in_parent,
    after_in_child=BACKGROUND.after_fork_in_child,
)
