"""Clients in code without an event loop, on SQLite and on one version of PostgreSQL."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ostinato import App
from ostinato.sync import Client
from tests.engine.databases import Database
from tests.sync.helpers import loop_threads, until


@pytest.fixture(scope="package", autouse=True)
def nobody_is_left() -> None:
    """Clients that other tests of this process did not close are gone, and the loop's thread with them."""
    gc.collect()
    until(lambda: not loop_threads())


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """A database of the test's own; a test that asks for it runs on SQLite and on PostgreSQL."""
    chosen: Database = request.getfixturevalue(f"{request.param}_database")
    return chosen


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
