"""Clients in code without an event loop, on SQLite and on one version of PostgreSQL."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ostinato import App
from ostinato.sync import Client
from ostinato.testing.postgres import PostgresServers
from tests.engine.databases import NOTES, Database, PostgresDatabase, SqliteDatabase

PREFERRED = 16
TEMPLATE = f"sync_{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServers) -> Iterator[Any]:
    """A server that has a database with the schema and the user's table."""
    versions = postgres_server.versions
    server = postgres_server(PREFERRED if PREFERRED in versions else max(versions))
    _prepare(PostgresDatabase(server.create_database(TEMPLATE)))
    yield server
    server.drop_database(TEMPLATE)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that has the schema and the user's table."""
    path = tmp_path_factory.mktemp("sync") / "template.db"
    _prepare(SqliteDatabase(f"sqlite:///{path}"))
    return path


def _prepare(database: Database) -> None:
    asyncio.run(App(database.url).migrations().up())
    database.query(NOTES)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """A database of the test's own; a test that asks for it runs on SQLite and on PostgreSQL."""
    chosen: Database = request.getfixturevalue(f"{request.param}_database")
    return chosen


@pytest.fixture
def sqlite_database(sqlite_template: Path, tmp_path: Path) -> Database:
    path = tmp_path / "sync.db"
    shutil.copy(sqlite_template, path)
    return SqliteDatabase(f"sqlite:///{path}")


@pytest.fixture
def postgres_database(postgres_template: Any) -> Iterator[Database]:
    with postgres_template.temporary_database(TEMPLATE) as url:
        yield PostgresDatabase(url)


@pytest.fixture
def app(database: Database) -> App:
    """An app that nobody has opened, with two functions."""
    app = App(database.url, shutdown_grace="500ms")

    @app.function
    async def greet(name: str = "you") -> str:
        return f"hello {name}"

    @app.function(name="fail")
    async def fail() -> None:
        raise ValueError("no")

    return app


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    with Client(app) as client:
        yield client
