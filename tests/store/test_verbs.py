"""What people ask for: going again, removing what is old."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.model.change import Change
from ostinato.model.run import State
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import (
    DECLARED,
    QUEUE,
    a_claimed_run,
    a_run,
    a_worker,
    accepted,
    an_attempt,
    cancelled,
    claim,
    completed,
    enqueue,
    failed,
    held,
    key_freed,
    states,
    view,
)

# --- retry ----------------------------------------------------------------------------------------------------------


async def a_failed_run(store: Store, **fields: Any) -> str:
    run = await a_claimed_run(store, **fields)
    await accepted(store, failed(run), key_freed(run, State.FAILED), an_attempt(run))
    return run.id


async def test_a_failed_run_goes_again(store: Store):
    """It is ready with a fresh budget; its lease_no and the record of what went wrong are kept."""
    run_id = await a_failed_run(store)

    assert {run_id: QUEUE} == await store.retry([run_id])

    seen = await view(store, run_id)
    assert (seen.state, seen.attempt, seen.lease_no, seen.ended_at) == (State.READY, 0, 1, None)
    assert len(seen.attempts) == 1
    (again,) = await claim(store, worker=await a_worker(store))
    assert (run_id, 2, 1) == (again.id, again.lease_no, again.attempt)
    await accepted(store, completed(again))


async def test_a_cancelled_run_goes_again(store: Store):
    """The flag is taken back with it."""
    run_id = await enqueue(store)
    await store.cancel([run_id], "not wanted")

    assert {run_id: QUEUE} == await store.retry([run_id])

    assert not (await view(store, run_id)).cancel_requested
    (again,) = await claim(store, worker=await a_worker(store))
    await accepted(store, completed(again))


async def test_a_run_goes_again_now(database: Database):
    """It takes the place of a run that is due now, with its priority."""
    store = database.store
    old = await a_failed_run(store, priority=-60)
    await database.advance(600.0)
    waiting = await enqueue(store)

    await store.retry([old])

    assert [waiting, old] == [run.id for run in await claim(store, worker=await a_worker(store))]


@pytest.mark.parametrize("state", [State.READY, State.HELD, State.RUNNING, State.COMPLETED])
async def test_other_states_do_not_go_again(store: Store, state: State):
    """Only what failed or was cancelled can be asked for again."""
    run = await a_claimed_run(store)
    changes: dict[State, list[Change]] = {
        State.READY: [held(run, 0.0)],
        State.HELD: [held(run, 60.0)],
        State.COMPLETED: [completed(run)],
    }
    await store.commit(changes.get(state, []))

    assert await store.retry([run.id, "unknown"]) == {}
    assert [state] == await states(store, [run])


@pytest.mark.parametrize("mode", ["active", "failed", "until"])
async def test_a_run_takes_its_key_back(store: Store, mode: str):
    """A run with a key goes again when the key is its own, or free for it to take."""
    run_id = await a_failed_run(store, key="k", unique=mode)

    assert {run_id: QUEUE} == await store.retry([run_id])

    newcomer = a_run(key="k")
    assert {newcomer.id: run_id} == (await store.commit([newcomer])).existing


async def test_a_run_whose_key_was_taken_stays(store: Store):
    """While another run has the key there must be no second one."""
    run_id = await a_failed_run(store, key="k")
    newcomer = await enqueue(store, key="k")

    assert await store.retry([run_id]) == {}

    assert await states(store, [run_id, newcomer]) == [State.FAILED, State.READY]


async def test_a_key_whose_period_is_over_can_be_taken_back(database: Database):
    """A key that another run had for a period is free for a retry once the period is over."""
    store = database.store
    run_id = await a_failed_run(store, key="k")
    await enqueue(store, key="k", unique="until", unique_for=60.0)
    await database.advance(61.0)

    assert {run_id: QUEUE} == await store.retry([run_id])


# --- retention ------------------------------------------------------------------------------------------------------


async def test_old_runs_are_pruned(database: Database):
    """Ended runs are removed after their time, with their attempts; the others are not touched."""
    store = database.store
    old = await a_failed_run(store)
    await database.advance(100.0)
    young = await a_failed_run(store)
    done = await a_claimed_run(store)
    await accepted(store, completed(done))
    waiting = await enqueue(store)

    assert await store.prune("failed", keep=60.0, limit=100) == 1

    assert {young, done.id, waiting} == await store.views.existing([old, young, done.id, waiting])
    assert await database.count("attempts", f"run_id = '{old}'") == 0
    assert await database.count("attempts", f"run_id = '{young}'") == 1


async def test_pruning_takes_no_more_than_asked(database: Database):
    """A large number is removed in portions."""
    store = database.store
    for _ in range(3):
        run = await a_claimed_run(store)
        await accepted(store, completed(run))
    await database.advance(10.0)

    assert [await store.prune("completed", keep=5.0, limit=2) for _ in range(3)] == [2, 1, 0]


async def test_pruning_frees_no_key(database: Database):
    """A key for ever outlives the run that it was taken by."""
    store = database.store
    run = await a_claimed_run(store, key="k", unique="until")
    await accepted(store, cancelled(run), key_freed(run, State.CANCELLED))
    await database.advance(10.0)
    await store.prune("cancelled", keep=5.0, limit=100)

    newcomer = a_run(key="k")

    assert {newcomer.id: run.id} == (await store.commit([newcomer])).existing


async def test_tidying_removes_keys_past_their_time(database: Database):
    """Keys whose period is over go, the others stay."""
    store = database.store
    await accepted(store, a_run(key="short", unique="until", unique_for=5.0), a_run(key="long", unique="until"))
    await accepted(store, a_run(key="active"))
    await database.advance(6.0)

    await store.tidy()

    keys = await database.query("select key from ostinato_keys order by key")
    assert keys == [("active",), ("long",)]


async def test_tidying_forgets_workers_long_dead(database: Database):
    """A worker is forgotten an hour after its death, unless it still has runs to be rescued."""
    store = database.store
    gone, owner, alive = [await a_worker(store, lease=10_000.0) for _ in range(3)]
    await a_claimed_run(store, worker=owner)
    await store.retire(gone)
    await store.retire(owner)

    await store.tidy()
    assert {gone, owner, alive} == {worker.id for worker in await store.views.workers(dead=True)}
    await database.advance(3700.0)
    await store.tidy()

    assert {owner, alive} == {worker.id for worker in await store.views.workers(dead=True)}


async def test_declaring_again_replaces(store: Store):
    """The last declaration of a function counts."""
    await store.declare([DECLARED], [])

    (function,) = await store.views.functions()
    assert (function.name, function.queue, function.attempts, function.timeout) == ("mix", QUEUE, 3, 60.0)
    assert (function.retry, function.input_schema, function.version) == ([1.0, 2.0], {"type": "object"}, None)
    assert await store.views.function_names() == ["mix"]
