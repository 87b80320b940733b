"""The writer's connection, lent to a transaction of the user's."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from ...errors import TransactionMisused
from .connecting import roll_back
from .desk import Errand, Errands, deliver

_OVER = "the transaction has ended; use it inside its `async with` block only"
_LOOK_EVERY = 10_000
"""Steps of SQLite's machine between two looks at the clock."""


class Loan(Errand[None]):
    """A transaction that is served statement by statement, on the writer's thread, until it ends or its time is over.

    Its own result is that it has begun.
    """

    __slots__ = ("_asked", "_ended", "_limit", "_lock", "given_up")

    def __init__(self, limit: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lambda connection: None, loop)
        self._limit = limit
        self._asked: Errands = SimpleQueue()
        self._lock = threading.Lock()
        self._ended: str | None = None
        self.given_up = False

    @property
    def open(self) -> bool:
        return self._ended is None

    def put(self, errand: Errand[Any]) -> None:
        with self._lock:
            if self._ended is not None:
                raise TransactionMisused(self._ended)
            self._asked.put(errand)

    def give_up(self) -> None:
        """Nobody needs it any more: it is rolled back, or not begun at all."""
        self.given_up = True
        with self._lock:
            self._asked.put(Errand(roll_back))

    # --- on the writer's thread

    def serve(self, connection: sqlite3.Connection) -> None:
        """Does what is asked for, one after the other, while the transaction is open."""
        deadline = time.monotonic() + self._limit
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _LOOK_EVERY)
        try:
            while connection.in_transaction:
                errand = self._asked.get(timeout=max(0.0, deadline - time.monotonic()))
                errand.do(connection)
                if errand.error is not None and time.monotonic() > deadline:
                    errand.error = TransactionMisused(self._too_long())
                if not connection.in_transaction:
                    self.end()
                deliver([errand])
        except Empty:
            self.end(self._too_long())
        finally:
            connection.set_progress_handler(None, 0)

    def end(self, why: str = _OVER) -> None:
        """From now on everything is refused, also what was asked for too late."""
        with self._lock:
            self._ended = self._ended or why
        late = []
        while not self._asked.empty():
            errand = self._asked.get()
            errand.error = TransactionMisused(self._ended)
            late.append(errand)
        deliver(late)

    def _too_long(self) -> str:
        return (
            f"the transaction lasted longer than {self._limit:g} s and was rolled back: on SQLite it holds the file's "
            "only write lock, so do what is slow before it"
        )
