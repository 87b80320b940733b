"""The one thread that writes: what has been asked for meanwhile shares one commit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from queue import Empty
from typing import Any
from weakref import WeakValueDictionary

from .connecting import begin, roll_back
from .desk import Desk, Errand, Errands, deliver
from .insertion import Insertion, Together
from .loan import Loan
from .watch import Watch

LARGEST_BATCH = 500


class Turns:
    """Who may write next, among the writers of one process: in turns, so that a busy one does not starve the keeper."""

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._writing = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._writing.acquire()

    def __exit__(self, *_: object) -> None:
        self._writing.release()


_TURNS: WeakValueDictionary[str, Turns] = WeakValueDictionary()


class Nudge(Errand[None]):
    """Only wakes the thread."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda connection: None)


class Writer(Desk):
    """Commits in groups. A lone errand is a transaction; several have a savepoint each, so that one may fail alone.

    Nobody gets an answer before the commit. While a transaction is lent out, everything else waits.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], *, path: str, patience: float, watch: Watch) -> None:
        super().__init__(connect, name="ostinato writer")
        self._path, self._patience, self._watch = path, patience, watch

    def nudge(self) -> None:
        """Has the watch look at once."""
        self.put(Nudge())

    def after_fork_in_child(self) -> None:
        super().after_fork_in_child()
        _TURNS.clear()

    def after_fork_in_parent(self) -> None:
        super().after_fork_in_parent()
        if self._watch.listened_to:
            self.nudge()

    def _serve(self, connection: sqlite3.Connection, errand: Errand[Any], errands: Errands) -> Errand[Any]:
        turns = _TURNS.setdefault(self._path, Turns())
        following: Errand[Any] | None = None
        while errand.work is not None:
            if isinstance(errand, Loan):
                self._lend(connection, errand, turns)
            elif not isinstance(errand, Nudge):
                batch, following = _batch(errand, errands)
                self._commit(connection, batch, turns)
            errand, following = following or self._next(connection, errands), None
        return errand

    def _next(self, connection: sqlite3.Connection, errands: Errands) -> Errand[Any]:
        """The next errand. Until it comes, listeners are told what other connections commit."""
        while True:
            self._watch.look(connection)
            try:
                return errands.get(timeout=self._watch.pause())
            except Empty:
                continue

    def _commit(self, connection: sqlite3.Connection, batch: list[Errand[Any]], turns: Turns) -> None:
        before = connection.total_changes
        try:
            with turns:
                begin(connection, self._patience)
                _do_all(connection, batch)
        except BaseException as error:
            for errand in batch:
                errand.error = errand.error or error
        deliver(batch)
        self._watch.committed(changed=connection.total_changes != before)

    def _lend(self, connection: sqlite3.Connection, loan: Loan, turns: Turns) -> None:
        try:
            with turns:
                if not loan.given_up:
                    begin(connection, self._patience)
                    _serve_loan(connection, loan)
        except BaseException as error:
            loan.error = error
        loan.end()
        deliver([loan])
        self._watch.committed(changed=True)


def _serve_loan(connection: sqlite3.Connection, loan: Loan) -> None:
    try:
        deliver([loan])
        loan.serve(connection)
    finally:
        roll_back(connection)


def _batch(errand: Errand[Any], errands: Errands) -> tuple[list[Errand[Any]], Errand[Any] | None]:
    """What waits to be committed together, and what comes after it."""
    batch = [errand]
    while len(batch) < LARGEST_BATCH and not errands.empty():
        following = errands.get()
        if following.work is None or isinstance(following, Loan):
            return batch, following
        if not isinstance(following, Nudge):
            batch.append(following)
    return batch, None


def _do_all(connection: sqlite3.Connection, batch: list[Errand[Any]]) -> None:
    """Does everything and commits, unless all of it failed."""
    try:
        if len(batch) == 1:
            batch[0].do(connection)
        else:
            _do_several(connection, batch)
        if any(errand.error is None for errand in batch):
            connection.execute("commit")
    finally:
        roll_back(connection)


def _do_several(connection: sqlite3.Connection, batch: list[Errand[Any]]) -> None:
    insertions = [errand for errand in batch if isinstance(errand, Insertion)]
    if len(insertions) > 1:
        together = Together(insertions)
        _do_apart(connection, together)
        if together.error is None:
            together.share()
            batch = [errand for errand in batch if not isinstance(errand, Insertion)]
    for errand in batch:
        _do_apart(connection, errand)


def _do_apart(connection: sqlite3.Connection, errand: Errand[Any]) -> None:
    """Does one of several. Some errors, like that of a full disk, end the whole transaction: then nothing was done."""
    connection.execute("savepoint errand")
    errand.do(connection)
    if errand.error is not None:
        if not connection.in_transaction:
            raise errand.error
        connection.execute("rollback to errand")
    connection.execute("release errand")
