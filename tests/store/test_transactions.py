"""Transactions of ours: the user's statements and our changes, together or not at all."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from ostinato.errors import TransactionMisused, UnknownFunction
from ostinato.model.run import State
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import (
    a_claimed_run,
    a_run,
    accepted,
    completed,
    given_back,
    states,
)

TRACKS = "create table tracks (id integer primary key, title text)"
INSERT = "insert into tracks (id, title) values (1, $1)"


@pytest.fixture
async def tracks(database: Database) -> Database:
    """A database in which the user has a table."""
    await database.query(TRACKS)
    return database


async def titles(database: Database) -> list[str]:
    return [row[0] for row in await database.query("select title from tracks order by id")]


async def test_statements_and_changes_commit_together(tracks: Database):
    """After the commit the user's row, the run's end and the new run are there."""
    store = tracks.store
    run, fresh = await a_claimed_run(store), a_run()

    async with store.begin() as tx:
        await tx.execute(INSERT, "Ostinato")
        committed = await tx.apply([completed(run), fresh])
        await tx.commit()

    assert frozenset() == committed.refused
    assert await titles(tracks) == ["Ostinato"]
    assert await states(store, [run, fresh.id]) == [State.COMPLETED, State.READY]


async def test_leaving_without_a_commit_undoes_everything(tracks: Database):
    """The user's row and our changes go together."""
    store = tracks.store
    run, fresh = await a_claimed_run(store), a_run()

    async with store.begin() as tx:
        await tx.execute(INSERT, "Ostinato")
        await tx.apply([completed(run), fresh])

    assert await titles(tracks) == []
    assert await states(store, [run]) == [State.RUNNING]
    assert set() == await store.views.existing([fresh.id])


async def test_an_error_undoes_everything(tracks: Database):
    """An exception that leaves the block rolls back, also one of ours."""

    async def misspell() -> None:
        async with tracks.store.begin() as tx:
            await tx.execute(INSERT, "Ostinato")
            await tx.apply([a_run(function="mxi")])

    with pytest.raises(UnknownFunction):
        await misspell()

    assert await titles(tracks) == []


async def test_a_rollback_can_be_asked_for(tracks: Database):
    """After a rollback, which may be asked for twice, nothing more can be done."""
    async with tracks.store.begin() as tx:
        await tx.execute(INSERT, "Ostinato")
        await tx.rollback()
        await tx.rollback()
        with pytest.raises(TransactionMisused, match="has ended"):
            await tx.execute(INSERT, "again")

    assert await titles(tracks) == []


async def test_nothing_is_seen_before_the_commit(tracks: Database):
    """Others see all of it or nothing."""
    fresh = a_run()
    async with tracks.store.begin() as tx:
        await tx.apply([fresh])
        assert set() == await tracks.store.views.existing([fresh.id])
        await tx.commit()

    assert {fresh.id} == await tracks.store.views.existing([fresh.id])


async def test_the_fence_holds_inside_a_transaction(tracks: Database):
    """A worker that lost its run is told so before it commits, and can undo its rows."""
    store = tracks.store
    run = await a_claimed_run(store)
    await accepted(store, given_back(run))

    async with store.begin() as tx:
        await tx.execute(INSERT, "Ostinato")
        committed = await tx.apply([completed(run)])

    assert {run.id} == committed.refused
    assert await titles(tracks) == []


async def test_rows_are_dicts(tracks: Database):
    """Queries give dicts, one dict, or one value; and None where there is no row."""
    async with tracks.store.begin() as tx:
        assert await tx.execute("insert into tracks (id, title) values (1, $1), (2, $2)", "one", "two") == 2
        assert await tx.fetch("select id, title from tracks order by id") == [
            {"id": 1, "title": "one"},
            {"id": 2, "title": "two"},
        ]
        assert await tx.fetchrow("select title from tracks where id = $1", 2) == {"title": "two"}
        assert await tx.fetchval("select title from tracks where id = $1", 1) == "one"
        assert await tx.fetchrow("select title from tracks where id = $1", 3) is None
        assert await tx.fetchval("select title from tracks where id = $1", 3) is None
        assert await tx.execute("update tracks set title = $1 where title = $2", "three", "two") == 1
        assert await tx.execute("delete from tracks where id > $1", 10) == 0


async def test_dicts_and_lists_are_stored_as_json(tracks: Database):
    """A dict or list goes into a JSON column, and is the same JSON when it is read as text."""
    kind, cast = ("text", "") if tracks.dialect == "sqlite" else ("jsonb", "::text")
    async with tracks.store.begin() as tx:
        await tx.execute(f"alter table tracks add column tags {kind}")
        await tx.execute("insert into tracks (id, tags) values (1, $1)", {"a": [1, None]})
        await tx.execute("insert into tracks (id, tags) values (2, $1)", [True, "x"])
        found = await tx.fetch(f"select tags{cast} as tags from tracks order by id")

    assert [row["tags"].replace(" ", "") for row in found] == ['{"a":[1,null]}', '[true,"x"]']


async def test_an_error_of_the_users_is_theirs(tracks: Database):
    """A wrong statement raises what the driver raises."""
    with pytest.raises(Exception, match="trakcs") as raised:
        async with tracks.store.begin() as tx:
            await tx.fetch("select * from trakcs")

    assert type(raised.value).__module__.split(".")[0] in ("sqlite3", "asyncpg")


async def test_a_finished_transaction_cannot_be_used(store: Store):
    """After its block a transaction says that it is over."""
    async with store.begin() as tx:
        await tx.commit()

    for use in (tx.fetch("select 1"), tx.apply([a_run()]), tx.commit()):
        with pytest.raises(TransactionMisused, match="has ended"):
            await use


async def test_transactions_follow_each_other(tracks: Database):
    """Many at the same time all go through."""

    async def add(number: int) -> None:
        async with tracks.store.begin() as tx:
            await tx.execute("insert into tracks (id, title) values ($1, $2)", number, f"track {number}")
            await tx.apply([a_run()])
            await tx.commit()

    await asyncio.gather(*(add(number) for number in range(20)))

    assert len(await titles(tracks)) == 20
    assert await tracks.count("runs") == 20


async def test_a_cancelled_task_undoes_its_transaction(tracks: Database):
    """A handler that is cancelled inside the block leaves nothing behind, and nobody waits for it."""
    inside = asyncio.Event()

    async def handler() -> None:
        async with tracks.store.begin() as tx:
            await tx.execute(INSERT, "Ostinato")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handler())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await accepted(tracks.store, a_run())
    assert await titles(tracks) == []


async def test_datetimes_can_be_stored(tracks: Database):
    """A moment is stored as the column wants it: as ISO text on SQLite."""
    moment = datetime(2026, 5, 1, 12, 30, 0, 5, tzinfo=UTC)
    kind = "text" if tracks.dialect == "sqlite" else "timestamptz"
    async with tracks.store.begin() as tx:
        await tx.execute(f"alter table tracks add column heard {kind}")
        await tx.execute("insert into tracks (id, heard) values (1, $1)", moment)
        found = await tx.fetchval("select heard from tracks")

    assert moment == (datetime.fromisoformat(found) if isinstance(found, str) else found)
