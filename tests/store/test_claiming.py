"""Claiming: who gets which runs, in which order."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.ids import new_id
from ostinato.model.run import START, Mark, State
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import (
    LEASE,
    QUEUE,
    a_claimed_run,
    a_run,
    a_worker,
    accepted,
    claim,
    claimed_runs,
    enqueue,
    given_back,
    held,
    runs,
    settled,
    view,
)


async def test_a_claim_says_what_to_do(store: Store):
    """A claimed run has everything its worker needs."""
    given = a_run(key="k", timeout=2.5, invoked_by="run:7")
    await accepted(store, given)
    worker = await a_worker(store)

    (run,) = await claim(store, worker=worker)

    assert (given.id, 1, "mix", QUEUE, 1) == (run.id, run.lease_no, run.function, run.queue, run.attempt)
    assert (run.key, run.timeout, run.invoked_by, run.metadata) == ("k", 2.5, "run:7", None)
    assert run.suspect is False
    assert 0 <= run.waited < 5


async def test_a_claimed_run_is_running(store: Store):
    """Its owner, its lease and the moments of its start can be seen."""
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker)

    seen = await view(store, run)

    assert (State.RUNNING, worker, 1, 1) == (seen.state, seen.locked_by, seen.lease_no, seen.attempt)
    assert seen.started_at is not None
    assert seen.claimed_at is not None
    assert seen.lease_expires_at is not None


async def test_the_first_start_is_remembered(database: Database):
    """A second claim moves claimed_at, not started_at."""
    store, worker = database.store, await a_worker(database.store, lease=1000)
    run = await a_claimed_run(store, worker=worker)
    first = await view(store, run)
    await accepted(store, given_back(run))
    await database.advance(5.0)

    (again,) = await claim(store, worker=worker)
    second = await view(store, again)

    assert first.started_at == second.started_at
    assert first.claimed_at is not None
    assert second.claimed_at is not None
    assert first.claimed_at < second.claimed_at


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_a_claim_takes_no_more_than_asked(database: Database, limit: int):
    """However many are ready, exactly as many are taken as asked for."""
    await accepted(database.store, *runs(50))

    claimed = await claim(database.store, limit, worker=await a_worker(database.store))

    assert limit == len(claimed)
    assert limit == await database.count("runs", "state = 'running'")


async def test_a_claim_of_nothing_is_nothing(store: Store):
    """An empty queue gives an empty list."""
    assert await claim(store, worker=await a_worker(store)) == []


async def test_claims_come_in_the_order_of_their_time(store: Store):
    """What was due first comes first, whatever was inserted first."""
    moments = ["2024-05-03T00:00:00+00:00", "2024-05-01T00:00:00+00:00", "2024-05-02T00:00:00+00:00"]
    bulk = [a_run(run_at=moment) for moment in moments]
    await accepted(store, *bulk)
    worker = await a_worker(store)

    order = [(await claim(store, 1, worker=worker))[0].id for _ in bulk]

    assert [bulk[1].id, bulk[2].id, bulk[0].id] == order


async def test_a_claim_is_of_one_queue(store: Store):
    """Runs of other queues stay where they are."""
    other = await enqueue(store, queue="night")
    mine = await enqueue(store)
    worker = await a_worker(store)

    assert [mine] == [run.id for run in await claim(store, worker=worker)]
    assert [other] == [run.id for run in await claim(store, worker=worker, queue="night")]


async def test_a_paused_queue_gives_nothing(database: Database):
    """Who paused a queue stops claims from it, and people see why its runs wait."""
    store = database.store
    run_id = await enqueue(store)
    await database.query(f"insert into ostinato_queues (name, paused) values ('{QUEUE}', 1 = 1)")

    assert await claim(store, worker=await a_worker(store)) == []
    assert (await view(store, run_id)).held_because == "paused"


async def test_a_dead_worker_gets_nothing(store: Store):
    """A worker that is retired, or was never there, cannot claim."""
    await accepted(store, *runs(2))
    worker = await a_worker(store)
    await store.retire(worker)

    assert await claim(store, worker=worker) == []
    assert await claim(store, worker=new_id()) == []


async def test_a_worker_whose_lease_ran_out_may_claim(database: Database):
    """Until somebody declares it dead, a late worker is an owner like any other."""
    worker = await a_worker(database.store)
    await enqueue(database.store)
    await database.advance(LEASE + 1)

    assert len(await claim(database.store, worker=worker)) == 1


async def test_claimers_never_share_a_run(database: Database):
    """Many claims at once, through several stores, take each run once and miss none."""
    stores = [database.store, await database.another(), await database.another()]
    workers = [await a_worker(store) for store in stores]
    await accepted(database.store, *runs(300))

    async def take(place: int) -> list[str]:
        mine = []
        while claimed := await claim(stores[place], 7, worker=workers[place]):
            mine += [run.id for run in claimed]
        return mine

    taken = [run_id for mine in await asyncio.gather(*(take(place) for place in (0, 1, 2))) for run_id in mine]

    assert len(taken) == 300
    assert len(set(taken)) == 300


async def test_a_mark_hides_what_is_before_it(store: Store):
    """Claiming from a mark gives what is at or behind it; claiming from the start gives everything."""
    worker = await a_worker(store)
    first, second, third = await claimed_runs(store, 3, worker=worker)
    await accepted(store, given_back(first), given_back(second), given_back(third))

    behind = await claim(store, worker=worker, mark=Mark(second.due, second.id))
    rest = await claim(store, worker=worker, mark=START)

    assert [second.id, third.id] == [run.id for run in behind]
    assert [first.id] == [run.id for run in rest]


async def test_runs_of_the_same_moment_are_told_apart_by_the_mark(store: Store):
    """The mark is a moment and an id: of a bulk with one moment nothing is passed over."""
    worker = await a_worker(store)
    bulk = runs(4, run_at="2024-05-01T00:00:00+00:00")
    await accepted(store, *bulk)

    two = await claim(store, 2, worker=worker)
    rest = await claim(store, worker=worker, mark=Mark(two[-1].due, two[-1].id))

    assert [run.id for run in bulk] == [run.id for run in (*two, *rest)]


async def test_lease_no_grows_with_every_claim(store: Store):
    """Neither giving back nor a retry makes it smaller, though the attempt may be returned."""
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker)
    await accepted(store, given_back(run))
    (second,) = await claim(store, worker=worker)
    await accepted(store, held(second, 0.0))
    (third,) = await claim(store, worker=worker)

    assert [(each.lease_no, each.attempt) for each in (run, second, third)] == [(1, 1), (2, 1), (3, 2)]


async def test_suspects_are_claimed_apart(store: Store):
    """A run whose worker died is not among the others; it is claimed alone, and only by asking for it."""
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker)
    await accepted(store, settled(run, State.READY, suspect=True))

    assert await claim(store, worker=worker) == []
    suspect = await store.claim_suspect(QUEUE, worker=worker)
    assert suspect is not None
    assert (run.id, True) == (suspect.id, suspect.suspect)
    assert await store.claim_suspect(QUEUE, worker=worker) is None


async def test_a_lone_claim_is_a_certain_start(database: Database):
    """A run claimed alone has certainly started; of runs claimed together nobody can tell yet."""
    await a_claimed_run(database.store)
    await claimed_runs(database.store, 2)

    assert await database.count("runs", "certain = (1 = 1)") == 1
