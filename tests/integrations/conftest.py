"""Users' own connections, each on its kind of database, with an app on the same one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import ostinato.app
from ostinato import App
from ostinato.config import Settings
from ostinato.store.ports import Store
from ostinato.store.sqlite import SqliteStore
from ostinato.testing.probe import Probe
from tests.engine.databases import Database
from tests.integrations.libraries import LIBRARIES, Library


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name.replace(" ", "-"))
def library(request: pytest.FixtureRequest) -> Library:
    """A test that asks for it runs once for every library and driver."""
    chosen: Library = request.param
    return chosen


@pytest.fixture
def database(request: pytest.FixtureRequest, library: Library) -> Database:
    """The database that the library is used on."""
    name = "sqlite_database" if library.dialect == "sqlite" else "postgres_database"
    chosen: Database = request.getfixturevalue(name)
    return chosen


@pytest.fixture(autouse=True)
def careless_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug in these tests."""
    make_store = ostinato.app.make_store

    def careless(settings: Settings) -> Store:
        if settings.dialect == "sqlite":
            return SqliteStore(settings.url, schema=settings.schema, notify=settings.notify, synchronous="OFF")
        return make_store(settings)

    monkeypatch.setattr(ostinato.app, "make_store", careless)


@pytest.fixture
async def app(database: Database) -> AsyncIterator[App]:
    """An app that is open, with a function that does nothing."""
    async with App(database.url, shutdown_grace="500ms") as app:

        @app.function
        async def mail(to: str = "", body: str = "") -> str:
            return f"{to}: {body}"

        yield app


@pytest.fixture
def probe(app: App) -> Iterator[Probe]:
    with Probe(app.telemetry) as probe:
        yield probe
