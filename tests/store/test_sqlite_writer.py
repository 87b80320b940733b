"""SQLite's one writer: what shares a commit, and who may ask for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from typing import Any

import pytest

from ostinato.errors import QueueFull, UnknownFunction
from ostinato.model.change import Committed
from ostinato.store.ports import DeclaredQueue
from ostinato.store.sqlite import connecting, writer
from tests.store.batches import outside, together
from tests.store.databases import SqliteDatabase
from tests.store.samples import (
    QUEUE,
    a_run,
    a_worker,
    accepted,
    claim,
    claimed_runs,
    completed,
    enqueue,
    runs,
)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every transaction of a writer."""
    begun: list[int] = []
    begin = connecting.begin

    def counted(*arguments: Any) -> None:
        begun.append(1)
        begin(*arguments)

    monkeypatch.setattr(writer, "begin", counted)
    return begun


# --- group commit ---------------------------------------------------------------------------------------------------


async def test_what_waits_shares_a_commit(file: SqliteDatabase, begun: list[int]):
    """A hundred enqueues that came while the writer was busy are one transaction."""
    answers = await together(file.store, *(file.store.commit([a_run()]) for _ in range(100)))

    assert [Committed()] * 100 == answers
    assert 100 == await file.count("runs")
    assert 2 == len(begun)  # the one that kept it busy, and theirs


async def test_different_errands_share_a_commit(file: SqliteDatabase, begun: list[int]):
    """Claims, settlements and leases go together as well."""
    store = file.store
    worker = await a_worker(store)
    one, two = await claimed_runs(store, 2, worker=worker)
    begun.clear()

    answers = await together(
        store,
        store.commit([completed(one)]),
        store.renew(worker, stopping=False),
        store.commit([completed(two)]),
        claim(store, worker=worker),
    )

    assert [Committed(), True, Committed(), []] == answers
    assert 2 == len(begun)


async def test_a_failing_errand_fails_alone(file: SqliteDatabase):
    """One that is refused, among others in the same commit, hurts nobody and leaves nothing."""
    store, good, bad, other = file.store, a_run(), [a_run(key="k"), a_run(function="mxi")], a_run()

    answers = await together(store, store.commit([good]), store.commit(bad), store.commit([other]))

    assert [answers[0], answers[2]] == [Committed(), Committed()]
    assert isinstance(answers[1], UnknownFunction)
    assert await store.views.existing([good.id, other.id, *(run.id for run in bad)]) == {good.id, other.id}


async def test_what_a_failing_errand_has_written_is_undone(file: SqliteDatabase):
    """One that fails in the middle leaves nothing of its first half in the commit that it shares."""
    store, worker, taken = file.store, await a_worker(file.store), await enqueue(file.store)
    half_good = [a_run(key="k"), a_run(id=taken)]

    answers = await together(store, store.commit(half_good), store.renew(worker, stopping=True))

    assert isinstance(answers[0], sqlite3.IntegrityError)
    assert answers[1] is True
    assert await file.count("keys") == 0


async def test_a_cap_refuses_the_last_of_a_batch(file: SqliteDatabase):
    """Insertions that are done as one are refused one by one: what fits comes in."""
    store = file.store
    await store.declare([], [DeclaredQueue(QUEUE, max_waiting=3)])

    answers = await together(store, *(store.commit(runs(2)) for _ in range(3)))

    assert Committed() == answers[0]
    assert [True, True] == [isinstance(answer, QueueFull) for answer in answers[1:]]
    assert 2 == await file.count("runs")


async def test_keys_hold_within_a_batch(file: SqliteDatabase):
    """Of insertions that are done as one, each learns of its own keys only."""
    store = file.store
    first, second, free = a_run(key="k"), a_run(key="k"), a_run(key="l")

    answers = await together(store, *(store.commit([run]) for run in (first, second, free)))

    assert [{}, {second.id: first.id}, {}] == [answer.existing for answer in answers]


async def test_a_cancelled_caller_does_not_undo_its_commit(file: SqliteDatabase):
    """A commit that is under way is waited for, and then the cancelling goes on."""
    run = a_run()
    async with file.store.begin():
        task = outside(file.store.commit([run]))
        await asyncio.sleep(0)
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert {run.id} == await file.store.views.existing([run.id])


# --- threads and event loops ----------------------------------------------------------------------------------------


async def test_several_event_loops_share_a_store(file: SqliteDatabase):
    """Threads with event loops of their own, and this one, use the same store at the same time."""

    async def produce() -> None:
        for _ in range(20):
            await accepted(file.store, a_run())
            assert await file.store.views.counts()

    threads = [threading.Thread(target=lambda: asyncio.run(produce())) for _ in range(4)]
    for thread in threads:
        thread.start()
    await produce()
    for thread in threads:
        await asyncio.to_thread(thread.join)

    assert 100 == await file.count("runs")


async def test_a_plain_thread_can_use_the_desks(file: SqliteDatabase):
    """Without an event loop, work is submitted and its future waited for."""
    store: Any = file.store

    count = await asyncio.to_thread(
        lambda: store._reader.submit(lambda connection: connection.execute("select 41 + 1").fetchone()).result(10)
    )

    assert (42,) == count


async def test_a_closed_store_opens_again(file: SqliteDatabase):
    """Closing ends the threads; whoever asks next starts them."""
    before = threading.active_count()
    await enqueue(file.store)
    await file.store.close()
    assert before >= threading.active_count()

    await enqueue(file.store)

    assert 2 == await file.count("runs")


async def test_the_loop_that_left_is_not_missed(file: SqliteDatabase):
    """An event loop that was closed before its answer came disturbs nobody."""
    store: Any = file.store

    async def leave_early() -> None:
        store._writer.ask(lambda connection: None)

    async with store.begin():
        await asyncio.to_thread(asyncio.run, leave_early())

    await accepted(store, a_run())


async def test_the_keeper_does_not_queue_up(file: SqliteDatabase):
    """A lease is renewed long before everything that the writer has to do is done."""
    store = file.store
    worker = await a_worker(store)
    await accepted(store, *runs(3000))
    async with store.keeper() as leases:
        claims = [asyncio.create_task(claim(store, 1, worker=worker)) for _ in range(2000)]
        await asyncio.sleep(0)

        assert await leases.renew(worker, stopping=False)

        assert not all(task.done() for task in claims)
        await asyncio.gather(*claims)
