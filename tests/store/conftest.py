"""Every test here runs on every store there is: SQLite, and each version of PostgreSQL that is found."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ostinato.store.ports import Store
from ostinato.testing.postgres import PostgresServers
from tests.store.databases import STORES, Database, PostgresDatabase, SqliteDatabase
from tests.store.samples import DECLARED

Make = Callable[[], Database]


@pytest.fixture(scope="session")
def templates(postgres_server: PostgresServers) -> Iterator[dict[int, str]]:
    """For each version that was asked for, a database that has the schema, to be copied."""
    made: dict[int, str] = {}
    yield made
    for version, name in made.items():
        postgres_server(version).drop_database(name)


@pytest.fixture(params=STORES)
def make_empty(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: PostgresServers) -> Iterator[Make]:
    """Makes databases without a schema."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield lambda: SqliteDatabase(f"sqlite:///{tmp_path}/{secrets.token_hex(4)}.db")
        else:
            server = postgres_server(_version(request.param))
            yield lambda: PostgresDatabase(stack.enter_context(server.temporary_database()))


@pytest.fixture(params=STORES)
def make_database(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres_server: PostgresServers,
    templates: dict[int, str],
) -> Iterator[Make]:
    """Makes databases that have the schema."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield lambda: SqliteDatabase(f"sqlite:///{tmp_path}/{secrets.token_hex(4)}.db")
        else:
            version = _version(request.param)
            template = _template(postgres_server, templates, version)
            yield lambda: PostgresDatabase(stack.enter_context(postgres_server(version).temporary_database(template)))


@pytest.fixture
async def database(make_database: Make) -> AsyncIterator[Database]:
    """A database with the schema and one declared function, and a store that is open."""
    database = make_database()
    await database.open()
    await database.store.declare([DECLARED], [])
    yield database
    await database.close()


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """The same on SQLite alone, for what only that has to get right."""
    file = SqliteDatabase(f"sqlite:///{tmp_path}/radio.db")
    await file.open()
    await file.store.declare([DECLARED], [])
    yield file
    await file.close()


@pytest.fixture
def store(database: Database) -> Store:
    return database.store


def _version(param: str) -> int:
    return int(param.removeprefix("postgres"))


def _template(servers: PostgresServers, templates: dict[int, str], version: int) -> str:
    if version not in templates:
        name = f"store_{secrets.token_hex(4)}"
        _migrate(servers(version).create_database(name))
        templates[version] = name
    return templates[version]


def _migrate(url: str) -> None:
    async def up() -> None:
        store = PostgresDatabase(url).new_store()
        await store.migrations().up()
        await store.close()

    asyncio.run(up())
