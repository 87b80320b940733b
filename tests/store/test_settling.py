"""Settling claimed runs: what is written, and what is refused because the run belongs to somebody else by now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import json

from ostinato.model.change import Change
from ostinato.model.run import Claimed, State
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import (
    a_claimed_run,
    a_run,
    a_worker,
    accepted,
    an_attempt,
    cancelled,
    claim,
    claimed_runs,
    completed,
    failed,
    given_back,
    held,
    key_freed,
    started,
    states,
    view,
)

Changes = Callable[[Claimed], Sequence[Change]]

FENCED: dict[str, Changes] = {
    "complete": lambda run: [completed(run)],
    "complete with key": lambda run: [completed(run), key_freed(run)],
    "fail": lambda run: [failed(run), key_freed(run, State.FAILED), an_attempt(run)],
    "cancel": lambda run: [cancelled(run), key_freed(run, State.CANCELLED)],
    "hold": lambda run: [held(run, 60.0), an_attempt(run)],
    "give back": lambda run: [given_back(run)],
    "start": lambda run: [started(run)],
    "start and fail": lambda run: [started(run), failed(run), an_attempt(run)],
}
"""Every way of writing to a claimed run."""

fenced = pytest.mark.parametrize("changes", FENCED.values(), ids=FENCED.keys())


async def everything(database: Database, run: Claimed) -> list[list[tuple[Any, ...]]]:
    """All that is stored of a run."""
    return [
        await database.query(f"select * from ostinato_runs where id = '{run.id}'"),
        await database.query(f"select * from ostinato_keys where run_id = '{run.id}'"),
        await database.query(f"select * from ostinato_attempts where run_id = '{run.id}'"),
    ]


async def claimed_again(store: Store, run: Claimed) -> Claimed:
    """The run in the hands of another worker, after its first one was given up on."""
    await accepted(store, given_back(run))
    (again,) = await claim(store, 1, worker=await a_worker(store))
    return again


# --- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "output",
    ['{"a":1}', "[1,2]", '"text"', "true", "false", "null", "12", "0.30000000000000004", '"\\"quoted\\" é"', "{}"],
)
async def test_a_result_comes_back_as_it_was(store: Store, output: str):
    """Any JSON may be a result, and is given to those who wait as it was returned."""
    run = await a_claimed_run(store)

    await accepted(store, completed(run, output.encode()))

    ended = (await store.views.outcomes([run.id]))[run.id]
    assert (ended.state, ended.error) == ("completed", None)
    assert ended.output is not None
    expected, actual = json.decode(output), json.decode(ended.output)
    assert (type(expected), expected) == (type(actual), actual)
    assert expected == (await view(store, run)).output


async def test_a_completed_run_belongs_to_nobody(store: Store):
    """It has an end, and neither owner nor error any more."""
    run = await a_claimed_run(store)
    await accepted(store, held(run, 0.0))
    (again,) = await claim(store, 1, worker=await a_worker(store))

    await accepted(store, completed(again))

    seen = await view(store, run)
    assert (seen.state, seen.locked_by, seen.error, seen.attempt) == (State.COMPLETED, None, None, 2)
    assert seen.ended_at is not None


async def test_a_failed_run_says_why(store: Store):
    """The error is on the run, and the attempt is kept with its traceback."""
    run = await a_claimed_run(store)

    await accepted(store, failed(run), an_attempt(run))

    seen = await view(store, run)
    assert seen.error is not None
    assert (seen.state, seen.error.code, seen.error.message) == (State.FAILED, "ValueError", "out of tune")
    (attempt,) = seen.attempts
    assert (attempt.attempt, attempt.lease_no, attempt.worker, attempt.traceback) == (1, 1, "studio", "Traceback …")
    assert pytest.approx(1.5, abs=0.1) == (attempt.ended_at - attempt.started_at).total_seconds()


async def test_a_run_is_held_for_a_retry(database: Database):
    """It waits for its time, by the database's clock and with its priority."""
    store = database.store
    run = await a_claimed_run(store, priority=3)

    await accepted(store, held(run, 60.0))

    seen = await view(store, run)
    assert (seen.state, seen.reason, seen.status, seen.locked_by) == (State.HELD, "retry", "waiting", None)
    assert 55 < (await store.next_due("default") or 0) <= 60
    ((run_at, due),) = await database.query(
        "select run_at, due from ostinato_runs"
        if database.dialect == "sqlite"
        else "select ostinato.micros(run_at), due from ostinato.runs"
    )
    assert run_at - 3_000_000 == due


async def test_a_retry_without_delay_is_ready(store: Store):
    """Held for no time is not held."""
    run = await a_claimed_run(store)

    await accepted(store, held(run, 0.0))

    seen = await view(store, run)
    assert (seen.state, seen.reason, seen.attempt) == (State.READY, None, 1)


async def test_giving_back_returns_the_attempt(store: Store):
    """A run given back at shutdown is ready, in its old place, with its budget as before."""
    run = await a_claimed_run(store)

    await accepted(store, given_back(run))

    seen = await view(store, run)
    assert (seen.state, seen.attempt, seen.lease_no, seen.locked_by) == (State.READY, 0, 1, None)
    (again,) = await claim(store, 1, worker=await a_worker(store))
    assert (run.due, 1) == (again.due, again.attempt)


async def test_a_batch_settles_many_runs(store: Store):
    """One commit may end many runs, each in its way, and insert new ones."""
    one, two, three, four = await claimed_runs(store, 4)
    fresh = a_run()

    await accepted(store, completed(four), failed(two), an_attempt(two), held(three, 5.0), cancelled(one), fresh)

    expected = [State.CANCELLED, State.FAILED, State.HELD, State.COMPLETED, State.READY]
    assert expected == await states(store, [one, two, three, four, fresh.id])


# --- what is refused ------------------------------------------------------------------------------------------------


@fenced
async def test_a_stale_lease_writes_nothing(database: Database, changes: Changes):
    """Once somebody else has claimed the run, nothing of its former owner is written."""
    store = database.store
    run = await a_claimed_run(store, key="k")
    again = await claimed_again(store, run)
    before = await everything(database, run)

    committed = await store.commit(changes(run))

    assert {run.id} == committed.refused
    assert before == await everything(database, run)
    await accepted(store, completed(again))


@fenced
async def test_a_run_that_is_not_running_takes_nothing(database: Database, changes: Changes):
    """With the right lease_no, but taken away meanwhile: waiting again or ended, it is refused alike."""
    store = database.store
    back, gone = await claimed_runs(store, 2)
    await accepted(store, given_back(back), completed(gone))

    for run in (back, gone):
        before = await everything(database, run)
        assert {run.id} == (await store.commit(changes(run))).refused
        assert before == await everything(database, run)


@fenced
async def test_an_unknown_run_is_refused(store: Store, changes: Changes):
    """A run that was pruned meanwhile is refused, and is no error."""
    run = await a_claimed_run(store)
    stranger = Claimed("01AAAAAAAAAAAAAAAAAAAAAAAA", *(getattr(run, name) for name in run.__struct_fields__[1:]))

    assert {stranger.id} == (await store.commit(changes(stranger))).refused


@fenced
async def test_the_rest_of_the_batch_goes_through(store: Store, changes: Changes):
    """One refused run does not hold up its neighbours, nor new runs."""
    stale, *others = await claimed_runs(store, 3, key=None)
    await claimed_again(store, stale)
    fresh = a_run()

    committed = await store.commit([completed(others[0]), *changes(stale), failed(others[1]), fresh])

    assert {stale.id} == committed.refused
    expected = [State.COMPLETED, State.FAILED, State.RUNNING, State.READY]
    assert expected == await states(store, [*others, stale, fresh.id])


async def test_a_settlement_is_accepted_once(store: Store):
    """Given again, perhaps because its answer was lost, it is refused and changes nothing."""
    run = await a_claimed_run(store)
    await accepted(store, completed(run, b"1"))

    assert {run.id} == (await store.commit([completed(run, b"2")])).refused
    assert (await view(store, run)).output == 1


async def test_a_refused_run_says_what_stands_in_its_way(store: Store):
    """Whoever was refused can ask for the run's present owner and state."""
    run = await a_claimed_run(store)
    await claimed_again(store, run)

    fence = (await store.fences([run.id, "unknown"]))[run.id]

    assert fence == (2, "running", False, None)
