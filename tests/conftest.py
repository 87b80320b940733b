"""What every test may ask for.

PostgreSQL servers are started when a test first asks for them, one per version and test process. Tests that
restart or kill a server, or need `fsync`, start their own `PostgresServer`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ostinato.testing.postgres import PostgresServers, Server

SERVERS = PostgresServers()


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


def pytest_configure(config: pytest.Config) -> None:
    """A test process of xdist's ends when the one that started it is killed; its servers go with it."""
    if hasattr(config, "workerinput"):
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
