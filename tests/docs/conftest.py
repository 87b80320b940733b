"""What the examples find around them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.util._once import Once

from ostinato import App
from ostinato.testing.postgres import PostgresServers
from tests.integrations.djangos import forget


@pytest.fixture(autouse=True)
def postgres_for_who_asks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServers
) -> Iterator[None]:
    """A page that reads $DATABASE_URL finds a PostgreSQL database there that has been migrated."""
    if not page_of(request, containing='os.environ["DATABASE_URL"]'):
        yield
        return
    with postgres_server(max(postgres_server.versions)).temporary_database() as url:
        asyncio.run(App(url).migrations().up())
        monkeypatch.setenv("DATABASE_URL", url)
        yield


@pytest.fixture(autouse=True)
def django_for_who_asks(request: pytest.FixtureRequest) -> Iterator[None]:
    """A page that configures Django does so for itself alone."""
    yield
    if page_of(request, containing="settings.configure(") and "django" in sys.modules:
        forget()


@pytest.fixture(autouse=True)
def tracing_for_who_asks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that sets a tracer provider, which a process may do once, does so for itself alone."""
    if page_of(request, containing="set_tracer_provider("):
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())


def page_of(request: pytest.FixtureRequest, *, containing: str) -> bool:
    """Whether the test is about to run a page that contains this."""
    page = getattr(request.node, "callspec", None) and request.node.callspec.params.get("document")
    runs = request.node.originalname == "test_examples_run"
    return runs and isinstance(page, Path) and containing in page.read_text(encoding="utf-8")
