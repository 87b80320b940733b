"""Where contenders are measured: a fresh database, or a fresh file, for every single figure."""

import os
import shutil
import sqlite3
import sys
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
from ostinato.testing.postgres import PostgresServer

DATA = Path(__file__).parent / ".data"

SERVER_SETTINGS = {
    "max_connections": "300",  # 32 producers with a small pool each
    "max_wal_size": "4GB",  # the arena checkpoints between figures; none should start within one
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
        try:
            yield self._server.create_database(name, template)
        finally:
            self._server.drop_database(name)

    async def settle(self, url: str) -> None:
        async with self._connected() as connection:
            await connection.execute("checkpoint")

    async def describe(self) -> dict[str, str]:
        async with self._connected() as connection:
            settings = [(name, await connection.fetchval(f"show {name}")) for name in REPORTED_SETTINGS]
        return dict(settings) | {"file system": file_system(self._server.socket_dir)}

    async def _template(self, contender: str) -> str:
        if contender not in self._templates:
            name = f"template_{len(self._templates)}"
            self._server.drop_database(name)  # left by a peer that could not be migrated
            url = self._server.create_database(name)
            await perform(Task(contender, self.store, Target(url), "migrate"))
            self._templates[contender] = name
        return self._templates[contender]

    @asynccontextmanager
    async def _connected(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        connection = await asyncpg.connect(self._server.dsn())
        try:
            yield connection
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
        version = {"version": sqlite3.sqlite_version, "file system": file_system(self._folder)}
        return version | {"journal_mode": "wal", "synchronous": "full"}

    async def _template(self, contender: str) -> Path:
        path = self._folder / f"template-{contender}.db"
        if not path.exists():
            await perform(Task(contender, self.store, Target(f"sqlite:///{path}"), "migrate"))
        return path


@contextmanager
def postgres() -> Iterator[Arena]:
    with PostgresServer(fsync=True, settings=SERVER_SETTINGS) as server:
        refuse_memory(server.socket_dir)
        yield PostgresArena(server)


@contextmanager
def sqlite() -> Iterator[Arena]:
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        refuse_memory(Path(folder))
        yield SqliteArena(Path(folder))


ARENAS = {"postgres": postgres, "sqlite": sqlite}


def file_system(path: Path) -> str:
    """Name the type of the file system that holds the path."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(point, kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]))[1]


def refuse_memory(path: Path) -> None:
    """In memory an fsync costs nothing, and every figure of a durable commit would be a lie."""
    if file_system(path) in ("tmpfs", "ramfs"):
        sys.exit(f"{path} is in memory; put the data on a disk, for PostgreSQL by setting TMPDIR")
