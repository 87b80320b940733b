"""A database of a test's own: stores on it, a clock that can be put forward, and what a user would do to it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from ostinato.store.ports import Migrations, Store
from ostinato.store.postgres import PostgresStore
from ostinato.store.sqlite import SqliteStore
from ostinato.testing import Clock
from ostinato.testing.postgres import PostgresServers

VERSIONS = PostgresServers().versions
POSTGRES = [f"postgres{version}" for version in VERSIONS]
STORES = ["sqlite", *POSTGRES]

only_sqlite = pytest.mark.parametrize("make_database", ["sqlite"], indirect=True)
only_postgres = pytest.mark.parametrize("make_database", POSTGRES, indirect=True)


class Database:
    """What the tests know of a database. `store` is the one they use; `another` has connections of its own."""

    dialect: str
    store: Store

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock(url)
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        self.store = await self.another()

    async def close(self) -> None:
        await self._stack.aclose()

    async def another(self) -> Store:
        """A second store, as another process has it."""
        store: Store = self.new_store()
        self._stack.push_async_callback(store.close)
        await store.open()
        return store

    async def advance(self, seconds: float) -> None:
        """Puts the database's clock forward, for everybody; leases run out meanwhile."""
        await asyncio.to_thread(self.clock.shift, timedelta(seconds=seconds), renewing=False)

    def new_store(self) -> Any:
        """A store that nobody has opened."""
        raise NotImplementedError

    def migrations(self) -> Migrations:
        """The steps of the schema, on this database."""
        migrations: Migrations = self.new_store().migrations()
        return migrations

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Executes a statement about `ostinato_runs` and so on, past the store, and commits it."""
        raise NotImplementedError

    def connection(self) -> Any:
        """As a context manager, a connection of the user's own, with the methods its driver gave it."""
        raise NotImplementedError

    def transaction(self, connection: Any) -> Any:
        """As a context manager, a transaction on a user's own connection."""
        raise NotImplementedError

    async def count(self, table: str, where: str = "true") -> int:
        (row,) = await self.query(f"select count(*) from ostinato_{table} where {where}")
        return int(row[0])


class SqliteDatabase(Database):
    dialect = "sqlite"

    def new_store(self) -> SqliteStore:
        return SqliteStore(self.url, synchronous="OFF", clock=self.clock.micros)

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        async with self.connection() as connection, self.transaction(connection):
            return list(connection.execute(sql))

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[sqlite3.Connection]:
        path = self.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self, connection: sqlite3.Connection) -> AsyncIterator[None]:
        connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")


class PostgresDatabase(Database):
    dialect = "postgresql"

    def new_store(self) -> PostgresStore:
        return PostgresStore(self.url)

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        async with self.connection() as connection:
            return [tuple(row) for row in await connection.fetch(sql.replace("ostinato_", "ostinato."))]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    def transaction(self, connection: Any) -> Any:
        return connection.transaction()
