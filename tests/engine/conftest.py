"""Real apps and workers inside the test's own event loop, on SQLite and on one version of PostgreSQL.

Databases, clock, drain and probe are the plugin's (`ostinato.testing.plugin`), under shorter names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import ostinato.app
import ostinato.engine.pruner
import ostinato.engine.worker
from ostinato import App
from ostinato.config import Settings
from ostinato.store.ports import Store
from ostinato.testing import Bind, Clock, Databases, Drain, PostgresServers, Prepare, Probe
from ostinato.testing.binding import make_store
from tests.engine.databases import Database, PostgresDatabase, SqliteDatabase, database_at, make_notes

PREFERRED = 16

MakeApp = Callable[..., App]


@pytest.fixture(scope="session")
def preferred_postgres(ostinato_servers: PostgresServers) -> str:
    return f"postgresql{PREFERRED}" if PREFERRED in ostinato_servers.versions else "postgresql"


@pytest.fixture(params=["sqlite", "postgres"])
def ostinato_database(request: pytest.FixtureRequest, preferred_postgres: str) -> str:
    """A test that asks for a database runs on SQLite and on PostgreSQL."""
    return "sqlite" if request.param == "sqlite" else preferred_postgres


@pytest.fixture(scope="session")
def ostinato_prepare() -> Prepare:
    """Every database has the user's table."""
    return make_notes


@pytest.fixture
def database(ostinato_url: str) -> Database:
    """A database of the test's own."""
    return database_at(ostinato_url)


@pytest.fixture
def sqlite_database(ostinato_sqlite: str) -> Database:
    return SqliteDatabase(ostinato_sqlite)


@pytest.fixture
def postgres_database(
    ostinato_databases: Databases, ostinato_prepare: Prepare, preferred_postgres: str
) -> Iterator[Database]:
    with ostinato_databases.temporary(preferred_postgres, prepare=ostinato_prepare) as url:
        yield PostgresDatabase(url)


@pytest.fixture(autouse=True)
def careless_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug in these tests, on apps that they make themselves neither."""
    usual = ostinato.app.make_store

    def careless(settings: Settings) -> Store:
        return make_store(settings) if settings.dialect == "sqlite" else usual(settings)

    monkeypatch.setattr(ostinato.app, "make_store", careless)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for handlers that do not stop. But everybody polls as seldom as in production, so that a
    wake-up that is lost is a test that fails."""
    monkeypatch.setattr(ostinato.engine.worker, "FORCED_PATIENCE", 0.2)
    monkeypatch.setattr(ostinato.engine.pruner, "FIRST", 0.0)


@pytest.fixture
def make_app(ostinato_url: str, ostinato_bind: Bind) -> MakeApp:
    """Makes apps on the test's database, that nobody has opened."""

    def make(**settings: Any) -> App:
        return ostinato_bind(App(ostinato_url, **{"shutdown_grace": "500ms", **settings}))

    return make


@pytest.fixture
async def app(make_app: MakeApp) -> AsyncIterator[App]:
    """An app that is open. A module that needs another one overrides it."""
    async with make_app() as app:
        yield app


@pytest.fixture
def ostinato_app(app: App) -> App:
    """What the plugin's fixtures are about."""
    return app


@pytest.fixture
def probe(ostinato_probe: Probe) -> Probe:
    """What happens in the app."""
    return ostinato_probe


@pytest.fixture
def clock(ostinato_clock: Clock) -> Clock:
    """The clock of the test's database."""
    return ostinato_clock


@pytest.fixture
def drain(ostinato_drain: Drain) -> Drain:
    """Executes what is due in the app."""
    return ostinato_drain
