"""Workers, their leases, and what becomes of the runs of the dead."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ostinato.model.run import Orphan, State
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
    completed,
    started,
    states,
    view,
)


async def the_death_of(database: Database, worker: str) -> None:
    """The worker's lease runs out and it is declared dead."""
    await database.advance(LEASE + 1)
    expired = await database.store.expired()
    assert await database.store.bury(worker, expired[worker])


async def rescued(database: Database, worker: str) -> list[Orphan]:
    await the_death_of(database, worker)
    return await database.store.rescue(100)


# --- leases ---------------------------------------------------------------------------------------------------------


async def test_a_worker_can_be_seen(store: Store):
    """A registered worker is alive for the length of its lease."""
    worker = await a_worker(store)
    await a_claimed_run(store, worker=worker)

    (seen,) = await store.views.workers()

    assert (worker, "studio", {QUEUE: 10}, LEASE) == (seen.id, seen.name, seen.queues, seen.lease)
    assert (seen.alive, seen.stopping, seen.dead_at, seen.running) == (True, False, None, 1)
    assert (seen.expires_at - seen.renewed_at).total_seconds() == LEASE


async def test_a_lease_runs_out(database: Database):
    """Without renewal a worker is expired after its lease, and not before."""
    store, worker = database.store, await a_worker(database.store)
    await database.advance(LEASE - 1)
    assert await store.expired() == {}

    await database.advance(2)

    assert [worker] == list(await store.expired())
    assert not (await store.views.workers())[0].alive


async def test_renewing_prolongs_a_lease(database: Database):
    """The lease counts from the last renewal, by the database's clock."""
    store, worker = database.store, await a_worker(database.store)
    await database.advance(LEASE - 1)

    assert await store.renew(worker, stopping=True)
    await database.advance(LEASE - 1)

    assert await store.expired() == {}
    assert (await store.views.workers())[0].stopping


async def test_an_expired_lease_may_still_be_renewed(database: Database):
    """After a long write lock everybody is late; who comes back in time keeps what it has."""
    worker = await a_worker(database.store)
    await database.advance(LEASE + 5)

    assert await database.store.renew(worker, stopping=False)
    assert await database.store.expired() == {}


async def test_the_dead_cannot_renew(database: Database):
    """A worker that was declared dead learns of it."""
    worker = await a_worker(database.store)
    await the_death_of(database, worker)

    assert not await database.store.renew(worker, stopping=False)
    assert not await database.store.renew("nobody", stopping=False)


async def test_only_who_did_not_renew_is_buried(database: Database):
    """A renewal between the look and the burial saves the worker."""
    store, worker = database.store, await a_worker(database.store)
    await database.advance(LEASE + 1)
    expired = await store.expired()
    await store.renew(worker, stopping=False)
    await database.advance(LEASE + 1)

    assert not await store.bury(worker, expired[worker])
    assert await store.bury(worker, (await store.expired())[worker])
    assert not await store.bury(worker, expired[worker])


async def test_a_live_worker_is_not_buried(database: Database):
    """Nobody can be declared dead before the lease is over."""
    worker = await a_worker(database.store)
    await database.advance(LEASE + 1)
    renewed = (await database.store.expired())[worker]
    await database.advance(-LEASE)

    assert not await database.store.bury(worker, renewed)


async def test_a_retired_worker_is_gone_at_once(store: Store):
    """At shutdown nobody has to wait for the lease to run out."""
    worker = await a_worker(store)

    await store.retire(worker)

    assert await store.expired() == {}
    assert await store.views.workers() == []
    assert [worker] == [seen.id for seen in await store.views.workers(dead=True)]


async def test_the_keeper_has_connections_of_its_own(store: Store):
    """A keeper renews from another thread with an event loop of its own, while this loop is not served."""
    worker = await a_worker(store)
    answers: list[bool] = []

    async def renew() -> None:
        async with store.keeper() as leases:
            answers.append(await leases.renew(worker, stopping=False))

    thread = threading.Thread(target=lambda: asyncio.run(renew()))
    thread.start()
    thread.join(20)  # blocks the event loop of the store

    assert answers == [True]


# --- rescue ---------------------------------------------------------------------------------------------------------


async def test_runs_of_the_living_are_left_alone(database: Database):
    """Late is not dead: before the burial nothing is taken away."""
    await a_claimed_run(database.store)
    await database.advance(LEASE + 1)

    assert await database.store.rescue(100) == []


async def test_a_certain_start_has_used_up_an_attempt(database: Database):
    """A run that was claimed alone when its worker died comes back as a suspect, one attempt poorer."""
    store, worker = database.store, await a_worker(database.store)
    run = await a_claimed_run(store, worker=worker)

    (orphan,) = await rescued(database, worker)

    assert (run.id, run.lease_no, 1, 0, True, 3, worker) == (
        orphan.id,
        orphan.lease_no,
        orphan.attempt,
        orphan.uncounted,
        orphan.certain,
        orphan.attempts_allowed,
        orphan.worker,
    )
    assert LEASE < orphan.claimed_for < LEASE + 5
    seen = await view(store, run)
    assert (seen.state, seen.suspect, seen.attempt, seen.locked_by) == (State.READY, True, 1, None)
    assert [attempt.code for attempt in seen.attempts] == ["worker_died"]


async def test_of_an_uncertain_start_the_attempt_is_returned(database: Database):
    """Runs claimed together have perhaps not started: none of them loses an attempt, all are suspects."""
    store, worker = database.store, await a_worker(database.store)
    claimed = await claimed_runs(store, 3, worker=worker)

    orphans = await rescued(database, worker)

    assert [orphan.certain for orphan in orphans] == [False] * 3
    for run in claimed:
        seen = await view(store, run)
        assert (seen.state, seen.suspect, seen.attempt) == (State.READY, True, 0)


async def test_a_noted_start_is_certain(database: Database):
    """Of runs claimed together, the one whose start was written ahead has used up its attempt."""
    store, worker = database.store, await a_worker(database.store)
    one, two = await claimed_runs(store, 2, worker=worker)
    await accepted(store, started(one))

    await rescued(database, worker)

    assert [(await view(store, run)).attempt for run in (one, two)] == [1, 0]


async def test_a_start_in_doubt_counts_when_the_suspect_kills_again(database: Database):
    """First claimed among others, then alone: after the second death both starts count."""
    store, first = database.store, await a_worker(database.store)
    run, _ = await claimed_runs(store, 2, worker=first)
    await rescued(database, first)
    second = await a_worker(store)
    suspect = await store.claim_suspect(QUEUE, worker=second)
    assert suspect is not None
    assert run.id == suspect.id

    await rescued(database, second)

    seen = await view(store, run)
    assert (seen.state, seen.attempt) == (State.READY, 2)


async def test_a_run_that_kills_its_workers_fails(database: Database):
    """When the last attempt allowed took its worker down, the run has failed, and its key is free."""
    store = database.store
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker, key="k")
    for _ in range(2):
        await rescued(database, worker)
        worker = await a_worker(store)
        assert await store.claim_suspect(QUEUE, worker=worker) is not None

    (orphan,) = await rescued(database, worker)

    seen = await view(store, run)
    assert seen.error is not None
    assert (orphan.attempt, seen.state, seen.error.code, len(seen.attempts)) == (3, State.FAILED, "worker_died", 3)
    assert (await store.commit([a_run(key="k")])).existing == {}


async def test_a_rescued_run_is_lost_to_its_former_worker(database: Database):
    """A worker that was only paused cannot complete what was taken from it."""
    store, worker = database.store, await a_worker(database.store)
    run = await a_claimed_run(store, worker=worker)
    await rescued(database, worker)

    assert {run.id} == (await store.commit([completed(run)])).refused
    assert await states(store, [run]) == [State.READY]


async def test_a_completed_suspect_is_no_suspect_any_more(database: Database):
    """Once it went well, nothing is held against it."""
    store, worker = database.store, await a_worker(database.store)
    run = await a_claimed_run(store, worker=worker)
    await rescued(database, worker)
    suspect = await store.claim_suspect(QUEUE, worker=await a_worker(store))
    assert suspect is not None

    await accepted(store, completed(suspect))

    assert not (await view(store, run)).suspect


async def test_rescue_takes_no_more_than_asked(database: Database):
    """A large number of orphans is rescued in portions, each once."""
    store, worker = database.store, await a_worker(database.store)
    await claimed_runs(store, 5, worker=worker)
    await the_death_of(database, worker)

    portions = [await store.rescue(2) for _ in range(4)]

    assert [len(portion) for portion in portions] == [2, 2, 1, 0]
    assert len({orphan.id for portion in portions for orphan in portion}) == 5


async def test_rescuers_do_not_share_orphans(database: Database):
    """Two rescuers at the same moment give each orphan back once."""
    store, other, worker = database.store, await database.another(), await a_worker(database.store)
    await claimed_runs(store, 40, worker=worker)
    await the_death_of(database, worker)

    portions = await asyncio.gather(*(each.rescue(30) for each in (store, other, store, other)))

    ids = [orphan.id for portion in portions for orphan in portion]
    assert len(ids) == len(set(ids))
    assert len(ids) + len(await store.rescue(100)) == 40
    assert await database.count("attempts") == 40


async def test_a_retired_worker_leaves_nothing_running(database: Database):
    """A worker that left without settling is rescued from like a dead one."""
    store, worker = database.store, await a_worker(database.store)
    run = await a_claimed_run(store, worker=worker)
    await store.retire(worker)

    assert [run.id] == [orphan.id for orphan in await store.rescue(100)]


@pytest.mark.parametrize("pause", [30.0, 120.0, 7200.0])
async def test_orphans_are_rescued_however_late_somebody_looks(database: Database, pause: float):
    """When everybody was away after a burial, its orphans are still found."""
    store, worker = database.store, await a_worker(database.store)
    run = await a_claimed_run(store, worker=worker)
    await the_death_of(database, worker)
    await database.advance(pause)
    await store.tidy()

    assert [run.id] == [orphan.id for orphan in await store.rescue(100)]
    assert await claim(store, worker=worker) == []
