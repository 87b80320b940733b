"""Connections with habits of their own, and how they are recognised."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import psycopg2.extras
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ostinato import App
from ostinato.sync import Client
from tests.engine.databases import Database, notes, states
from tests.integrations.djangos import configured, database_of
from tests.integrations.libraries import LIBRARIES, Library, engine_on, path_of
from tests.integrations.scenes import done


class Base(DeclarativeBase): ...


class Note(Base):
    __tablename__ = "notes"
    text: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def postgres_app(postgres_database: Database) -> App:
    return with_mail(postgres_database)


@pytest.fixture
def sqlite_app(sqlite_database: Database) -> App:
    return with_mail(sqlite_database)


def with_mail(database: Database) -> App:
    app = App(database.url)
    app.function(name="mail")(lambda: None)
    return app


async def enqueue_twice(app: App, connection: Any) -> None:
    """The second answer comes from rows, whatever kind the user likes them to be."""
    first = await app.enqueue("mail", conn=connection, key="k")
    again = await app.enqueue("mail", conn=connection, key="k")
    assert (again.id, again.created) == (first.id, False)
    await app.enqueue("mail", conn=connection)


# --- rows and cursors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor, psycopg.ServerCursor])
async def test_psycopg_with_factories_of_its_users(postgres_app: App, cursor: Any):
    """Rows that are dicts, and cursors that bind elsewhere or take another notation."""
    with closing(psycopg.connect(postgres_app.settings.url, row_factory=dict_row)) as connection:
        connection.cursor_factory = cursor
        await enqueue_twice(postgres_app, connection)
        connection.commit()
    assert await states(postgres_app) == {"ready": 2}


@pytest.mark.parametrize("cursor", ["RealDictCursor", "DictCursor", "NamedTupleCursor"])
async def test_psycopg2_with_factories_of_its_users(postgres_app: App, cursor: str):
    """Rows that are dicts or named."""
    factory = getattr(psycopg2.extras, cursor)
    with closing(psycopg2.connect(postgres_app.settings.url, cursor_factory=factory)) as connection:
        await enqueue_twice(postgres_app, connection)
        connection.commit()
    assert await states(postgres_app) == {"ready": 2}


async def test_psycopg2_with_a_connection_class_of_its_users(postgres_app: App):
    """Known by what it derives from."""
    given: dict[str, Any] = {"connection_factory": psycopg2.extras.RealDictConnection}
    with closing(psycopg2.connect(postgres_app.settings.url, **given)) as connection:
        await enqueue_twice(postgres_app, connection)
        connection.commit()
    assert await states(postgres_app) == {"ready": 2}


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_psycopg_in_a_pipeline(postgres_app: App, end: str):
    """Statements of the user's are answered at its end; ours when they are asked."""
    with closing(psycopg.connect(postgres_app.settings.url)) as connection, connection.pipeline():
        connection.execute("insert into notes (text) values ('mine')")
        await enqueue_twice(postgres_app, connection)
        getattr(connection, end)()
    assert await states(postgres_app) == ({"ready": 2} if end == "commit" else {})


async def test_psycopg_async_in_a_pipeline(postgres_app: App):
    """The same in the other colour."""
    connect = psycopg.AsyncConnection.connect(postgres_app.settings.url)
    async with await connect as connection, connection.pipeline():
        await enqueue_twice(postgres_app, connection)
        await connection.commit()
    assert await states(postgres_app) == {"ready": 2}


async def test_subclasses_are_known(postgres_app: App):
    """By what they derive from, however far."""

    class Mine(psycopg.Connection[Any]): ...

    class Ours(Mine): ...

    with closing(Ours.connect(postgres_app.settings.url)) as connection:
        await enqueue_twice(postgres_app, connection)
        connection.commit()
    assert await states(postgres_app) == {"ready": 2}


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_every_isolation_level_will_do(postgres_app: App, driver: str, isolation: Any):
    """What was enqueued before in the same transaction is seen, and wakes nobody too early."""
    url = postgres_app.settings.url
    with engine_on(url, driver, isolation_level=isolation) as engine, Session(engine) as session:
        await enqueue_twice(postgres_app, session)
        session.commit()
    assert await states(postgres_app) == {"ready": 2}


# --- sync connections in async code ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "library",
    [each for each in LIBRARIES if not each.is_async and each.on_any_thread],
    ids=lambda each: each.name.replace(" ", "-"),
)
async def test_a_sync_connection_may_be_used_in_async_code(app: App, library: Library):
    """Inline, on the event loop's thread."""
    with library.open(app.settings.url) as held:
        await enqueue_twice(app, held.conn)
        await done(held.commit())
    assert await states(app) == {"ready": 2}


# --- SQLAlchemy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["psycopg", "pysqlite"])
async def test_what_a_session_has_not_flushed_is_left_to_it(request: pytest.FixtureRequest, driver: str):
    """It is flushed at the commit, with the run; enqueuing does not touch it."""
    database: Database = request.getfixturevalue("sqlite_database" if driver == "pysqlite" else "postgres_database")
    app = with_mail(database)
    with engine_on(database.url, driver) as engine, Session(engine) as session:
        session.add(Note(text="mine"))
        await app.enqueue("mail", conn=session)
        assert len(session.new) == 1
        session.commit()
    assert await states(app) == {"ready": 1}
    assert notes(database) == ["mine"]


async def test_a_session_that_cannot_flush_takes_the_run_with_it(sqlite_app: App, sqlite_database: Database):
    """Neither is there."""
    sqlite_database.query("create unique index only_once on notes (text)")
    sqlite_database.query("insert into notes (text) values ('once')")
    with engine_on(sqlite_database.url, "pysqlite") as engine, Session(engine) as session:
        session.add(Note(text="once"))
        await sqlite_app.enqueue("mail", conn=session)
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.commit()
    assert await states(sqlite_app) == {}


async def test_a_transaction_that_sqlite3_has_not_begun_yet_is_begun(sqlite_app: App):
    """Before the first look, and so that it may write."""
    executed: list[str] = []
    with engine_on(sqlite_app.settings.url, "pysqlite") as engine:

        @sqlalchemy.event.listens_for(engine, "before_cursor_execute")
        def hear(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            executed.append(statement)

        with Session(engine) as session:
            await enqueue_twice(sqlite_app, session)
            session.commit()
    assert [place for place, statement in enumerate(executed) if statement.startswith("begin")] == [0]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("hold", [Session, sqlalchemy.Engine.connect])
async def test_an_engine_on_sqlite_that_begins_by_events(sqlite_app: App, hold: Any, end: str):
    """As SQLAlchemy's documentation advises for savepoints: sqlite3 begins nothing by itself then."""
    with engine_on(sqlite_app.settings.url, "pysqlite") as engine:

        @sqlalchemy.event.listens_for(engine, "connect")
        def leave_it_to_us(connection: Any, record: Any) -> None:
            connection.isolation_level = None

        @sqlalchemy.event.listens_for(engine, "begin")
        def begin(connection: Any) -> None:
            connection.exec_driver_sql("begin immediate")

        with hold(engine) as held:
            await enqueue_twice(sqlite_app, held)
            with held.begin_nested() as inner:
                await sqlite_app.enqueue("mail", conn=held)
                inner.rollback()
            getattr(held, end)()
    assert await states(sqlite_app) == ({"ready": 2} if end == "commit" else {})


# --- sqlite3 --------------------------------------------------------------------------------------------------------


async def test_sqlite3_that_reads_text_in_a_way_of_its_own(sqlite_app: App):
    """As bytes, say; and it still does afterwards."""
    with closing(sqlite3.connect(path_of(sqlite_app.settings.url), isolation_level=None)) as connection:
        connection.text_factory = bytes
        connection.row_factory = sqlite3.Row
        connection.execute("begin immediate")
        await enqueue_twice(sqlite_app, connection)
        connection.commit()
        assert connection.execute("select 'a'").fetchone()[0] == b"a"
    assert await states(sqlite_app) == {"ready": 2}


# --- Django ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def django_on_postgres(postgres_database: Database) -> Iterator[None]:
    with configured(postgres_database.url, OPTIONS={"server_side_binding": True}):
        yield


def test_django_that_binds_at_the_server(django_on_postgres: None, postgres_app: App, postgres_database: Database):
    """And whose connection is named by its alias."""
    from django.db import connections, transaction  # type: ignore[import-untyped]

    client = Client(postgres_app)
    with transaction.atomic():
        first = client.enqueue("mail", {}, conn=connections["default"], key="k", delay="1h", priority=-5)
        assert client.enqueue("mail", {}, conn=connections["default"], key="k").id == first.id
        client.enqueue("mail", {}, conn=connections["default"])
    assert postgres_database.query("select count(*) from ostinato_runs") == [(2,)]


DJANGO_ON_PSYCOPG2 = """
import sys
sys.modules["psycopg"] = None
import django
from django.conf import settings
settings.configure(DATABASES={{"default": {database!r}}})
django.setup()
from django.db import connection, transaction
from ostinato import App
from ostinato.sync import Client

app = App({url!r})

@app.function
def mail(): ...

client = Client(app)
for undone in (True, False):
    with transaction.atomic():
        client.enqueue("mail", {{}}, conn=connection, key="k")
        assert not client.enqueue("mail", {{}}, conn=connection, key="k").created
        client.enqueue_many("mail", [{{}}, {{}}], conn=connection)
        client.enqueue("mail", {{}}, conn=connection)
        transaction.set_rollback(undone)
assert "psycopg2" in type(connection.connection).__module__
"""


def test_django_on_psycopg2(postgres_database: Database):
    """Which it takes where there is no psycopg; in a process of its own, since it chooses once."""
    url = postgres_database.url
    script = DJANGO_ON_PSYCOPG2.format(url=url, database=database_of(url))
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert postgres_database.query("select count(*) from ostinato_runs") == [(4,)]


# --- recognising ----------------------------------------------------------------------------------------------------

RECOGNISED = """
import sqlite3, sys
from ostinato.integrations.connections import caller_of
caller_of(sqlite3.connect(":memory:"))
try:
    caller_of(object())
except Exception as error:
    assert "sqlite3.Connection" in str(error)
libraries = {"asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django"}
print(sorted(libraries & set(sys.modules)))
"""


def test_nothing_is_imported_to_recognise_a_connection():
    """Whether it is installed or not."""
    told = subprocess.run([sys.executable, "-c", RECOGNISED], check=True, timeout=60, capture_output=True, text=True)
    assert told.stdout.strip() == "[]"
