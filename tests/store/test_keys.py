"""Keys: what makes a run the only one of its kind, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.model.change import Change
from ostinato.model.run import State
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import (
    FUNCTION,
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
    held,
    key_freed,
)

FOREVER = {"unique": "until"}


async def is_free(store: Store, key: str = "k", **fields: object) -> bool:
    """Whether a new run gets the key; if so, it has it now."""
    run = a_run(key=key, **fields)
    return not (await store.commit([run])).existing


@pytest.mark.parametrize("mode", ["active", "failed", "until"])
async def test_a_taken_key_gives_the_run_that_holds_it(database: Database, mode: str):
    """A second run with the key is not inserted; its id stands for the first."""
    store = database.store
    first, second = a_run(key="k", unique=mode), a_run(key="k", unique=mode)
    await accepted(store, first)

    committed = await store.commit([second])

    assert {second.id: first.id} == committed.existing
    assert await database.count("runs") == 1


async def test_a_key_belongs_to_a_function(store: Store):
    """The same key of two functions is two keys."""
    await accepted(store, a_run(key="k"))

    assert await is_free(store, function="other", queue=QUEUE)


async def test_duplicates_within_a_bulk_are_one_run(database: Database):
    """The first of a bulk gets the key, the others point to it, and runs without a key are not touched."""
    store = database.store
    first, second, third, free, other = (a_run(key="k"), a_run(key="k"), a_run(key="k"), a_run(), a_run(key="l"))

    committed = await store.commit([first, free, second, other, third])

    assert {second.id: first.id, third.id: first.id} == committed.existing
    assert {first.id, free.id, other.id} == await store.views.existing(
        [run.id for run in (first, second, third, free, other)]
    )


async def test_a_refused_run_takes_nothing(database: Database):
    """A run that was not inserted leaves no key of its own."""
    await accepted(database.store, a_run(key="k"))
    await database.store.commit([a_run(key="k")])

    assert await database.count("keys") == 1


@pytest.mark.parametrize(
    ("mode", "end", "freed"),
    [
        ("active", State.COMPLETED, True),
        ("active", State.FAILED, True),
        ("active", State.CANCELLED, True),
        ("failed", State.COMPLETED, True),
        ("failed", State.FAILED, False),
        ("failed", State.CANCELLED, True),
        ("until", State.COMPLETED, False),
        ("until", State.FAILED, False),
        ("until", State.CANCELLED, False),
    ],
)
async def test_a_key_is_freed_as_its_mode_says(store: Store, mode: str, end: State, freed: bool):
    """Active keys end with the run, failed ones unless it failed, the others not at all."""
    run = await a_claimed_run(store, key="k", unique=mode)
    endings: dict[State, Change] = {
        State.COMPLETED: completed(run),
        State.FAILED: failed(run),
        State.CANCELLED: cancelled(run),
    }

    await accepted(store, endings[end], key_freed(run, end))

    assert freed == await is_free(store)


async def test_a_retrying_run_keeps_its_key(store: Store):
    """Held for a retry is not ended."""
    run = await a_claimed_run(store, key="k")
    await accepted(store, held(run, 60.0))

    assert not await is_free(store)


@pytest.mark.parametrize(("mode", "freed"), [("active", True), ("failed", True), ("until", False)])
async def test_cancelling_a_waiting_run_frees_its_key(store: Store, mode: str, freed: bool):
    """A run that ends at once by being cancelled frees its key in the same commit."""
    await store.cancel([await enqueue(store, key="k", unique=mode)], "not wanted")

    assert freed == await is_free(store)


async def test_cancelling_a_running_run_keeps_its_key(store: Store):
    """While its worker still has it, there must be no second one."""
    run = await a_claimed_run(store, key="k")
    await store.cancel([run.id], "not wanted")

    assert not await is_free(store)


async def test_a_period_ends(database: Database):
    """A key for a period counts from the enqueuing and outlives its run; after it a new run takes it over."""
    store = database.store
    run = await a_claimed_run(store, key="k", unique="until", unique_for=60.0)
    await accepted(store, completed(run), key_freed(run))

    await database.advance(59.0)
    assert not await is_free(store, unique="until", unique_for=60.0)
    await database.advance(2.0)
    assert await is_free(store, unique="until", unique_for=60.0)
    assert not await is_free(store, unique="until", unique_for=60.0)


async def test_for_ever_is_for_ever(database: Database):
    """A key without a period is never given again."""
    store = database.store
    await accepted(store, a_run(key="k", unique="until"))

    await database.advance(100 * 365 * 86400.0)
    await store.tidy()

    assert not await is_free(store)


async def test_one_of_many_takers_wins(database: Database):
    """Of many who take a key at the same moment, through several stores, one gets it and the others learn who."""
    stores = [database.store, await database.another(), await database.another()]
    takers = [a_run(key="k") for _ in range(30)]

    answers = await asyncio.gather(*(stores[place % 3].commit([run]) for place, run in enumerate(takers)))

    winners = {taker.id for taker, answer in zip(takers, answers, strict=True) if not answer.existing}
    assert len(winners) == 1
    assert winners == {holder for answer in answers for holder in answer.existing.values()}
    assert await database.count("runs") == 1


async def test_bulks_of_the_same_keys_do_not_deadlock(database: Database):
    """Bulks that take the same keys in different orders all go through."""
    stores = [database.store, await database.another()]
    keys = [f"k{number}" for number in range(50)]
    bulks = [[a_run(key=key) for key in (keys if turn % 2 else reversed(keys))] for turn in range(6)]

    await asyncio.gather(*(stores[turn % 2].commit(bulk) for turn, bulk in enumerate(bulks)))

    assert await database.count("runs", f"function = '{FUNCTION}'") == 50


# --- despite a key ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["active", "until"])
async def test_a_forced_run_gets_the_key(database: Database, mode: str):
    """It is inserted whoever holds the key, which passes to it; the others go on without."""
    store = database.store
    first, second, third = a_run(key="k", unique=mode), a_run(key="k", force=True), a_run(key="k")
    await accepted(store, first)

    assert {} == (await store.commit([second])).existing

    assert {third.id: second.id} == (await store.commit([third])).existing
    assert (2, 1) == (await database.count("runs"), await database.count("keys"))


async def test_a_run_that_lost_its_key_does_not_free_it(store: Store):
    """Its end is not that of the run which holds the key now; the end of that one is."""
    first = await a_claimed_run(store, key="k")
    await enqueue(store, key="k", force=True)

    await accepted(store, completed(first), key_freed(first))
    assert not await is_free(store)

    (second,) = await claim(store, 1, worker=await a_worker(store))
    await accepted(store, completed(second), key_freed(second))
    assert await is_free(store)


async def test_a_run_that_lost_its_key_cannot_be_retried_beside_the_one_that_has_it(store: Store):
    """One run at a time, as ever."""
    first = await a_claimed_run(store, key="k")
    await accepted(store, failed(first), key_freed(first, State.FAILED))
    await enqueue(store, key="k", force=True)

    assert {} == await store.retry([first.id])


async def test_forced_runs_of_a_bulk_all_run(database: Database):
    """The last of those with one key has it; a free key is simply taken."""
    store = database.store
    several = [a_run(key="k", force=True), a_run(key="k", force=True), a_run(key="l", force=True)]

    assert {} == (await store.commit(several)).existing

    held = await database.query("select key, run_id from ostinato_keys order by key")
    assert [("k", several[1].id), ("l", several[2].id)] == held
    assert 3 == await database.count("runs")
