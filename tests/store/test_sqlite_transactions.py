"""Transactions on SQLite hold the file's only write lock, so they have rules of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import TransactionMisused
from ostinato.ids import new_id
from ostinato.store.ports import Store
from ostinato.store.sqlite import SqliteStore
from tests.store.batches import outside
from tests.store.databases import SqliteDatabase
from tests.store.samples import (
    QUEUE,
    a_run,
    accepted,
)


async def exhaust(transaction: Any) -> str:
    """Uses a transaction until it is refused; answers why."""
    while True:
        try:
            await transaction.fetch("select 1")
        except TransactionMisused as error:
            return str(error)


async def test_a_transaction_may_not_last_long(file: SqliteDatabase):
    """Past its limit it is rolled back, so that others can write, and every later use says why."""
    run = a_run()
    async with file.store.begin(limit=0.05) as tx:
        await tx.apply([run])
        assert "lasted longer than 0.05 s and was rolled back" in await exhaust(tx)
        with pytest.raises(TransactionMisused, match=r"lasted longer than 0\.05 s"):
            await tx.commit()
        await accepted(file.store, a_run())

    assert set() == await file.store.views.existing([run.id])


async def test_a_long_statement_is_interrupted(file: SqliteDatabase):
    """The limit holds inside a statement too."""
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"

    async with file.store.begin(limit=0.05) as tx:
        with pytest.raises(TransactionMisused, match=r"lasted longer than 0\.05 s"):
            await tx.fetch(endless)

    await accepted(file.store, a_run())


async def test_others_wait_for_a_transaction(file: SqliteDatabase):
    """What is written meanwhile comes after it, in no matter which task."""
    run = a_run()
    async with file.store.begin() as tx:
        task = outside(file.store.commit([run]))
        await tx.fetch("select 1")
        assert not task.done()
        await tx.commit()
    await task

    assert {run.id} == await file.store.views.existing([run.id])


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.commit([a_run()]),
        lambda store: store.cancel([new_id()], "not wanted"),
        lambda store: store.begin().__aenter__(),
        lambda store: asyncio.create_task(store.commit([a_run()])),
    ],
    ids=["commit", "verb", "transaction", "task"],
)
async def test_writing_past_ones_own_transaction_is_refused(file: SqliteDatabase, write: Callable[[Store], Any]):
    """It would wait for itself; the error says what to use instead, and the transaction goes on."""
    async with file.store.begin() as tx:
        with pytest.raises(TransactionMisused, match=r"tx\.enqueue"):
            await write(file.store)
        await tx.apply([a_run()])
        await tx.commit()
        await accepted(file.store, a_run())

    await accepted(file.store, a_run())
    assert 3 == await file.count("runs")


async def test_ended_transactions_are_forgotten(file: SqliteDatabase):
    """A task may have as many transactions one after the other as it likes."""
    for _ in range(1100):  # deeper than Python recurses
        async with file.store.begin():
            pass

    await accepted(file.store, a_run())


async def test_reading_inside_a_transaction_is_fine(file: SqliteDatabase):
    """Reads have connections of their own."""
    async with file.store.begin():
        assert [] == await file.store.views.counts()


async def test_another_file_can_be_written_inside_a_transaction(file: SqliteDatabase, tmp_path: Path):
    """The lock is of one file."""
    other = SqliteStore(f"sqlite:///{tmp_path}/other.db", synchronous="OFF")
    await other.open()
    async with file.store.begin() as tx, other.begin() as inner:
        await inner.apply([a_run(queue=QUEUE)])
        await inner.commit()
        await accepted(other, a_run(queue=QUEUE))
        with pytest.raises(TransactionMisused):
            await file.store.commit([a_run()])
        await tx.apply([a_run()])
    await other.close()


@pytest.mark.parametrize("statement", ["commit", "  COMMIT;", "-- really\nend", "/* so */ rollback", "begin"])
async def test_a_transaction_ends_with_its_block(file: SqliteDatabase, statement: str):
    """Statements that would end it are refused: what they wrote would be torn apart from what we write."""
    async with file.store.begin() as tx:
        with pytest.raises(TransactionMisused, match=r"leave \w+ out"):
            await tx.execute(statement)
        await tx.apply([a_run()])
        await tx.commit()

    assert 1 == await file.count("runs")


async def test_savepoints_are_the_users(file: SqliteDatabase):
    """Part of a transaction may be undone."""
    async with file.store.begin() as tx:
        await tx.execute("create table tracks (title)")
        await tx.execute("savepoint half")
        await tx.execute("insert into tracks values ('no')")
        await tx.execute("rollback to half")
        await tx.execute("release half")
        assert [] == await tx.fetch("select * from tracks")


async def test_who_gave_up_waiting_holds_no_lock(file: SqliteDatabase):
    """A task cancelled before its transaction began leaves the writer free."""
    async with file.store.begin():
        task = outside(_begin(file.store))
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await accepted(file.store, a_run())


async def _begin(store: Store) -> None:
    async with store.begin():
        raise AssertionError("was cancelled before")
