"""What a test may know of a database: its rows, read by another driver than Ostinato's."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Protocol

import psycopg

EFFECTS = "create table effects (run_id text not null, item integer not null, lease_no integer not null)"
"""Where handlers leave a row. Without a unique constraint, so that a second row of a run would be seen."""

_COUNTED = "select state, count(*) from {} where {} group by state"

ENDED = ("completed", "failed", "cancelled")


class Database(Protocol):
    """A database with Ostinato's schema and the table of effects."""

    url: str
    dialect: str
    runs: str
    workers: str

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query; for a statement that has none, what it did is committed."""

    def is_being_written(self) -> bool:
        """Whether somebody holds a lock that stands in everybody's way."""


class PostgresDatabase:
    dialect = "postgresql"
    runs = "ostinato.runs"
    workers = "ostinato.workers"

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def is_being_written(self) -> bool:
        return False


class SqliteDatabase:
    dialect = "sqlite"
    runs = "ostinato_runs"
    workers = "ostinato_workers"

    def __init__(self, url: str) -> None:
        self.url = url
        self._path = url.removeprefix("sqlite:///")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path, timeout=10, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    def is_being_written(self) -> bool:
        with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError:
                return True
            return False


# --- questions ------------------------------------------------------------------------------------------------------


def states(database: Database, where: str = "true") -> dict[str, int]:
    """How many runs there are in each state."""
    return {state: count for state, count in database.query(_COUNTED.format(database.runs, where))}  # noqa: C416 - typed


def run_row(database: Database, run_id: str, columns: str) -> tuple[Any, ...]:
    """Columns of one run."""
    return database.query(f"select {columns} from {database.runs} where id = '{run_id}'")[0]


def effects(database: Database) -> list[tuple[str, int, int]]:
    """The rows that handlers left: run, item, lease_no."""
    return database.query("select run_id, item, lease_no from effects order by item")


def unended(database: Database) -> int:
    return sum(states(database, f"state not in {ENDED}").values())


async def until(condition: Callable[[], object], expected: object, *, timeout: float = 15.0) -> None:
    """Waits until a question to the database has the expected answer."""
    deadline = time.monotonic() + timeout
    while (answer := condition()) != expected:
        assert time.monotonic() < deadline, f"after {timeout} s still {answer!r} and not {expected!r}"
        await asyncio.sleep(0.01)


async def all_ended(database: Database, *, timeout: float = 15.0) -> None:
    """Waits until no run is left to do."""
    await until(lambda: unended(database), 0, timeout=timeout)


def assert_one_effect_each(database: Database, items: Sequence[int]) -> None:
    """Every item has exactly one row, left by a run that completed."""
    left = effects(database)
    assert sorted(items) == [item for _, item, _ in left]
    assert len(left) == len({run_id for run_id, _, _ in left})
