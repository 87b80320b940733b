"""Threads with a connection of their own, which do errands for any number of event loops and other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_FORK_PATIENCE = 1.0


class Errand(Generic[T]):
    """Something to do with a connection, and whoever waits for it. Without work it sends the thread home."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(self, work: Work[T] | None, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.work, self.loop = work, loop
        self.future: Any = loop.create_future() if loop else concurrent.futures.Future()
        self.result: T | None = None
        self.error: BaseException | None = None

    def do(self, connection: sqlite3.Connection) -> None:
        if self.work is not None:
            try:
                self.result = self.work(connection)
            except BaseException as error:
                self.error = error


Errands = SimpleQueue[Errand[Any]]


def deliver(errands: Iterable[Errand[Any]]) -> None:
    """Gives the results to those who wait, waking each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Errand[Any]]] = {}
    for errand in errands:
        by_loop.setdefault(errand.loop, []).append(errand)
    for loop, group in by_loop.items():
        if loop is None:
            _resolve(group)
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, group)


def _resolve(errands: list[Errand[Any]]) -> None:
    for errand in errands:
        if errand.future.done():
            continue
        if errand.error is None:
            errand.future.set_result(errand.result)
        else:
            errand.future.set_exception(errand.error)


class Desk(ABC):
    """Takes errands from anywhere; its threads start when the first comes, and again after `close` or a fork."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], *, name: str, threads: int = 1) -> None:
        self._connect, self._name, self._most_threads = connect, name, threads
        self._start_over()
        _DESKS.add(self)

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._errands: Errands = SimpleQueue()
        self._threads = 0
        self._started: list[threading.Thread] = []
        """Those that are at work, and those that were sent home and may not be there yet."""

    # --- asking

    def ask(self, work: Work[T]) -> asyncio.Future[T]:
        """Has work done, for the running event loop."""
        errand = Errand(work, asyncio.get_running_loop())
        self.put(errand)
        return errand.future  # type: ignore[no-any-return]

    def submit(self, work: Work[T]) -> concurrent.futures.Future[T]:
        """Has work done, for any thread."""
        errand = Errand(work)
        self.put(errand)
        return errand.future  # type: ignore[no-any-return]

    def put(self, errand: Errand[Any]) -> None:
        with self._lock:
            if not _FORKS.under_way and (
                not self._threads or (self._threads < self._most_threads and not self._errands.empty())
            ):
                self._start()
            self._errands.put(errand)

    def _start(self) -> None:
        thread = threading.Thread(target=self._main, args=(self._errands,), name=self._name, daemon=True)
        self._threads += 1
        self._started = [thread, *(earlier for earlier in self._started if earlier.is_alive())]
        thread.start()

    async def close(self) -> None:
        """Does what was asked for until now, then closes the connections."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(errand.future for errand in self._send_home(loop)))

    def _send_home(self, loop: asyncio.AbstractEventLoop | None = None) -> list[Errand[None]]:
        with self._lock:
            if not self._threads:  # what may be waiting here waits for a fork
                return []
            errands, threads = self._errands, self._threads
            self._errands, self._threads = SimpleQueue(), 0
        last = [Errand[None](None, loop) for _ in range(threads)]
        for errand in last:
            errands.put(errand)
        return last

    # --- a thread

    def _main(self, errands: Errands) -> None:
        while (errand := errands.get()).work is not None:
            try:
                connection = self._connect()
            except BaseException as error:
                errand.error = error
                deliver([errand])
                continue
            _OPEN.add(connection)
            with closing(connection):
                errand = self._serve(connection, errand, errands)
            _OPEN.discard(connection)
            break
        deliver([errand])

    @abstractmethod
    def _serve(self, connection: sqlite3.Connection, errand: Errand[Any], errands: Errands) -> Errand[Any]:
        """Does errands until one sends the thread home, and answers that one."""

    # --- forks

    def before_fork(self) -> None:
        """A connection carried into a child would have the child believe that it holds the file's locks."""
        self._send_home()
        deadline = time.monotonic() + _FORK_PATIENCE
        for thread in self._started:
            thread.join(max(0.0, deadline - time.monotonic()))

    def after_fork_in_child(self) -> None:
        self._start_over()

    def after_fork_in_parent(self) -> None:
        """Threads start again when they are needed."""
        with self._lock:
            if not _FORKS.under_way and not self._threads and not self._errands.empty():
                self._start()


class Reader(Desk):
    """Reads side by side. Each statement is a transaction by itself, so none is ever left open."""

    def _serve(self, connection: sqlite3.Connection, errand: Errand[Any], errands: Errands) -> Errand[Any]:
        while errand.work is not None:
            errand.do(connection)
            deliver([errand])
            errand = errands.get()
        return errand


_DESKS: WeakSet[Desk] = WeakSet()
_OPEN: set[sqlite3.Connection] = set()
"""In a forked child these are kept and never closed: closing them there would let go of the parent's locks."""


class _Forks:
    """Those that are under way, by whatever threads. Until they are over no desk begins anything; errands wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.under_way = 0

    def begin(self) -> None:
        with self._lock:
            self.under_way += 1
        for desk in list(_DESKS):
            desk.before_fork()

    def end_in_child(self) -> None:
        self._lock = threading.Lock()
        self.under_way = 0
        for desk in list(_DESKS):
            desk.after_fork_in_child()

    def end_in_parent(self) -> None:
        with self._lock:
            self.under_way = max(0, self.under_way - 1)  # one may have begun before this module was there
        for desk in list(_DESKS):
            desk.after_fork_in_parent()


_FORKS = _Forks()

os.register_at_fork(before=_FORKS.begin, after_in_child=_FORKS.end_in_child, after_in_parent=_FORKS.end_in_parent)
