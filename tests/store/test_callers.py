"""Enqueuing in the caller's own transaction, through the caller's own connection."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ostinato.errors import ConfigError, StoreUnavailable, TransactionMisused, UnknownFunction
from ostinato.integrations.connections import caller_of
from ostinato.model.run import State
from ostinato.store.sql import numbered, parse
from tests.store.databases import Database, only_postgres, only_sqlite
from tests.store.samples import a_claimed_run, a_run, accepted, completed, given_back, runs, states


async def run_sql(connection: Any, sql: str) -> None:
    """Executes a statement of the user's, whatever colour the driver has."""
    answer = connection.execute(sql)
    if hasattr(answer, "__await__"):
        await answer


async def test_what_is_enqueued_commits_with_the_caller(database: Database):
    """The caller's row and our run are there together."""
    run = a_run()
    await database.query("create table tracks (title text)")

    async with database.connection() as connection, database.transaction(connection):
        await run_sql(connection, "insert into tracks values ('Ostinato')")
        committed = await database.store.apply_on(caller_of(connection), [run])
        assert set() == await database.store.views.existing([run.id])

    assert committed.existing == {}
    assert {run.id} == await database.store.views.existing([run.id])
    assert await database.query("select title from tracks") == [("Ostinato",)]


async def test_what_is_enqueued_is_undone_with_the_caller(database: Database):
    """A rollback of the caller's takes our run and its key with it."""

    async def change_ones_mind(connection: Any) -> None:
        async with database.transaction(connection):
            await database.store.apply_on(caller_of(connection), [a_run(key="k")])
            raise LookupError

    async with database.connection() as connection:
        with pytest.raises(LookupError):
            await change_ones_mind(connection)

    assert await database.count("runs") == 0
    assert (await database.store.commit([a_run(key="k")])).existing == {}


async def test_keys_and_bulks_work_through_the_caller(database: Database):
    """Everything that a commit of ours can do, the caller's transaction can."""
    first, second, free = a_run(key="k"), a_run(key="k"), a_run(delay=60.0)

    async with database.connection() as connection, database.transaction(connection):
        committed = await database.store.apply_on(caller_of(connection), [first, second, free])

    assert {second.id: first.id} == committed.existing
    assert await states(database.store, [first.id, free.id]) == [State.READY, State.HELD]


async def test_a_run_can_be_completed_by_the_caller(database: Database):
    """A handler with a session of its own settles its run there, behind the same fence."""
    store = database.store
    run = await a_claimed_run(store)
    stale = await a_claimed_run(store)
    await accepted(store, given_back(stale))

    async with database.connection() as connection, database.transaction(connection):
        committed = await store.apply_on(caller_of(connection), [completed(run), completed(stale)])

    assert {stale.id} == committed.refused
    assert await states(store, [run, stale]) == [State.COMPLETED, State.READY]


async def test_what_is_refused_at_the_door_leaves_the_transaction_to_the_caller(database: Database):
    """An unknown function is an error that names it, and nothing of ours is written."""
    async with database.connection() as connection:
        with pytest.raises(UnknownFunction, match="mxi"):
            async with database.transaction(connection):
                await database.store.apply_on(caller_of(connection), [a_run(function="mxi", key="k")])

    assert await database.count("keys") == 0


async def test_a_connection_without_a_transaction_is_refused(database: Database):
    """It would commit by itself, which is not what conn= is for."""
    async with database.connection() as connection:
        with pytest.raises(TransactionMisused, match="no open transaction"):
            await database.store.apply_on(caller_of(connection), [a_run()])

    assert await database.count("runs") == 0


async def test_a_connection_to_the_other_kind_of_database_is_refused(database: Database, tmp_path: Path):
    """A SQLite connection is of no use to a PostgreSQL app, nor the other way round."""

    class Other:
        dialect = "sqlite" if database.dialect == "postgresql" else "postgresql"

    with pytest.raises(ConfigError, match=f"{Other.dialect} connection, but the app's database is {database.dialect}"):
        await database.store.apply_on(Other(), [a_run()])  # type: ignore[arg-type]


def test_an_unknown_kind_of_connection_is_refused():
    """The error says what was given and what would do."""
    with pytest.raises(
        ConfigError, match=r"conn= is a builtins\.str; give an asyncpg\.Connection .* sqlite3\.Connection"
    ):
        caller_of("postgresql://localhost")


@only_postgres
async def test_a_pooled_connection_of_asyncpg_is_known(database: Database):
    """The proxies that a pool hands out are connections too, also of a subclass."""

    class Mine(asyncpg.Connection):
        pass

    run = a_run()
    pool = asyncpg.create_pool(database.url, min_size=1, max_size=1, connection_class=Mine)
    async with pool, pool.acquire() as connection, connection.transaction():
        await database.store.apply_on(caller_of(connection), [run])

    assert {run.id} == await database.store.views.existing([run.id])


@only_sqlite
async def test_a_connection_to_another_file_is_refused(database: Database, tmp_path: Path):
    """What it enqueues would never be found."""
    for other in (str(tmp_path / "other.db"), ":memory:"):
        with closing(sqlite3.connect(other, isolation_level=None)) as connection:
            connection.execute("begin")
            with pytest.raises(ConfigError, match=r"conn= is a connection to .*, but the app's database is"):
                await database.store.apply_on(caller_of(connection), [a_run()])


@only_sqlite
async def test_a_transaction_that_has_read_first_is_told_how_to_write(database: Database):
    """After somebody else's commit SQLite refuses it to write, at once; the remedy is in the error."""
    with closing(sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("begin")
        connection.execute("select count(*) from ostinato_runs").fetchall()
        await accepted(database.store, a_run())

        with pytest.raises(StoreUnavailable, match="use `begin immediate`"):
            await database.store.apply_on(caller_of(connection), [a_run()])


@only_sqlite
async def test_a_connection_in_the_middle_of_reading_is_fine(database: Database):
    """Several enqueues go through one connection, also while one of its queries is half read."""
    await accepted(database.store, *runs(10))
    with closing(sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("begin immediate")
        reading = connection.execute("select id from ostinato_runs")
        reading.fetchone()
        for _ in range(3):
            await database.store.apply_on(caller_of(connection), [a_run()])
        connection.execute("commit")

    assert await database.count("runs") == 13


@only_sqlite
async def test_a_connection_with_habits_of_its_own_is_fine(database: Database):
    """Neither a row factory nor sqlite3's implicit transactions are in our way."""
    run, again = a_run(key="k"), a_run(key="k")
    with closing(sqlite3.connect(database.url.removeprefix("sqlite:///"))) as connection:
        connection.row_factory = lambda cursor, row: {"row": row}
        connection.execute("create table tracks (title)")
        connection.execute("insert into tracks values ('Ostinato')")
        committed = await database.store.apply_on(caller_of(connection), [run, again])
        connection.commit()

    assert {again.id: run.id} == committed.existing
    assert {run.id} == await database.store.views.existing([run.id])


# --- statements for callers' drivers


def test_a_statement_can_be_written_for_drivers_with_formats():
    """Names stay, whatever the store's own driver wants; a percent sign is no format."""
    (block,) = parse("-- name: find\nselect :id::text, 7 % 2 from runs where id = :id and title like 'a%' and n = :n")
    text, values = numbered(block).pyformat({"id": "x", "n": 1})

    assert text == "select %(id)s::text, 7 %% 2 from runs where id = %(id)s and title like 'a%%' and n = %(n)s"
    assert values == {"id": "x", "n": 1}
    assert numbered(block).arguments({"n": 1, "id": "x"}) == ["x", 1]


def test_a_statement_without_parameters_is_taken_as_it_is():
    """Such a driver looks for formats only where there are values."""
    (block,) = parse("-- name: half\nselect 7 % 2")

    assert block.pyformat({}) == ("select 7 % 2", None)
