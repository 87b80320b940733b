"""What every test may ask for.

PostgreSQL servers are started when a test first asks for them, one per version and test process. Tests that
restart or kill a server, or need `fsync`, start their own `PostgresServer`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import pytest

from ostinato import App
from ostinato.testing.postgres import PostgresServers, Server
from tests.engine.databases import NOTES, Database, PostgresDatabase, SqliteDatabase

SERVERS = PostgresServers()
PREFERRED = 16


class PostgresTemplate(NamedTuple):
    """A database to be copied, on one version of PostgreSQL."""

    server: Server
    name: str

    def copy(self) -> AbstractContextManager[str]:
        return self.server.temporary_database(self.name)


@pytest.fixture(scope="session")
def ostinato_servers() -> Iterator[PostgresServers]:
    """The plugin's servers are these."""
    yield SERVERS
    SERVERS.close()


@pytest.fixture(scope="session")
def postgres_server(ostinato_servers: PostgresServers) -> PostgresServers:
    """`postgres_server(18)` is the shared server of that version."""
    return ostinato_servers


@pytest.fixture(scope="session", params=SERVERS.versions, ids=lambda version: f"postgres{version}")
def postgres(request: pytest.FixtureRequest, postgres_server: PostgresServers) -> Server:
    """A shared server; a test that asks for it runs once on every version there is."""
    return postgres_server(request.param)


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """The URL of an empty database of the test's own, on every version there is."""
    with postgres.temporary_database() as url:
        yield url


# --- databases with the schema and the user's table -----------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServers) -> Iterator[PostgresTemplate]:
    """A database to be copied."""
    name, versions = f"template_{secrets.token_hex(4)}", postgres_server.versions
    server = postgres_server(PREFERRED if PREFERRED in versions else max(versions))
    _prepare(PostgresDatabase(server.create_database(name)))
    yield PostgresTemplate(server, name)
    server.drop_database(name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to be copied."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    _prepare(SqliteDatabase(f"sqlite:///{path}"))
    return path


def _prepare(database: Database) -> None:
    asyncio.run(App(database.url).migrations().up())
    database.query(NOTES)


@pytest.fixture
def sqlite_database(sqlite_template: Path, tmp_path: Path) -> Database:
    """A file of the test's own."""
    path = tmp_path / "radio.db"
    shutil.copy(sqlite_template, path)
    return SqliteDatabase(f"sqlite:///{path}")


@pytest.fixture
def postgres_database(postgres_template: PostgresTemplate) -> Iterator[Database]:
    """A database of the test's own."""
    with postgres_template.copy() as url:
        yield PostgresDatabase(url)


# --- processes ------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """A test process of xdist's ends when the one that started it is killed; its servers go with it."""
    if hasattr(config, "workerinput"):
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
