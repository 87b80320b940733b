"""How many runs of each function could start now."""

from __future__ import annotations

from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import a_claimed_run, a_run, accepted, completed, enqueue, held, runs


async def test_ready_runs_count_whatever_their_queue(store: Store):
    """A queue that nobody serves, or that is paused, has work waiting all the same."""
    await accepted(store, *runs(3), a_run(queue="night"), a_run(function="other", queue="night"))

    assert await store.views.depths() == {"mix": 4, "other": 1}


async def test_held_runs_count_once_they_are_due(database: Database):
    """In every queue, also before somebody has released them."""
    store = database.store
    for queue, delay in (("default", 30.0), ("night", 30.0), ("night", 90.0), ("late", 90.0)):
        await enqueue(store, queue=queue, delay=delay)
    assert await store.views.depths() == {}

    await database.advance(60)
    assert await store.views.depths() == {"mix": 2}

    await database.advance(60)
    assert await store.views.depths() == {"mix": 4}


async def test_runs_that_run_or_have_ended_do_not_count(store: Store):
    """Nor those that wait for their next attempt."""
    done = await a_claimed_run(store)
    await accepted(store, completed(done))
    waiting = await a_claimed_run(store)
    await accepted(store, held(waiting, 60.0))
    await a_claimed_run(store)

    assert await store.views.depths() == {}
