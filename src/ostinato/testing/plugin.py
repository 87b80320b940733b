"""The pytest plugin: an application's own app on a database of the test's own, its clock, and what is due in it.

pytest loads this module in every project that has Ostinato installed. So it imports nothing but pytest; what a fixture
needs is imported when a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ostinato.app import App
    from ostinato.sync import Client

    from .binding import Bind
    from .clock import Clock
    from .databases import Databases, Prepare
    from .draining import Drain
    from .postgres import PostgresServers
    from .probe import Probe

_KINDS = "sqlite, postgresql, a version like postgresql16, or the URL of a PostgreSQL server that may make databases"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ostinato", "Ostinato")
    group.addoption(
        "--ostinato-database",
        action="append",
        metavar="KIND",
        help=f"where tests find their temporary database: {_KINDS}; given several times, tests run on each",
    )
    parser.addini("ostinato_database", f"where tests find their temporary database: {_KINDS}", "args", ["sqlite"])
    parser.addini("ostinato_app", "the app to test, like radio:app", "string", "")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ostinato-database") or config.getini("ostinato_database") != ["sqlite"]:
        from ostinato.errors import ConfigError

        from .databases import check_kind

        for kind in _chosen(config):
            try:
                check_kind(kind)
            except ConfigError as error:
                raise pytest.UsageError(f"--ostinato-database: {error}") from error


def _chosen(config: pytest.Config) -> list[str]:
    kinds: list[str] = config.getoption("--ostinato-database") or config.getini("ostinato_database")
    return kinds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With several databases, a test that uses one runs on each."""
    kinds = _chosen(metafunc.config)
    if "_ostinato_kind" in metafunc.fixturenames and len(kinds) > 1:
        metafunc.parametrize("_ostinato_kind", kinds, indirect=True, ids=[kind.partition(":")[0] for kind in kinds])


# --- databases --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _ostinato_kind(request: pytest.FixtureRequest) -> str:
    kind: str = getattr(request, "param", None) or _chosen(request.config)[0]
    return kind


@pytest.fixture
def ostinato_database(_ostinato_kind: str) -> str:
    """Which database the test runs on: sqlite, postgresql, a version like postgresql16, or the URL of a server.

    It is chosen by `--ostinato-database` or the ini setting `ostinato_database`. Override it, also with params, to
    choose for some tests only.
    """
    return _ostinato_kind


@pytest.fixture(scope="session")
def ostinato_servers() -> Iterator[PostgresServers]:
    """Real PostgreSQL servers, shared by all tests of the process: `ostinato_servers(18)` starts one, or gives the one
    that runs."""
    from .postgres import PostgresServers

    servers = PostgresServers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def ostinato_databases(
    tmp_path_factory: pytest.TempPathFactory, ostinato_servers: PostgresServers
) -> Iterator[Databases]:
    """Makes temporary databases: `with ostinato_databases.temporary("postgresql") as url:`."""
    from .databases import Databases

    databases = Databases(tmp_path_factory.mktemp("ostinato"), servers=ostinato_servers)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def ostinato_prepare() -> Prepare | None:
    """Override it to make your own tables: a function of a database's URL, sync or async.

    It is called once for the template, after Ostinato's own tables were made; each test gets a copy.
    """
    return None


@pytest.fixture
def ostinato_url(
    ostinato_database: str, ostinato_databases: Databases, ostinato_prepare: Prepare | None, tmp_path: Path
) -> Iterator[str]:
    """The URL of the test's own database, with Ostinato's tables and those of `ostinato_prepare`."""
    with ostinato_databases.temporary(ostinato_database, prepare=ostinato_prepare, folder=tmp_path) as url:
        yield url


@pytest.fixture
def ostinato_postgres(ostinato_databases: Databases, ostinato_prepare: Prepare | None) -> Iterator[str]:
    """The URL of a database of the test's own on a real PostgreSQL, whatever the other tests run on."""
    with ostinato_databases.temporary("postgresql", prepare=ostinato_prepare) as url:
        yield url


@pytest.fixture
def ostinato_sqlite(ostinato_databases: Databases, ostinato_prepare: Prepare | None, tmp_path: Path) -> Iterator[str]:
    """The URL of a SQLite file of the test's own, whatever the other tests run on."""
    with ostinato_databases.temporary("sqlite", prepare=ostinato_prepare, folder=tmp_path) as url:
        yield url


# --- the app ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ostinato_clock(ostinato_url: str, ostinato_databases: Databases) -> Clock:
    """The clock of the test's database, for Python, SQL functions and triggers: `ostinato_clock.advance("1h")`."""
    from .clock import Clock

    return Clock(ostinato_url, schema=ostinato_databases.schema)


@pytest.fixture
def ostinato_bind(ostinato_url: str, ostinato_clock: Clock, ostinato_databases: Databases) -> Iterator[Bind]:
    """Puts an app on the test's database until the test ends: `ostinato_bind(radio.app, lease="5s")`."""
    from .binding import bound

    with ExitStack() as stack:

        def bind(app: App, **settings: Any) -> App:
            stack.enter_context(bound(app, ostinato_url, clock=ostinato_clock, **settings))
            ostinato_databases.migrate(app)
            ostinato_clock.govern(app.settings.schema)
            return app

        yield bind


@pytest.fixture
def ostinato_app(request: pytest.FixtureRequest, ostinato_bind: Bind) -> App:
    """The app that the ini setting `ostinato_app` names (`radio:app`), on the test's database; without the setting, an
    app without functions.

    Override it where that does not fit: `return ostinato_bind(radio.app)`.
    """
    from .binding import find_app

    return ostinato_bind(find_app(request.config.getini("ostinato_app")))


@pytest.fixture
def ostinato_client(ostinato_app: App) -> Iterator[Client]:
    """The app for tests that are plain functions: `ostinato_client.enqueue(radio.enrich, {"track_id": "42"})`."""
    from ostinato.sync import Client

    with Client(ostinato_app) as client:
        yield client


@pytest.fixture
def ostinato_drain(ostinato_app: App, ostinato_clock: Clock) -> Drain:
    """Executes what is due in the app, here and now: `await ostinato_drain()`, or `ostinato_drain.sync()`."""
    from .draining import Drain

    return Drain(ostinato_app, ostinato_clock)


@pytest.fixture
def ostinato_probe(ostinato_app: App) -> Iterator[Probe]:
    """What happens in the app: `await ostinato_probe.next(RunCompleted, run_id=run.id)`, `ostinato_probe.seen(…)`."""
    from .probe import Probe

    with Probe(ostinato_app.telemetry) as probe:
        yield probe
