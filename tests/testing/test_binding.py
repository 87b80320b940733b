"""Binding: an app on another database for a while."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from ostinato import App, ConfigError, OstinatoError
from ostinato.errors import StoreError
from ostinato.sync import Client
from ostinato.testing import Bind, Databases, bound
from tests.engine.databases import states

NOWHERE = "sqlite:////nowhere/at/all.db"


@pytest.fixture
def app() -> App:
    """An app of the user's, on a database that does not exist."""
    app = App(NOWHERE, input_limit=2000, listen_url="postgresql://production/radio")

    @app.function
    async def greet(name: str) -> str:
        return f"hello {name}"

    return app


async def test_functions_declared_before_work_on_the_other_database(app: App, ostinato_url: str):
    """They ask the app where to go."""
    with bound(app, ostinato_url):
        await app.enqueue("greet", {"name": "Ada"})
        async with app.worker():
            handle = await app.enqueue("greet", {"name": "Grace"})
            assert "hello Grace" == await handle.result(timeout=30)
        assert {"completed": 2} == await states(app)


def test_afterwards_the_app_is_as_before(app: App, ostinato_url: str):
    """Also after an error, and when it was bound twice."""
    before = app.settings

    def fails() -> None:
        with bound(app, ostinato_url, lease="5s"):
            with bound(app, "sqlite:////elsewhere.db", input_limit=10):
                assert ("sqlite:////elsewhere.db", 5.0) == (app.settings.url, app.settings.lease)
                assert 10 == app._site.door.input_limit
            assert (ostinato_url, 2000) == (app.settings.url, app._site.door.input_limit)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert before == app.settings == app._site.settings
    assert 2000 == app._site.door.input_limit
    with pytest.raises(StoreError, match=r"nowhere/at/all\.db"):
        asyncio.run(app.enqueue("greet", {"name": "Ada"}))


def test_a_setting_that_cannot_be_changes_nothing(app: App, ostinato_url: str):
    """The error names it."""
    with pytest.raises(ConfigError, match="lease"), bound(app, ostinato_url, lease="1ms"):
        pass

    assert NOWHERE == app.settings.url


def test_the_address_for_listening_is_not_taken_along(app: App, ostinato_url: str):
    """It leads to the other database."""
    with bound(app, ostinato_url):
        assert app.settings.listen_url is None


async def test_sqlite_is_careless(ostinato_app: App):
    """Nobody pulls the plug in a test."""
    async with ostinato_app.transaction() as tx:
        if ostinato_app.settings.dialect == "sqlite":
            assert 0 == await tx.fetchval("pragma synchronous")


def test_a_client_of_before_goes_on_with_the_other_database(app: App, ostinato_url: str, ostinato_sqlite: str):
    """It holds the app open in a thread of its own, and need not be closed at each change."""
    client = Client(app)
    for url in (ostinato_sqlite, ostinato_url):
        with bound(app, url):
            client.enqueue("greet", {"name": "Ada"})
            assert 1 == len(client.runs.list())
    with bound(app, ostinato_url), client:
        assert 1 == len(client.runs.list())


def test_connections_of_the_callers_are_asked_about_the_other_database(app: App, ostinato_databases: Databases):
    """What the app knows for them without being open is forgotten, too."""
    for _ in range(2):
        with ostinato_databases.temporary("sqlite") as url, bound(app, url), Client(app) as client:
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
                connection.execute("begin immediate")
                client.enqueue("greet", {"name": "Ada"}, conn=connection)
                connection.execute("commit")
            assert 1 == len(client.runs.list())


def test_an_app_that_a_test_left_open_is_closed(app: App, ostinato_url: str):
    """Its connections would keep the database from being dropped, or lead to the one of the test before."""
    with bound(app, ostinato_url):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(app.__aenter__())
        assert loop.run_until_complete(app.runs.list()) == []

    assert [] == list(app._site._places)
    loop.close()


async def test_an_app_in_use_is_refused(app: App, ostinato_url: str, ostinato_sqlite: str):
    """Its workers would go on with the old database."""
    with bound(app, ostinato_url):
        async with app.worker():
            with pytest.raises(OstinatoError, match=r"is in use, and cannot be put on .*; end its workers"):
                bound(app, ostinato_sqlite).__enter__()
        assert ostinato_url == app.settings.url


def test_two_apps_may_share_the_database(ostinato_bind: Bind, ostinato_url: str):
    """A producer and a consumer, say."""
    apps = [ostinato_bind(App(NOWHERE), shutdown_grace="1s") for _ in range(2)]

    assert [(ostinato_url, 1.0)] * 2 == [(app.settings.url, app.settings.shutdown_grace) for app in apps]
