"""Connections that would break the promise are refused, with the reason and the remedy."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from ostinato import App
from ostinato.engine.threads import at_once
from ostinato.errors import ConfigError, NotMigrated, StoreUnavailable, TransactionMisused
from ostinato.integrations.connections import caller_of
from ostinato.sync import Client
from ostinato.testing.postgres import PostgresServers
from tests.conftest import PostgresTemplate
from tests.engine.databases import Database, PostgresDatabase, notes, states
from tests.integrations.djangos import configured
from tests.integrations.libraries import LIBRARIES, Held, Library, async_engine_on, engine_on, path_of
from tests.integrations.scenes import Scene, done, play
from tests.store.samples import a_run

ON_POSTGRESQL = [library for library in LIBRARIES if library.dialect == "postgresql"]
ON_SQLITE = [library for library in LIBRARIES if library.dialect == "sqlite"]

only_postgres = pytest.mark.parametrize("library", ON_POSTGRESQL, ids=lambda each: each.name.replace(" ", "-"))
only_sqlite = pytest.mark.parametrize("library", ON_SQLITE, ids=lambda each: each.name.replace(" ", "-"))


class Base(DeclarativeBase): ...


class Note(Base):
    __tablename__ = "notes"
    text: Mapped[str | None] = mapped_column(primary_key=True)


def enqueue(app: App, connection: Any) -> Any:
    return Client(app).enqueue("mail", {}, conn=connection)


# --- no open transaction --------------------------------------------------------------------------------------------


def psycopg_in_autocommit(app: App) -> None:
    with closing(psycopg.connect(app.settings.url, autocommit=True)) as connection:
        enqueue(app, connection)


def psycopg2_in_autocommit(app: App) -> None:
    with closing(psycopg2.connect(app.settings.url)) as connection:
        connection.autocommit = True
        enqueue(app, connection)


def sqlalchemy_in_autocommit(driver: str) -> Callable[[App], None]:
    def work(app: App) -> None:
        with engine_on(app.settings.url, driver, isolation_level="AUTOCOMMIT") as engine, Session(engine) as session:
            enqueue(app, session)

    return work


def sqlalchemy_that_has_not_begun(driver: str) -> Callable[[App], None]:
    def work(app: App) -> None:
        with engine_on(app.settings.url, driver) as engine, Session(engine, autobegin=False) as session:
            enqueue(app, session)

    return work


def django_outside_atomic(app: App) -> None:
    from django.db import connection  # type: ignore[import-untyped]

    with configured(app.settings.url):
        enqueue(app, connection)


def sqlite3_without_begin(app: App) -> None:
    with closing(sqlite3.connect(path_of(app.settings.url))) as connection:
        enqueue(app, connection)


NOT_BEGUN = [
    (
        "postgres",
        psycopg_in_autocommit,
        r"no open transaction, as it is in autocommit; .* `with conn\.transaction\(\):`",
    ),
    (
        "postgres",
        psycopg2_in_autocommit,
        r"no open transaction, as it is in autocommit; set `conn\.autocommit = False`",
    ),
    ("postgres", sqlalchemy_in_autocommit("psycopg"), "no open transaction, as its isolation level is AUTOCOMMIT"),
    ("postgres", sqlalchemy_in_autocommit("psycopg2"), "no open transaction, as its isolation level is AUTOCOMMIT"),
    ("sqlite", sqlalchemy_in_autocommit("pysqlite"), "no open transaction, as its isolation level is AUTOCOMMIT"),
    ("postgres", sqlalchemy_that_has_not_begun("psycopg"), r"takes no statements as it is: Autobegin is disabled"),
    ("sqlite", sqlalchemy_that_has_not_begun("pysqlite"), r"takes no statements as it is: Autobegin is disabled"),
    ("postgres", django_outside_atomic, r"no open transaction; use it inside `with transaction\.atomic\(\):`"),
    ("sqlite", django_outside_atomic, r"no open transaction; use it inside `with transaction\.atomic\(\):`"),
    ("sqlite", sqlite3_without_begin, "no open transaction; begin one"),
]


@pytest.mark.parametrize(("kind", "work", "refusal"), NOT_BEGUN)
def test_a_sync_connection_without_a_transaction_is_refused(
    request: pytest.FixtureRequest, kind: str, work: Callable[[App], None], refusal: str
):
    """It would commit by itself."""
    database: Database = request.getfixturevalue(f"{kind}_database")
    app = App(database.url)
    app.function(name="mail")(lambda: None)
    with pytest.raises(TransactionMisused, match=refusal):
        work(app)
    assert database.query("select count(*) from ostinato_runs") == [(0,)]


async def test_an_async_connection_without_a_transaction_is_refused(postgres_database: Database):
    """It would commit by itself."""
    url = postgres_database.url
    async with App(url) as app:
        app.function(name="mail")(lambda: None)
        connection = await asyncpg.connect(url)
        with pytest.raises(TransactionMisused, match=r"no open transaction; .*`async with conn\.transaction\(\):`"):
            await app.enqueue("mail", conn=connection)
        await connection.close()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            with pytest.raises(
                TransactionMisused, match=r"autocommit; use it inside `async with conn\.transaction\(\)"
            ):
                await app.enqueue("mail", conn=other)
        for driver in ("asyncpg", "psycopg"):
            async with (
                async_engine_on(url, driver, isolation_level="AUTOCOMMIT") as engine,
                AsyncSession(engine) as own,
            ):
                with pytest.raises(TransactionMisused, match="as its isolation level is AUTOCOMMIT"):
                    await app.enqueue("mail", conn=own)
        assert await states(app) == {}


async def test_an_async_connection_to_sqlite_without_a_transaction_is_refused(sqlite_database: Database):
    """It would commit by itself."""
    async with App(sqlite_database.url) as app:
        app.function(name="mail")(lambda: None)
        async with (
            async_engine_on(sqlite_database.url, "aiosqlite", isolation_level="AUTOCOMMIT") as engine,
            engine.connect() as connection,
        ):
            with pytest.raises(TransactionMisused, match="as its isolation level is AUTOCOMMIT"):
                await app.enqueue("mail", conn=connection)
        assert await states(app) == {}


async def test_an_async_connection_that_was_not_started_is_refused(postgres_database: Database):
    """`engine.connect()` without `async with` or `await` is not one yet."""
    async with App(postgres_database.url) as app, async_engine_on(postgres_database.url, "asyncpg") as engine:
        app.function(name="mail")(lambda: None)
        with pytest.raises(TransactionMisused, match=r"takes no statements as it is: .*not been started"):
            await app.enqueue("mail", conn=engine.connect())


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_transaction_that_was_begun_by_hand_is_one(postgres_database: Database, end: str):
    """Also in autocommit."""
    url = postgres_database.url
    app = App(url)
    app.function(name="mail")(lambda: None)
    with closing(psycopg.connect(url, autocommit=True)) as one, closing(psycopg2.connect(url)) as other:
        other.autocommit = True
        with one.transaction(force_rollback=end == "rollback"):
            await app.enqueue("mail", conn=one)
        with other.cursor() as cursor:
            cursor.execute("begin")
            await app.enqueue("mail", conn=other)
            cursor.execute(end)
    assert await states(app) == ({"ready": 2} if end == "commit" else {})


# --- a transaction that has failed ----------------------------------------------------------------------------------


@only_postgres
async def test_a_transaction_that_has_failed_is_refused(app: App, library: Library):
    """PostgreSQL takes nothing more in it; after a rollback it is as good as new."""

    async def work(scene: Scene) -> None:
        await scene.savepoint()
        with pytest.raises(Exception, match="nowhere"):
            await done(scene.held.execute("select * from nowhere"))
        for attempt in (scene.enqueue, lambda: scene.enqueue_many([{}, {}])):
            with pytest.raises(TransactionMisused, match=r"the transaction of conn= has failed.*; roll it back, and"):
                await attempt()
        await scene.undo()
        await scene.enqueue()
        await scene.commit()

    await play(library, app, work)
    assert await states(app) == {"ready": 1}


@pytest.mark.parametrize(
    ("kind", "driver"), [("postgres", "psycopg"), ("postgres", "psycopg2"), ("sqlite", "pysqlite")]
)
def test_a_session_that_could_not_flush_is_refused(request: pytest.FixtureRequest, kind: str, driver: str):
    """SQLAlchemy itself takes nothing more before a rollback."""
    database: Database = request.getfixturevalue(f"{kind}_database")
    app = App(database.url)
    app.function(name="mail")(lambda: None)
    database.query("create unique index only_once on notes (text)")
    database.query("insert into notes (text) values ('once')")
    with engine_on(database.url, driver) as engine, Session(engine) as session:
        session.add(Note(text="once"))
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            session.flush()
        with pytest.raises(TransactionMisused, match=r"the transaction of conn= has failed; roll it back, and begin"):
            enqueue(app, session)
        session.rollback()
        enqueue(app, session)
        session.commit()
    assert database.query("select count(*) from ostinato_runs") == [(1,)]


def test_a_block_of_djangos_that_is_to_be_rolled_back_is_refused(sqlite_database: Database):
    """As Django itself refuses statements there."""
    from django.db import connection, transaction

    app = App(sqlite_database.url)
    app.function(name="mail")(lambda: None)
    with configured(app.settings.url), transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(
            TransactionMisused, match=r"has failed; leave its `transaction\.atomic\(\)` block, and begin"
        ):
            enqueue(app, connection)


# --- elsewhere ------------------------------------------------------------------------------------------------------


async def refusal(library: Library, app: App, url: str) -> str:
    """What an open app says to a connection to another database."""

    async def attempt(held: Held) -> str:
        with pytest.raises(ConfigError) as refused:
            await store.apply_on(caller_of(held.conn), [a_run(queue="default")])
        await done(held.rollback())
        return str(refused.value)

    def on_a_thread() -> str:
        with library.open(url) as held:
            return at_once(attempt(held))

    async with app._site.store() as store:
        if not library.is_async:
            return await asyncio.to_thread(on_a_thread)
        async with library.open(url) as held:
            return await attempt(held)


@only_postgres
async def test_a_connection_to_another_database_is_refused(
    app: App, library: Library, postgres_template: PostgresTemplate
):
    """Though it has the same tables: what is enqueued there would never be found."""
    with postgres_template.copy() as url:
        told = await refusal(library, app, url)
        assert PostgresDatabase(url).query("select count(*) from ostinato_runs") == [(0,)]
    mine, other = (conninfo_to_dict(each)["dbname"] for each in (app.settings.url, url))
    assert told == f"conn= is a connection to the database {other!r}, but the app's is {mine!r}"


async def test_a_database_of_the_same_name_on_another_server_is_refused(
    postgres_server: PostgresServers, postgres_template: PostgresTemplate
):
    """Names are not enough."""
    other = next(
        (each for each in postgres_server.versions if postgres_server(each) is not postgres_template.server), None
    )
    if other is None:
        pytest.skip("there is only one PostgreSQL server here")
    name = f"twin_{secrets.token_hex(4)}"
    servers = [postgres_template.server, postgres_server(other)]
    here, there = (server.create_database(name) for server in servers)
    try:
        await App(here).migrations().up()
        async with App(here) as app:
            told = await refusal(ON_POSTGRESQL[0], app, there)
    finally:
        for server in servers:
            server.drop_database(name)
    assert told == f"conn= is a connection to the database {name!r}, but the app's is {name!r} on another server"


@only_sqlite
async def test_a_connection_to_another_file_is_refused(app: App, library: Library, tmp_path: Path):
    """What is enqueued there would never be found."""
    told = await refusal(library, app, f"sqlite:///{tmp_path}/other.db")
    assert told == (
        f"conn= is a connection to {tmp_path}/other.db, but the app's database is {path_of(app.settings.url)}"
    )


async def test_a_connection_is_asked_once_where_it_leads(postgres_database: Database):
    """It cannot move, so every other call is spared the question."""
    asked: list[str] = []
    async with App(postgres_database.url) as app:
        app.function(name="mail")(lambda: None)
        with engine_on(postgres_database.url, "psycopg") as engine:

            @sqlalchemy.event.listens_for(engine, "before_cursor_execute")
            def hear(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
                asked.append(statement)

            for _ in range(3):
                with Session(engine) as session:
                    await app.enqueue("mail", conn=session)
                    session.commit()
    assert ["pg_control_system" in statement for statement in asked] == [True, False, False, False]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda each: each.name.replace(" ", "-"))
async def test_a_connection_to_the_other_kind_of_database_is_refused(
    library: Library, postgres_database: Database, sqlite_database: Database
):
    """By the names of both."""
    databases = {"postgresql": postgres_database, "sqlite": sqlite_database}
    (other,) = set(databases) - {library.dialect}
    async with App(databases[other].url) as app:
        told = await refusal(library, app, databases[library.dialect].url)
    assert told == f"conn= is a {library.dialect} connection, but the app's database is {other}"


# --- gone -----------------------------------------------------------------------------------------------------------


@only_postgres
async def test_a_connection_that_breaks_is_the_databases_fault(app: App, database: Database, library: Library):
    """Whatever the driver calls it: a run in whose handler it happens keeps its attempt."""

    async def work(scene: Scene) -> None:
        await scene.note("lost")
        database.query(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where pid <> pg_backend_pid() and datname = current_database() and state = 'idle in transaction'"
        )
        with pytest.raises(StoreUnavailable, match="PostgreSQL cannot be reached"):
            await scene.enqueue()
        with suppress(Exception):
            await scene.rollback()

    with suppress(psycopg.OperationalError, asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError):
        await play(library, app, work)
    assert (await states(app), notes(database)) == ({}, [])


def test_a_connection_that_is_closed_is_refused(postgres_database: Database):
    """Whoever says so."""
    app = App(postgres_database.url)
    app.function(name="mail")(lambda: None)
    for closed in (psycopg.connect(postgres_database.url), psycopg2.connect(postgres_database.url)):
        closed.close()
        with pytest.raises(StoreUnavailable, match=r"PostgreSQL cannot be reached .*connection .*closed"):
            enqueue(app, closed)
    with engine_on(postgres_database.url, "psycopg") as engine:
        connection = engine.connect()
        connection.close()
        with pytest.raises(TransactionMisused, match="conn= takes no statements as it is: This Connection is closed"):
            enqueue(app, connection)


def test_a_database_without_our_tables_is_refused(postgres_template: PostgresTemplate, tmp_path: Path):
    """With what to do about it."""
    with postgres_template.server.temporary_database() as url:
        app = App(url)
        app.function(name="mail")(lambda: None)
        for connect in (psycopg.connect, psycopg2.connect):
            with (
                closing(connect(url)) as connection,
                pytest.raises(NotMigrated, match=r"ostinato.*; run `ostinato migrate up` on the database of conn="),
            ):
                enqueue(app, connection)
    app = App(f"sqlite:///{tmp_path}/empty.db")
    app.function(name="mail")(lambda: None)
    with (
        engine_on(app.settings.url, "pysqlite") as engine,
        Session(engine) as session,
        pytest.raises(NotMigrated, match=r"no such table: ostinato_\w+; run `ostinato migrate up`"),
    ):
        enqueue(app, session)


def test_a_transaction_on_sqlite_that_has_read_first_is_told_how_to_write(sqlite_database: Database):
    """What sqlite3 raised is recognised through what Django and SQLAlchemy make of it."""
    from django.db import connection, transaction

    app, count = App(sqlite_database.url), "select count(*) from ostinato_runs"
    app.function(name="mail")(lambda: None)
    with configured(app.settings.url), transaction.atomic():
        connection.cursor().execute(count).fetchall()
        sqlite_database.query("insert into notes (text) values ('meanwhile')")
        with pytest.raises(StoreUnavailable, match="use `begin immediate`"):
            enqueue(app, connection)
    with engine_on(app.settings.url, "pysqlite") as engine, engine.connect() as mine:
        mine.exec_driver_sql("begin")
        mine.exec_driver_sql(count).fetchall()
        sqlite_database.query("insert into notes (text) values ('meanwhile')")
        with pytest.raises(StoreUnavailable, match="use `begin immediate`"):
            enqueue(app, mine)


# --- not known ------------------------------------------------------------------------------------------------------


def test_a_session_with_many_engines_is_told_to_name_one():
    """There is no telling which of them is meant."""
    with (
        Session(binds={Note: sqlalchemy.create_engine("sqlite://")}) as session,
        pytest.raises(ConfigError, match=r"give the connection to use, like conn=session\.connection\(bind_arguments="),
    ):
        caller_of(session)


def test_a_driver_that_is_not_known_is_refused(sqlite_database: Database):
    """By name, with those that are."""
    app = App(sqlite_database.url)
    app.function(name="mail")(lambda: None)
    rare = "_SQLiteDialect_pysqlite_numeric"
    sqlalchemy.dialects.registry.register("sqlite.pysqlite_numeric", "sqlalchemy.dialects.sqlite.pysqlite", rare)
    with (
        engine_on(sqlite_database.url, "pysqlite_numeric") as engine,
        Session(engine) as session,
        pytest.raises(
            ConfigError, match=r"conn= is on the driver 'pysqlite_numeric', which is not known; known are ai"
        ),
    ):
        enqueue(app, session)


def test_a_cache_of_djangos_is_no_connection_to_a_database():
    """It has the same kind of proxy."""
    from django.core.cache import cache  # type: ignore[import-untyped]

    with configured("sqlite:///unused.db"), pytest.raises(ConfigError, match=r"give django\.db\.connection"):
        caller_of(cache)


def test_what_only_makes_connections_is_none():
    """An engine, a factory of sessions or a pool."""
    engine = sqlalchemy.create_engine("sqlite://")
    for thing in (engine, sessionmaker(engine), psycopg, "sqlite:///radio.db"):
        with pytest.raises(ConfigError, match=r"^conn= is a .*; give an asyncpg\.Connection .* sqlite3\.Connection$"):
            caller_of(thing)


def test_an_asynchronous_connection_of_psycopg2_is_refused(postgres_database: Database):
    """It has no transactions."""
    with (
        closing(psycopg2.connect(postgres_database.url, async_=True)) as connection,
        pytest.raises(ConfigError, match="asynchronous psycopg2 connection, which has no transactions"),
    ):
        caller_of(connection)
