"""Apps and workers in the test's own event loop, on SQLite and on one version of PostgreSQL; and what they trace."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ostinato import App
from ostinato.testing.postgres import PostgresServers, Server
from tests.engine.databases import Database, PostgresDatabase, SqliteDatabase

PREFERRED = 16
TEMPLATE = f"metrics_{secrets.token_hex(4)}"

MakeApp = Callable[..., App]


@pytest.fixture(scope="session")
def metrics_server(postgres_server: PostgresServers) -> Iterator[Server]:
    """A server with a template of a migrated database."""
    versions = postgres_server.versions
    server = postgres_server(PREFERRED if PREFERRED in versions else max(versions))
    asyncio.run(App(server.create_database(TEMPLATE)).migrations().up())
    yield server
    server.drop_database(TEMPLATE)


@pytest.fixture
def postgres_database(metrics_server: Server) -> Iterator[Database]:
    with metrics_server.temporary_database(TEMPLATE) as url:
        yield PostgresDatabase(url)


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Database:
    return SqliteDatabase(f"sqlite:///{tmp_path}/metrics.db")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """A database of the test's own; a test that asks for it runs on SQLite and on PostgreSQL."""
    chosen: Database = request.getfixturevalue(f"{request.param}_database")
    return chosen


@pytest.fixture
def make_app(database: Database) -> MakeApp:
    """Makes apps on the test's database, that nobody has opened."""

    def make(**settings: Any) -> App:
        return App(database.url, **{"shutdown_grace": "500ms", **settings})

    return make


@pytest.fixture
def app(make_app: MakeApp) -> App:
    """An app that nobody has opened, without functions."""
    return make_app()


@pytest.fixture(autouse=True)
def nobody_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another test has set up."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that have ended, of a provider that is set for this test alone."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter
