"""Fixtures of tests with real worker processes: a database, the workers on it, and the log of what they did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ostinato import App
from ostinato.testing.postgres import PostgresServers, Server
from tests.system.databases import EFFECTS, Database, PostgresDatabase, SqliteDatabase
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew

PREFERRED = 16
TEMPLATE = "system_template"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """An empty database of the test's own; a test that asks for it runs on SQLite and on one PostgreSQL."""
    chosen: Database = request.getfixturevalue(f"{request.param}_database")
    return chosen


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Database:
    database = SqliteDatabase(f"sqlite:///{tmp_path}/radio.db")
    prepare(database)
    return database


@pytest.fixture
def postgres_database(system_server: Server) -> Iterator[Database]:
    with system_server.temporary_database(template=TEMPLATE) as url:
        yield PostgresDatabase(url)


@pytest.fixture(scope="session")
def system_server(postgres_server: PostgresServers) -> Server:
    """The shared server of one version, with a template of a migrated database."""
    versions = postgres_server.versions
    server = postgres_server(PREFERRED if PREFERRED in versions else versions[-1])
    server.drop_database(TEMPLATE)
    prepare(PostgresDatabase(server.create_database(TEMPLATE)))
    return server


def prepare(database: Database) -> None:
    """Makes the schema, and the table of effects."""
    asyncio.run(App(database.url).migrations().up())
    database.query(EFFECTS)


@pytest.fixture
async def app(database: Database) -> AsyncIterator[App]:
    """The producer: an app in the test's process that knows no functions, only their names."""
    async with App(database.url) as app:
        yield app


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    log = Log()
    yield log
    log.close()


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)


@pytest.fixture
async def crew(database: Database, log: Log, gates: Gates, request: pytest.FixtureRequest) -> AsyncIterator[Crew]:
    crew = Crew(database, log, gates)
    yield crew
    await crew.close()
    request.node.add_report_section("teardown", "workers", crew.complaints())
