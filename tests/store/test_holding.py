"""Held runs and the moment at which they are let go."""

from __future__ import annotations

import pytest

from ostinato.model.run import State
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import QUEUE, a_run, a_worker, accepted, claim, enqueue, runs, states, view


async def test_nothing_is_released_before_its_time(store: Store):
    """A held run that is not due stays held."""
    run_id = await enqueue(store, delay=60.0)

    assert await store.release_due(QUEUE, 100) == 0
    assert await states(store, [run_id]) == [State.HELD]


async def test_a_due_run_is_released(database: Database):
    """Once its time has come by the database's clock it is ready, and nothing holds it any more."""
    store = database.store
    run_id = await enqueue(store, delay=60.0)
    await database.advance(61.0)

    assert await store.release_due(QUEUE, 100) == 1

    seen = await view(store, run_id)
    assert (seen.state, seen.reason) == (State.READY, None)


async def test_release_takes_no_more_than_asked_and_the_earliest_first(database: Database):
    """A large number of due runs is released in portions, in their order."""
    store = database.store
    late, early, middle = runs(1, delay=30.0)[0], a_run(delay=10.0), a_run(delay=20.0)
    await accepted(store, late, early, middle)
    await database.advance(60.0)

    assert await store.release_due(QUEUE, 2) == 2
    assert await states(store, [late.id, early.id, middle.id]) == [State.HELD, State.READY, State.READY]
    assert await store.release_due(QUEUE, 2) == 1


async def test_release_is_of_one_queue(database: Database):
    """Other queues are released by those who work on them."""
    store = database.store
    await enqueue(store, delay=1.0, queue="night")
    await database.advance(5.0)

    assert await store.release_due(QUEUE, 100) == 0
    assert await store.release_due("night", 100) == 1


async def test_a_released_run_keeps_the_place_of_its_moment(database: Database):
    """A run sorts by the moment it was due, not by the moment of its release."""
    store = database.store
    waited = await enqueue(store, delay=5.0)
    await database.advance(10.0)
    fresh = await enqueue(store)
    await store.release_due(QUEUE, 100)

    claimed = await claim(store, worker=await a_worker(store))

    assert [waited, fresh] == [run.id for run in claimed]
    assert 4 < claimed[0].waited < 9


async def test_next_due_tells_the_time_to_wait(database: Database):
    """The nearest held run of the queue counts; one that is overdue is due in no time."""
    store = database.store
    assert await store.next_due(QUEUE) is None
    await accepted(store, a_run(delay=90.0), a_run(delay=30.0), a_run(delay=5.0, queue="night"))

    assert pytest.approx(30, abs=2) == await store.next_due(QUEUE)
    await database.advance(60.0)
    assert await store.next_due(QUEUE) == 0.0


async def test_ringing_is_harmless(store: Store):
    """Whether or not anybody sleeps, a queue can be rung."""
    await store.ring(QUEUE)
