"""Real apps and workers inside the test's own event loop, on SQLite and on one version of PostgreSQL."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ostinato.app
import ostinato.engine.worker
from ostinato import App
from ostinato.config import Settings
from ostinato.store.ports import Store
from ostinato.store.sqlite import SqliteStore
from ostinato.testing.postgres import PostgresServers
from ostinato.testing.probe import Probe
from tests.engine.databases import NOTES, Database, PostgresDatabase, SqliteDatabase

PREFERRED = 16
TEMPLATE = f"engine_{secrets.token_hex(4)}"

MakeApp = Callable[..., App]


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServers) -> Iterator[tuple[Any, str]]:
    """A server, and the name of a database on it that has the schema and the user's table."""
    versions = postgres_server.versions
    server = postgres_server(PREFERRED if PREFERRED in versions else max(versions))
    url = server.create_database(TEMPLATE)
    _prepare(PostgresDatabase(url))
    yield server, TEMPLATE
    server.drop_database(TEMPLATE)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that has the schema and the user's table."""
    path = tmp_path_factory.mktemp("engine") / "template.db"
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
    path = tmp_path / "engine.db"
    shutil.copy(sqlite_template, path)
    return SqliteDatabase(f"sqlite:///{path}")


@pytest.fixture
def postgres_database(postgres_template: tuple[Any, str]) -> Iterator[Database]:
    server, template = postgres_template
    with server.temporary_database(template) as url:
        yield PostgresDatabase(url)


@pytest.fixture(autouse=True)
def careless_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug in these tests."""
    make_store = ostinato.app.make_store

    def careless(settings: Settings) -> Store:
        if settings.dialect == "sqlite":
            return SqliteStore(settings.url, schema=settings.schema, notify=settings.notify, synchronous="OFF")
        return make_store(settings)

    monkeypatch.setattr(ostinato.app, "make_store", careless)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for handlers that do not stop. But everybody polls as seldom as in production, so that a
    wake-up that is lost is a test that fails."""
    monkeypatch.setattr(ostinato.engine.worker, "FORCED_PATIENCE", 0.2)


@pytest.fixture
def make_app(database: Database) -> MakeApp:
    """Makes apps on the test's database, that nobody has opened."""

    def make(**settings: Any) -> App:
        return App(database.url, **{"shutdown_grace": "500ms", **settings})

    return make


@pytest.fixture
async def app(make_app: MakeApp) -> AsyncIterator[App]:
    """An app that is open."""
    async with make_app() as app:
        yield app


@pytest.fixture
def probe(app: App) -> Iterator[Probe]:
    """What happens in the app."""
    with Probe(app.telemetry) as probe:
        yield probe
