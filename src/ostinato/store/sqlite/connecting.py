"""Connections to the file, all alike."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import ConfigError
from .errors import is_busy

OLDEST = (3, 35, 0)
"""The first with RETURNING."""

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
CHECKPOINT_PAGES = 8000
LARGEST_WAL = 64 << 20
CACHE_KIB = 16_000
STATEMENTS = 256
PATIENCE = 30.0

Clock = Callable[[], int]


def wall_clock() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def check_version() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigError(
            f"this Python comes with SQLite {sqlite3.sqlite_version}, "
            f"and Ostinato needs {'.'.join(map(str, OLDEST))} or newer"
        )


def connect(path: str, *, clock: Clock, synchronous: str, patience: float = PATIENCE) -> sqlite3.Connection:
    """A connection that knows our clock. It waits for nobody: those who write do so by `begin`."""
    connection = sqlite3.connect(
        path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS
    )
    try:
        patiently(lambda: _prepare(connection, path, synchronous), patience)
    except BaseException:
        connection.close()
        raise
    know_the_clock(connection, clock)
    return connection


def _prepare(connection: sqlite3.Connection, path: str, synchronous: str) -> None:
    (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        raise ConfigError(
            f"{path} cannot have a write-ahead log (its journal is {mode!r}); is it on a network file system?"
        )
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"pragma journal_size_limit = {LARGEST_WAL}")
    connection.execute(f"pragma cache_size = -{CACHE_KIB}")
    connection.execute("pragma temp_store = memory")


def know_the_clock(connection: Any, clock: Clock) -> Awaitable[None] | None:
    """Makes ostinato_now(). It cannot be made again while a statement of the connection is under way. Answers what is
    to be awaited, if the connection is of aiosqlite."""
    answer: Awaitable[None] | None = connection.create_function("ostinato_now", 0, clock)
    return answer


def begin(connection: sqlite3.Connection, patience: float) -> None:
    """Opens a transaction that may write. One that has read first may be refused to write, however patient it is."""
    patiently(lambda: connection.execute("begin immediate"), patience)


def roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("rollback")


def patiently(work: Callable[[], object], patience: float) -> None:
    """Does what another writer may be in the way of. SQLite's own waiting backs off to 100 ms, and then starves."""
    deadline = time.monotonic() + patience
    while True:
        try:
            work()
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.002))
