"""What follows from the end of a run, in the same commit: an event in the ledger, and the function for failures."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw, json, structs

from ostinato.model.change import Change, EndTold, RunInserted
from ostinato.model.event import Event
from ostinato.model.history import EventFilter
from ostinato.model.run import Claimed, State
from ostinato.model.view import RunFilter
from ostinato.store.ports import DeclaredFunction, DeclaredQueue, Store
from tests.store.databases import Database
from tests.store.samples import (
    DECLARED,
    FUNCTION,
    LEASE,
    QUEUE,
    a_claimed_run,
    a_run,
    a_worker,
    accepted,
    cancelled,
    claim,
    completed,
    enqueue,
    failed,
    view,
)

MOURN = DeclaredFunction("mourn", "grief", attempts=1, timeout=60.0, retry=Raw(b"[]"), priority=5)
ASKING = structs.replace(DECLARED, lifecycle=Raw(b'["completed","failed","cancelled"]'), on_failure="mourn")


def told(run: Claimed) -> EndTold:
    return EndTold(run.id, run.lease_no)


async def declare(store: Store, **fields: Any) -> None:
    await store.declare([structs.replace(ASKING, **fields), MOURN], [])


async def events(store: Store) -> list[Event]:
    """What is in the ledger, in order."""
    return sorted(await store.views.recent_events(EventFilter(limit=100)), key=lambda event: event.sequence_no)


async def mourners(store: Store) -> list[dict[str, Any]]:
    """What the runs for failures are given."""
    found = await claim(store, worker=await a_worker(store), queue="grief")
    return [json.decode(run.input) for run in found]


@pytest.mark.parametrize(
    ("settled", "kind", "error"),
    [
        (completed, "run.completed", None),
        (failed, "run.failed", {"code": "ValueError", "message": "out of tune"}),
        (cancelled, "run.cancelled", {"code": "cancelled", "message": "not wanted"}),
    ],
)
async def test_an_end_is_recorded_with_the_settlement(store: Store, settled: Any, kind: str, error: Any):
    """Once, with what is known of the run, and caused by it."""
    await declare(store, on_failure=None)
    run = await a_claimed_run(store)

    await accepted(store, settled(run), told(run))

    (event,) = await events(store)
    assert (kind, ("run", run.id), f"run:{run.id}", run.id) == (
        event.type,
        event.entity,
        event.caused_by,
        event.run_id,
    )
    payload = event.payload
    assert (run.id, FUNCTION, error, None, 0, 0) == (
        payload["run_id"],
        payload["function"],
        payload["error"],
        payload["failed_step"],
        payload["retries"],
        payload["steps_completed"],
    )
    assert payload["started_at"] <= payload["ended_at"]


async def test_a_stale_settlement_tells_nobody(store: Store):
    """Neither the ledger nor the function for failures, whether the run goes on or has ended meanwhile."""
    await declare(store)
    run = await a_claimed_run(store)
    stale = structs.replace(run, lease_no=run.lease_no - 1)
    changes: list[Change] = [failed(stale), told(stale)]

    assert {run.id} == (await store.commit(changes)).refused
    assert 0 == len(await events(store))
    await accepted(store, failed(run), told(run))
    assert {run.id} == (await store.commit(changes)).refused

    assert (1, 1) == (len(await events(store)), len(await mourners(store)))


async def test_a_function_is_started_for_a_failure(store: Store):
    """In its own queue and with its own priority, with the run's input and its error; for no other end."""
    await declare(store, lifecycle=Raw(b'["completed"]'))
    run, other = await a_claimed_run(store), await a_claimed_run(store)

    await accepted(store, failed(run), told(run), cancelled(other), told(other))

    (given,) = await mourners(store)
    assert (run.id, FUNCTION, {"n": 1}, "ValueError") == (
        given["run_id"],
        given["function"],
        given["input"],
        given["error"]["code"],
    )
    (started,) = await store.views.runs(RunFilter(function="mourn"))
    assert (f"run:{run.id}", "grief", 5) == (started.invoked_by, started.queue, started.priority)
    assert [] == await events(store)


async def test_a_full_queue_does_not_keep_a_failure_from_being_settled(store: Store):
    """What is started for a failure goes in, however full its queue is."""
    await store.declare([ASKING, MOURN], [DeclaredQueue("grief", max_waiting=1)])
    await enqueue(store, function="mourn", queue="grief")
    run = await a_claimed_run(store)

    await accepted(store, failed(run), told(run))

    assert State.FAILED == (await view(store, run)).state
    assert 2 == len(await mourners(store))


async def test_the_death_of_a_worker_is_told(database: Database):
    """By whoever rescues the run: it has failed as much as any other."""
    store, worker = database.store, await a_worker(database.store)
    await declare(store, attempts=1)
    run = await a_claimed_run(store, worker=worker)
    await database.advance(LEASE + 1)
    assert await store.bury(worker, (await store.expired())[worker])

    await store.rescue(10)

    (event,) = await events(store)
    assert ("run.failed", "worker_died") == (event.type, event.payload["error"]["code"])
    assert [run.id] == [given["run_id"] for given in await mourners(store)]


async def test_what_is_cancelled_while_it_waits_is_told(store: Store):
    """A ready run and the runs that wait for nobody any more; a running one when it has stopped."""
    await declare(store)
    run, waiting = await a_claimed_run(store), await enqueue(store)

    await store.cancel([run.id, waiting], "closed")

    assert [waiting] == [event.payload["run_id"] for event in await events(store)]
    await accepted(store, cancelled(run), told(run))
    last = (await events(store))[-1]
    assert (run.id, {"code": "cancelled", "message": "closed"}) == (last.payload["run_id"], last.payload["error"])


async def test_a_run_that_ends_again_is_told_again(database: Database):
    """Each end is an event of its own, also two of the same kind."""
    store = database.store
    await declare(store)
    run_id = await enqueue(store)
    await store.cancel([run_id], "no")
    await database.advance(1)
    await store.retry([run_id])
    await store.cancel([run_id], "no again")

    assert ["no", "no again"] == [event.payload["error"]["message"] for event in await events(store)]


# --- being late -------------------------------------------------------------------------------------------------------


async def test_the_time_of_a_run_comes_from_its_function(database: Database):
    """Whoever inserts it, as long as it does not know better; from when the run is due."""
    store = database.store
    await declare(store, start_timeout=60.0, finish_timeout=3600.0, cancel_on=Raw(b'[{"type":"x"}]'))
    by_name, known = await enqueue(store), await enqueue(store, queue=QUEUE)
    later = await enqueue(store, delay=600.0)
    columns = "start_by is not null and finish_by is not null and watched"
    rows = await database.query(f"select id from ostinato_runs where {columns} order by id")

    assert [by_name, later] == [row[0] for row in rows]
    assert 0 < (await store.next_overdue() or 0) <= 60
    await database.advance(61)
    assert [by_name] == [each.id for each in await store.end_overdue(10)]
    assert (State.CANCELLED, State.READY, State.HELD) == tuple(
        [(await view(store, run_id)).state for run_id in (by_name, known, later)]
    )


async def test_what_is_late_says_so(database: Database):
    """A run that waits ends at once; one that runs is asked to stop, and ends as late all the same."""
    store = database.store
    await declare(store, finish_timeout=60.0, start_timeout=10.0)
    run = await a_claimed_run(store)
    await database.advance(59)
    assert [] == await store.end_overdue(10)
    waiting = await enqueue(store)
    await database.advance(11)

    assert {run.id: "running", waiting: "cancelled"} == {each.id: each.state for each in await store.end_overdue(10)}

    assert None is await store.next_overdue()
    await accepted(store, cancelled(run), told(run))
    codes = {event.payload["run_id"]: event.payload["error"]["code"] for event in await events(store)}
    assert {run.id: "finish_timeout", waiting: "start_timeout"} == codes
    for run_id, code in codes.items():
        error = (await view(store, run_id)).error
        assert error is not None
        assert code == error.code


async def test_a_late_run_that_is_retried_has_its_time_again(database: Database):
    """Counted from the retry."""
    store = database.store
    await declare(store, start_timeout=10.0)
    run_id = await enqueue(store)
    await database.advance(11)
    await store.end_overdue(10)

    await store.retry([run_id])

    assert [] == await store.end_overdue(10)
    assert 9 < (await store.next_overdue() or 0) <= 10


def child_of(parent: Claimed) -> RunInserted:
    return a_run(parent_run=parent.id, parent_step="s")


async def test_what_a_late_run_waits_for_is_cancelled_with_it(database: Database):
    """Children are not late themselves."""
    store = database.store
    await declare(store, finish_timeout=10.0)
    await store.declare([MOURN], [])
    parent = await a_claimed_run(store)
    child = structs.replace(child_of(parent), function="mourn")
    await accepted(store, child)
    await database.advance(11)

    await store.end_overdue(10)

    error = (await view(store, child.id)).error
    assert error is not None
    assert ("cancelled", "it had not ended in time") == (error.code, error.message)
