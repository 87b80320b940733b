"""Verbs for many runs: finding those that match, and changing them without stepping on others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ostinato.model.run import Claimed, State
from ostinato.model.view import RunFilter, Selection
from ostinato.resources import bulk
from ostinato.store.ports import Store
from tests.store.databases import Database, only_postgres
from tests.store.samples import (
    LEASE,
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
    runs,
    states,
)

UNENDED = (State.HELD, State.READY, State.RUNNING)


async def found(store: Store, state: State, *, limit: int = 100, **where: Any) -> list[str]:
    """The ids that match, sorted."""
    selection = Selection(**{"until": await store.views.moment(), **where})
    return sorted([run_id async for page in store.views.matching(state, selection, limit=limit) for run_id in page])


async def one_in_each_state(store: Store, **fields: Any) -> dict[State, str]:
    worker = await a_worker(store, lease=1000.0)
    ended = [await a_claimed_run(store, worker=worker, **fields) for _ in range(4)]
    done, broken, stopped, running = ended
    await accepted(store, completed(done), failed(broken), cancelled(stopped))
    return {
        State.HELD: await enqueue(store, **{**fields, "delay": 60.0}),
        State.READY: await enqueue(store, **fields),
        State.RUNNING: running.id,
        State.COMPLETED: done.id,
        State.FAILED: broken.id,
        State.CANCELLED: stopped.id,
    }


# --- finding


@pytest.mark.parametrize("state", list(State))
async def test_runs_are_found_by_their_state(store: Store, state: State):
    """Each way leads to the runs of its own state, of all queues."""
    there = await one_in_each_state(store)

    assert [there[state]] == await found(store, state)


@pytest.mark.parametrize("state", list(State))
async def test_runs_are_found_by_what_they_are(store: Store, state: State):
    """Function, queue, key and the code of the last error narrow it, alone and together."""
    there = await one_in_each_state(store)
    wanted: dict[str, Any] = {"function": "mix", "queue": QUEUE}

    assert [there[state]] == await found(store, state, **wanted)
    for name in ("function", "queue", "key", "code"):
        assert await found(store, state, **{**wanted, name: "other"}) == []


async def test_runs_are_found_by_their_key(store: Store):
    """Whether it is still taken or not."""
    keyed = await enqueue(store, key="k")
    await enqueue(store, key="other")
    assert [keyed] == await found(store, State.READY, key="k")

    await store.cancel([keyed], "not wanted")
    assert [keyed] == await found(store, State.CANCELLED, key="k")


async def test_runs_are_found_by_the_code_of_their_last_error(store: Store):
    """Those that wait for a retry too."""
    run = await a_claimed_run(store)
    await accepted(store, held(run, 60.0))
    await enqueue(store, delay=60.0)

    assert [run.id] == await found(store, State.HELD, code="ValueError")
    assert await found(store, State.HELD, code="KeyError") == []


@pytest.mark.parametrize("state", list(State))
async def test_runs_are_found_by_their_age(database: Database, state: State):
    """From their end, or from their creation while they have not ended."""
    store = database.store
    there = await one_in_each_state(store)
    await database.advance(10.0)
    moment = await store.views.moment()
    await database.advance(10.0)

    assert [there[state]] == await found(store, state, until=moment)
    assert await found(store, state, until=moment - 60_000_000) == []
    assert [there[state]] == await found(store, state, since=moment - 60_000_000)
    assert await found(store, state, since=moment) == []


async def test_age_counts_from_the_end(database: Database):
    """A run that waited long and has just failed is young."""
    store = database.store
    run = await a_claimed_run(store, worker=await a_worker(store, lease=1000.0))
    await database.advance(100.0)
    moment = await store.views.moment()
    await accepted(store, failed(run))

    assert await found(store, State.FAILED, until=moment) == []
    assert [run.id] == await found(store, State.FAILED, since=moment)


@pytest.mark.parametrize("state", [State.READY, State.HELD, State.COMPLETED])
@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_pages_leave_nothing_out(database: Database, state: State, limit: int):
    """However small they are, and although many runs have the same moment."""
    store = database.store
    ids = [run.id for run in (*runs(7), *runs(6, queue="night"))]
    fields: dict[str, Any] = {"delay": 60.0} if state is State.HELD else {}
    await accepted(store, *(a_run(id=run_id, queue=QUEUE if place < 7 else "night", **fields)
                            for place, run_id in enumerate(ids)))  # fmt: skip
    if state is State.COMPLETED:
        worker = await a_worker(store)
        claimed = [run for queue in (QUEUE, "night") for run in await claim(store, worker=worker, queue=queue)]
        await accepted(store, *map(completed, claimed))

    assert sorted(ids) == await found(store, state, limit=limit)
    assert sorted(ids[7:]) == await found(store, state, limit=limit, queue="night")


async def test_a_page_without_a_match_is_not_the_last(store: Store):
    """The way goes on behind runs that do not match."""
    wanted = [a_run(function="other", queue=QUEUE) for _ in range(2)]
    await accepted(store, wanted[0], *runs(7), wanted[1])

    assert sorted(run.id for run in wanted) == await found(store, State.READY, limit=2, function="other")


async def test_suspects_are_found(database: Database):
    """They are ready, too."""
    store = database.store
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker)
    await database.advance(LEASE + 1)
    await store.bury(worker, (await store.expired())[worker])
    await store.rescue(10)

    assert [run.id] == await found(store, State.READY)


async def test_running_runs_that_are_being_cancelled_are_left_out(store: Store):
    """They need not be asked again."""
    run = await a_claimed_run(store)
    await store.cancel([run.id], "not wanted")

    assert await found(store, State.RUNNING) == []


async def test_lists_take_the_same_filters(database: Database):
    """What a dry run counts can be listed."""
    store = database.store
    keyed, broken = await enqueue(store, key="k"), await a_claimed_run(store, queue=QUEUE, priority=600)
    await accepted(store, failed(broken))
    await database.advance(100.0)
    young = await enqueue(store)

    async def listed(**where: Any) -> set[str]:
        return {run.id for run in await store.views.runs(RunFilter(**where))}

    assert await listed(key="k") == {keyed}
    assert await listed(code="ValueError") == {broken.id}
    assert await listed(older_than=50.0) == {keyed, broken.id}
    assert await listed(newer_than=50.0) == {young}
    assert await listed(older_than=50.0, newer_than=200.0, state=State.FAILED) == {broken.id}


# --- changing what is still as it was found


async def test_a_run_that_has_started_is_not_cancelled_as_a_waiting_one(store: Store):
    """Who cancels what waits does not stop what has begun meanwhile."""
    run, waiting = await a_claimed_run(store), await enqueue(store)

    assert [waiting] == [each.id for each in await store.cancel([run.id, waiting], "no", state=State.READY)]
    assert not (await store.views.run(run.id)).cancel_requested  # type: ignore[union-attr]


async def test_a_run_that_was_cancelled_is_not_retried_as_a_failed_one(store: Store):
    """Somebody has decided about it meanwhile; its key stays free."""
    run = await a_claimed_run(store, key="k")
    await accepted(store, cancelled(run), key_freed(run, State.CANCELLED))

    assert await store.retry([run.id], state=State.FAILED) == {}

    newcomer = a_run(key="k")
    assert (await store.commit([newcomer])).existing == {}


async def test_a_run_that_goes_again_is_not_purged_as_a_failed_one(store: Store):
    """Nothing is deleted that was asked for again."""
    run = await a_claimed_run(store)
    await accepted(store, failed(run))
    await store.retry([run.id])

    assert await store.purge([run.id], state=State.FAILED) == []
    assert await states(store, [run]) == [State.READY]


@only_postgres
async def test_nobody_waits_for_a_locked_run(database: Database):
    """It is left for another time, and the others are changed."""
    store = database.store
    locked, free = await enqueue(store), await enqueue(store)
    async with database.connection() as connection, database.transaction(connection):
        await connection.execute("select 1 from ostinato.runs where id = $1 for update", locked)

        assert [free] == [run.id for run in await store.cancel([locked, free], "no", state=State.READY)]
    assert await states(store, [locked, free]) == [State.READY, State.CANCELLED]


async def test_what_moves_back_is_met_again(store: Store):
    """A run that is given back behind the walk is caught by the next one; none is left and none counted twice."""
    running = await a_claimed_run(store)
    ready = await enqueue(store)

    async def cancel(state: State, ids: Sequence[str]) -> Sequence[str]:
        if state is State.READY and ready in ids:
            await accepted(store, held(running, 60.0))
        return [run.id for run in await store.cancel(ids, "no", state=state)]

    where = Selection(until=await store.views.moment())
    outcome = await bulk.change(store, UNENDED, where, cancel, limit=None)

    assert (outcome.count, outcome.left) == (2, 0)
    assert await states(store, [running, ready]) == [State.CANCELLED, State.CANCELLED]


# --- purging


async def test_purging_removes_a_run_and_its_attempts(database: Database):
    """And nothing of others."""
    store = database.store
    gone, kept = await a_claimed_run(store), await a_claimed_run(store)
    for run in (gone, kept):
        await accepted(store, failed(run), an_attempt(run))

    assert [gone.id] == await store.purge([gone.id, "unknown"], state=State.FAILED)

    assert {kept.id} == await store.views.existing([gone.id, kept.id])
    assert await database.query("select run_id from ostinato_attempts") == [(kept.id,)]


def ending(run: Claimed, state: State) -> list[Any]:
    change: Any = {State.COMPLETED: completed, State.FAILED: failed, State.CANCELLED: cancelled}[state]
    return [change(run), key_freed(run, state)]


@pytest.mark.parametrize(
    ("mode", "state", "taken"),
    [
        ("active", State.COMPLETED, False),
        ("active", State.READY, False),
        ("active", State.HELD, False),
        ("failed", State.COMPLETED, False),
        ("failed", State.FAILED, True),
        ("failed", State.READY, False),
        ("until", State.COMPLETED, True),
        ("until", State.CANCELLED, True),
        ("until", State.READY, True),
        ("until", State.HELD, True),
    ],
)
async def test_purging_frees_the_keys_that_cancelling_frees(database: Database, mode: str, state: State, taken: bool):
    """Those of ended runs stay as they were; those of waiting runs are freed as if they were cancelled. A key for a
    period or for ever stays taken in any case."""
    store = database.store
    if state.ended:
        run = await a_claimed_run(store, key="k", unique=mode)
        await accepted(store, *ending(run, state))
        run_id = run.id
    else:
        run_id = await enqueue(store, key="k", unique=mode, delay=60.0 if state is State.HELD else None)

    assert [run_id] == await store.purge([run_id], state=state)

    newcomer = a_run(key="k")
    assert (await store.commit([newcomer])).existing == ({newcomer.id: run_id} if taken else {})


async def test_a_running_run_is_never_purged(store: Store):
    """Whatever it was before."""
    run = await a_claimed_run(store)

    for state in (State.READY, State.HELD, State.FAILED):
        assert await store.purge([run.id], state=state) == []
    assert await states(store, [run]) == [State.RUNNING]
