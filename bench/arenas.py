"""Where contenders are measured: a fresh database, or a fresh file, for every single figure."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

import asyncpg

from bench.children import perform
from bench.contenders import StoreName, Target
from bench.roles import Task
from bench.server_shim import PostgresServer

DATA = Path(__file__).parent / ".data"

SERVER_SETTINGS = {
    "max_connections": "300",       # 32 producers with a small pool each
    "max_wal_size": "4GB",          # the arena checkpoints between figures; none should start within one
}
REPORTED_SETTINGS = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers",
    "max_wal_size", "max_connections", "autovacuum", "jit",
)  # fmt: skip


class Arena(Protocol):
    """A store that can be had fresh and migrated, as often as needed."""

    store: StoreName

    def fresh(self, contender: str) -> AbstractAsyncContextManager[str]:
        """Open a migrated, empty database for this contender, yield its address, and remove it afterwards."""

    async def settle(self, url: str) -> None:
        """Write out what earlier work left dirty, so that it does not fall into the next figure."""

    async def describe(self) -> dict[str, str]:
        """Say which version and settings the figures were taken with."""


class PostgresArena:
    """A server of our own with fsync on, and a copy of a migrated template for every figure."""

    store: StoreName = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._numbers = count(1)
        self._templates: dict[str, str] = {}

    @asynccontextmanager
    async def fresh(self, contender: str) -> AsyncIterator[str]:
        template = await self._template(contender)
        name = f"bench_{next(self._numbers)}"
        await self._administer(f'create database "{name}" template "{template}"')
        try:
            yield self._server.dsn(name)
        finally:
            await self._administer(f'drop database "{name}" with (force)')

    async def settle(self, url: str) -> None:
        await self._administer("checkpoint")

    async def describe(self) -> dict[str, str]:
        connection = await asyncpg.connect(self._server.dsn("postgres"))
        try:
            return {name: await connection.fetchval("select current_setting($1)", name) for name in REPORTED_SETTINGS}
        finally:
            await connection.close()

    async def _template(self, contender: str) -> str:
        if contender not in self._templates:
            name = f"template_{len(self._templates)}"
            await self._administer(f'create database "{name}"')
            await perform(Task(contender, self.store, Target(self._server.dsn(name)), "migrate"))
            self._templates[contender] = name
        return self._templates[contender]

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self._server.dsn("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


class SqliteArena:
    """A folder on a real disk, and a copy of a migrated file for every figure."""

    store: StoreName = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    @asynccontextmanager
    async def fresh(self, contender: str) -> AsyncIterator[str]:
        template = await self._template(contender)
        folder = self._folder / f"bench_{next(self._numbers)}"
        folder.mkdir()
        shutil.copy(template, folder / "bench.db")
        try:
            yield f"sqlite:///{folder / 'bench.db'}"
        finally:
            shutil.rmtree(folder)

    async def settle(self, url: str) -> None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        os.sync()

    async def describe(self) -> dict[str, str]:
        return {"sqlite_version": sqlite3.sqlite_version, "journal_mode": "wal", "synchronous": "full"}

    async def _template(self, contender: str) -> Path:
        path = self._folder / f"template-{contender}.db"
        if not path.exists():
            await perform(Task(contender, self.store, Target(f"sqlite:///{path}"), "migrate"))
        return path


@contextmanager
def postgres() -> Iterator[Arena]:
    with PostgresServer(fsync=True, settings=SERVER_SETTINGS) as server:
        yield PostgresArena(server)


@contextmanager
def sqlite() -> Iterator[Arena]:
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        yield SqliteArena(Path(folder))


ARENAS = {"postgres": postgres, "sqlite": sqlite}
