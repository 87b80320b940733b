"""What users may hold when they call us: each library's connection or session, in a transaction of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from tests.integrations.djangos import configured


@dataclass
class Held:
    """A connection in a transaction. What its functions give is awaited, if it can be."""

    conn: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    savepoint: Callable[[], Any]
    undo: Callable[[], Any]
    """Rolls back to the savepoint."""

    def note(self, text: str) -> Any:
        return self.execute(f"insert into notes (text) values ('{text}')")


@dataclass(frozen=True)
class Library:
    """A way to hold a connection, and on which kind of database."""

    name: str
    dialect: str
    open: Callable[[str], Any]
    is_async: bool = False

    @property
    def on_any_thread(self) -> bool:
        """Django refuses to be used where an event loop runs."""
        return not self.name.startswith("django")


def with_savepoints(conn: Any, execute: Callable[[str], Any]) -> Held:
    """A connection whose user writes savepoints as statements."""
    return Held(
        conn,
        execute,
        conn.commit,
        conn.rollback,
        lambda: execute("savepoint here"),
        lambda: execute("rollback to savepoint here"),
    )


def nested(conn: Any, execute: Callable[[str], Any]) -> Held:
    """One of SQLAlchemy's, whose nested transactions are savepoints."""
    begun: list[Any] = []
    return Held(
        conn,
        execute,
        conn.commit,
        conn.rollback,
        lambda: begun.append(conn.begin_nested()),
        lambda: begun.pop().rollback(),
    )


def nested_async(conn: Any, execute: Callable[[str], Any]) -> Held:
    begun: list[Any] = []

    async def savepoint() -> None:
        begun.append(await conn.begin_nested())

    return Held(conn, execute, conn.commit, conn.rollback, savepoint, lambda: begun.pop().rollback())


# --- drivers --------------------------------------------------------------------------------------------------------


@contextmanager
def of_sqlite3(url: str) -> Iterator[Held]:
    with closing(sqlite3.connect(path_of(url), isolation_level=None, timeout=10)) as connection:
        connection.execute("begin immediate")
        yield with_savepoints(connection, connection.execute)


@contextmanager
def of_psycopg(url: str) -> Iterator[Held]:
    with closing(psycopg.connect(url)) as connection:
        yield with_savepoints(connection, lambda sql: connection.execute(sql.encode()))


@contextmanager
def of_psycopg2(url: str) -> Iterator[Held]:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        yield with_savepoints(connection, cursor.execute)


@asynccontextmanager
async def of_psycopg_async(url: str) -> AsyncIterator[Held]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield with_savepoints(connection, lambda sql: connection.execute(sql.encode()))
        await connection.rollback()


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Held]:
    connection = await asyncpg.connect(url)
    try:
        yield await in_transaction(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def of_asyncpg_pool(url: str) -> AsyncIterator[Held]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield await in_transaction(connection)


async def in_transaction(connection: Any) -> Held:
    transaction, inner = connection.transaction(), connection.transaction()
    await transaction.start()
    return Held(connection, connection.execute, transaction.commit, transaction.rollback, inner.start, inner.rollback)


# --- SQLAlchemy -----------------------------------------------------------------------------------------------------


def of_session(driver: str) -> Callable[[str], Any]:
    @contextmanager
    def opened(url: str) -> Iterator[Held]:
        with engine_on(url, driver) as engine, sessionmaker(engine)() as session:
            yield nested(session, lambda sql: session.execute(sqlalchemy.text(sql)))

    return opened


@contextmanager
def of_scoped_session(url: str) -> Iterator[Held]:
    with engine_on(url, "psycopg") as engine:
        session = scoped_session(sessionmaker(engine))
        yield nested(session, lambda sql: session.execute(sqlalchemy.text(sql)))
        session.remove()


def of_connection(driver: str) -> Callable[[str], Any]:
    @contextmanager
    def opened(url: str) -> Iterator[Held]:
        with engine_on(url, driver) as engine, engine.connect() as connection:
            yield nested(connection, lambda sql: connection.execute(sqlalchemy.text(sql)))

    return opened


def of_async_session(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Held]:
        async with async_engine_on(url, driver) as engine, AsyncSession(engine) as session:
            yield nested_async(session, lambda sql: session.execute(sqlalchemy.text(sql)))

    return opened


@asynccontextmanager
async def of_async_scoped_session(url: str) -> AsyncIterator[Held]:
    async with async_engine_on(url, "asyncpg") as engine:
        session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: None)
        yield nested_async(session, lambda sql: session.execute(sqlalchemy.text(sql)))
        await session.remove()


def of_async_connection(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Held]:
        async with async_engine_on(url, driver) as engine, engine.connect() as connection:
            yield nested_async(connection, lambda sql: connection.execute(sqlalchemy.text(sql)))

    return opened


@contextmanager
def engine_on(url: str, driver: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(with_driver(url, driver), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def async_engine_on(url: str, driver: str, **options: Any) -> AsyncIterator[Any]:
    engine = create_async_engine(with_driver(url, driver), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


def with_driver(url: str, driver: str) -> str:
    dialect, _, rest = url.partition("://")
    return f"{dialect}+{driver}://{rest}"


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


# --- Django ---------------------------------------------------------------------------------------------------------


@contextmanager
def of_django(url: str) -> Iterator[Held]:
    from django.db import connection, transaction  # type: ignore[import-untyped]

    blocks: list[Any] = []

    def enter() -> None:
        blocks.append(transaction.atomic())
        blocks[-1].__enter__()

    def leave(*, undone: bool) -> None:
        if undone:
            transaction.set_rollback(True)
        blocks.pop().__exit__(None, None, None)

    with configured(url):
        enter()
        try:
            yield Held(
                connection,
                lambda sql: connection.cursor().execute(sql),
                lambda: leave(undone=False),
                lambda: leave(undone=True),
                enter,
                lambda: leave(undone=True),
            )
        finally:
            while blocks:
                leave(undone=True)


POSTGRESQL, SQLITE = "postgresql", "sqlite"

LIBRARIES = [
    Library("asyncpg", POSTGRESQL, of_asyncpg, is_async=True),
    Library("asyncpg pool", POSTGRESQL, of_asyncpg_pool, is_async=True),
    Library("psycopg", POSTGRESQL, of_psycopg),
    Library("psycopg async", POSTGRESQL, of_psycopg_async, is_async=True),
    Library("psycopg2", POSTGRESQL, of_psycopg2),
    Library("session psycopg", POSTGRESQL, of_session("psycopg")),
    Library("session psycopg2", POSTGRESQL, of_session("psycopg2")),
    Library("session pysqlite", SQLITE, of_session("pysqlite")),
    Library("scoped session", POSTGRESQL, of_scoped_session),
    Library("connection psycopg", POSTGRESQL, of_connection("psycopg")),
    Library("connection psycopg2", POSTGRESQL, of_connection("psycopg2")),
    Library("connection pysqlite", SQLITE, of_connection("pysqlite")),
    Library("async session asyncpg", POSTGRESQL, of_async_session("asyncpg"), is_async=True),
    Library("async session psycopg", POSTGRESQL, of_async_session("psycopg"), is_async=True),
    Library("async session aiosqlite", SQLITE, of_async_session("aiosqlite"), is_async=True),
    Library("async scoped session", POSTGRESQL, of_async_scoped_session, is_async=True),
    Library("async connection asyncpg", POSTGRESQL, of_async_connection("asyncpg"), is_async=True),
    Library("async connection psycopg", POSTGRESQL, of_async_connection("psycopg"), is_async=True),
    Library("async connection aiosqlite", SQLITE, of_async_connection("aiosqlite"), is_async=True),
    Library("django postgresql", POSTGRESQL, of_django),
    Library("django sqlite", SQLITE, of_django),
    Library("sqlite3", SQLITE, of_sqlite3),
]
