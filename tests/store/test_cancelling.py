"""Cancelling: what waits ends at once, what runs is asked to stop, and whoever commits first wins."""

from __future__ import annotations

import pytest

from ostinato.model.run import Claimed, State
from ostinato.store.ports import Store
from tests.store.samples import (
    a_claimed_run,
    a_worker,
    accepted,
    an_attempt,
    cancelled,
    completed,
    enqueue,
    failed,
    given_back,
    held,
    started,
    states,
    view,
)


async def test_a_waiting_run_ends_at_once(store: Store):
    """Ready and held runs are cancelled in place."""
    waiting = [await enqueue(store), await enqueue(store, delay=60.0)]

    cancellations = await store.cancel(waiting, "not wanted")

    assert {(run_id, "cancelled", None) for run_id in waiting} == set(cancellations)
    seen = await view(store, waiting[1])
    assert seen.error is not None
    assert (seen.state, seen.reason, seen.error.message) == (State.CANCELLED, None, "not wanted")
    assert seen.ended_at is not None


async def test_a_running_run_is_asked_to_stop(store: Store):
    """It goes on until its worker has stopped it; the worker learns of it."""
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker)

    assert [(run.id, "running", worker)] == await store.cancel([run.id], "not wanted")

    assert (await view(store, run)).state == State.RUNNING
    assert (await view(store, run)).cancel_requested
    assert await store.views.outcomes([run.id]) == {}
    assert [run.id] == list(await store.cancelled_of(worker))
    assert await store.cancelled_of(await a_worker(store)) == {}


async def test_ended_and_unknown_runs_cannot_be_cancelled(store: Store):
    """They are left out of the answer, and stay as they are."""
    run = await a_claimed_run(store)
    await accepted(store, completed(run))

    assert await store.cancel([run.id, "unknown"], "not wanted") == []
    assert (await view(store, run)).state == State.COMPLETED


async def test_cancelling_twice_is_cancelling_once(store: Store):
    """The second has no effect and keeps the first one's reason."""
    run_id = await enqueue(store)
    await store.cancel([run_id], "first")

    assert await store.cancel([run_id], "second") == []
    error = (await view(store, run_id)).error
    assert error is not None
    assert error.message == "first"


@pytest.mark.parametrize("change", [completed, failed, lambda run: held(run, 5.0), given_back])
async def test_the_flag_refuses_other_ends(store: Store, change):
    """After the flag was committed, the run can end as cancelled only."""
    run = await a_claimed_run(store)
    await store.cancel([run.id], "not wanted")

    assert {run.id} == (await store.commit([change(run), an_attempt(run)])).refused

    assert (await store.fences([run.id]))[run.id] == (1, "running", True, "not wanted")
    assert (await view(store, run)).attempts == []
    await accepted(store, cancelled(run))
    assert await states(store, [run]) == [State.CANCELLED]


async def test_a_settlement_before_the_flag_stands(store: Store):
    """A run that was completed first is completed."""
    run = await a_claimed_run(store)
    await accepted(store, completed(run))
    await store.cancel([run.id], "not wanted")

    seen = await view(store, run)

    assert (seen.state, seen.cancel_requested) == (State.COMPLETED, False)


async def test_a_start_may_still_be_noted(store: Store):
    """The flag is part of the fence of ends, not of the note that a handler is about to start."""
    run: Claimed = await a_claimed_run(store)
    await store.cancel([run.id], "not wanted")

    await accepted(store, started(run))
