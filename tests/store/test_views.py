"""What people see, which is the same on every database."""

from __future__ import annotations

from datetime import timedelta

from msgspec import Raw

from ostinato.model.run import State
from ostinato.model.view import RunCount, RunFilter
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import (
    QUEUE,
    a_claimed_run,
    a_run,
    a_worker,
    accepted,
    an_attempt,
    claim,
    completed,
    enqueue,
    failed,
    held,
    runs,
    view,
)


async def test_everything_about_a_run_can_be_seen(database: Database):
    """A run that was tried twice shows its input, output, owner, attempts and times."""
    store, worker = database.store, await a_worker(database.store)
    given = a_run(input=Raw(b'{"n":[1,2.5,"x",null,true]}'), priority=5, metadata=Raw(b'{"a":1}'), timeout=1.5)
    await accepted(store, given)
    (first,) = await claim(store, 1, worker=worker)
    await accepted(store, held(first, 0.0), an_attempt(first))
    (second,) = await claim(store, 1, worker=worker)

    seen = await view(store, given.id)

    assert seen.input == {"n": [1, 2.5, "x", None, True]}
    assert (
        seen.state,
        seen.attempt,
        seen.lease_no,
        seen.attempts_allowed,
        seen.priority,
        seen.timeout,
    ) == (State.RUNNING, 2, 2, 3, 5, 1.5)
    assert (worker, False, False, False, {"a": 1}, None) == (
        seen.locked_by,
        seen.suspect,
        seen.cancel_requested,
        seen.queue_paused,
        seen.metadata,
        seen.output,
    )
    assert [(each.attempt, each.lease_no, each.code) for each in seen.attempts] == [(1, 1, "ValueError")]
    assert seen.claimed_at is not None
    assert seen.created_at <= seen.claimed_at
    assert timedelta(0) == seen.created_at.utcoffset()
    assert second.id == seen.id


async def test_an_unknown_run_is_none(store: Store):
    """A run that is not there is no error."""
    assert await store.views.run("01AAAAAAAAAAAAAAAAAAAAAAAA") is None


async def test_runs_are_listed_newest_first(store: Store):
    """A list is paged by the last id of the page before."""
    bulk = runs(5)
    await accepted(store, *bulk)
    ids = [run.id for run in reversed(bulk)]

    page = await store.views.runs(RunFilter(limit=2))
    rest = await store.views.runs(RunFilter(before=page[-1].id))

    assert ids == [run.id for run in (*page, *rest)]


async def test_runs_are_listed_by_what_they_are(store: Store):
    """Function, queue and state narrow a list, alone and together."""
    mine = await enqueue(store)
    night = await enqueue(store, queue="night")
    other = await enqueue(store, function="other", queue="night", delay=60.0)

    async def ids(**where: object) -> list[str]:
        return sorted(run.id for run in await store.views.runs(RunFilter(**where)))  # type: ignore[arg-type]

    assert [mine, night] == await ids(function="mix")
    assert [night, other] == await ids(queue="night")
    assert [other] == await ids(state=State.HELD)
    assert [night] == await ids(function="mix", queue="night", state=State.READY)
    assert await ids(function="nobody") == []


async def test_runs_are_counted(store: Store):
    """Counts are by function, queue and state."""
    await accepted(store, *runs(3), a_run(queue="night"), a_run(delay=60.0))

    assert [
        RunCount("mix", "default", State.HELD, 1),
        RunCount("mix", "default", State.READY, 3),
        RunCount("mix", "night", State.READY, 1),
    ] == await store.views.counts()


async def test_outcomes_are_of_ended_runs(store: Store):
    """Who waits for results learns of those that have ended, and of no others."""
    done = await a_claimed_run(store)
    await accepted(store, completed(done, b"[1]"))
    broken = await a_claimed_run(store)
    await accepted(store, failed(broken))
    waiting = await enqueue(store)

    outcomes = await store.views.outcomes([done.id, broken.id, waiting, "unknown"])

    assert {done.id, broken.id} == set(outcomes)
    assert outcomes[done.id] == ("completed", "[1]", None)
    assert "out of tune" in (outcomes[broken.id].error or "")


async def test_workers_are_listed_by_age(database: Database):
    """The dead are shown on request only."""
    store = database.store
    first, second, third = [await a_worker(store) for _ in range(3)]
    await store.retire(second)

    assert [first, third] == [worker.id for worker in await store.views.workers()]
    assert [first, second, third] == [worker.id for worker in await store.views.workers(dead=True)]


async def test_a_queue_can_be_seen_to_be_paused(database: Database):
    """A paused queue shows on its runs, in lists too."""
    run_id = await enqueue(database.store)
    await database.query(f"insert into ostinato_queues (name, paused) values ('{QUEUE}', 1 = 1)")

    (listed,) = await database.store.views.runs(RunFilter())

    assert ((await view(database.store, run_id)).queue_paused, listed.queue_paused) == (True, True)
