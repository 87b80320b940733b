"""What a test may know of a database, read by another driver than Ostinato's; and small questions to an app."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Protocol

import psycopg

from ostinato import App

NOTES = "create table notes (text text not null)"
"""The user's own table, where handlers leave their effects."""


class Database(Protocol):
    """A database with Ostinato's schema and the table of notes."""

    url: str
    dialect: str

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Executes a statement about `ostinato_runs`, `notes` and so on, and commits it."""


class PostgresDatabase:
    dialect = "postgresql"

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.replace("ostinato_", "ostinato.").encode())
            return cursor.fetchall() if cursor.description else []


class SqliteDatabase:
    dialect = "sqlite"

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = url.removeprefix("sqlite:///")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=10, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()


def database_at(url: str) -> Database:
    return SqliteDatabase(url) if url.startswith("sqlite") else PostgresDatabase(url)


def make_notes(url: str) -> None:
    """Makes the user's table."""
    database_at(url).query(NOTES)


def notes(database: Database) -> list[str]:
    """What handlers have left in the user's table."""
    return [row[0] for row in database.query("select text from notes order by text")]


async def states(app: App) -> dict[str, int]:
    """How many runs there are in each state."""
    found: dict[str, int] = {}
    for count in await app.runs.counts():
        found[count.state.value] = found.get(count.state.value, 0) + count.count
    return found
