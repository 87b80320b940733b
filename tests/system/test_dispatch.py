"""A worker and its queue: what is enqueued is done, once, whatever becomes of notifications and workers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended, assert_one_effect_each, run_row, states
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew

LEASE = 1.0


async def test_a_run_is_picked_up_at_once(app: App, crew: Crew, database: Database, log: Log):
    """The happy path: enqueued, announced, claimed, completed; the poll of 30 s has no part in it."""
    worker = await crew.start("items")
    await worker.asleep()
    began = time.monotonic()

    handle = await app.enqueue("work", {"item": 21})

    assert await handle.result(timeout=10) == 42
    assert log.find("worked")[0]["at"] - began < 1.0
    assert run_row(database, handle.id, "state, attempt, lease_no") == ("completed", 1, 1)


@pytest.mark.parametrize("deaf", [{"notify": "off"}, {}], ids=["worker hears nothing", "producer rings nobody"])
async def test_a_missed_notification_is_made_up_for_by_polling(
    crew: Crew, database: Database, log: Log, deaf: dict[str, str]
):
    """Polling is the truth: without notifications a run waits for the poll and no longer."""
    worker = await crew.start("items", poll="1s", **deaf)
    await worker.asleep()
    began = time.monotonic()

    async with App(database.url, notify=False) as silent:
        await silent.enqueue("work", {"item": 1})

    [worked] = await log.heard("worked", timeout=5)
    assert worked["at"] - began < 2.5
    await all_ended(database)


async def test_two_workers_share_the_work_and_never_duplicate_it(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """Two workers hold ten runs each, then race for three hundred: every run is started exactly once."""
    first = await crew.start("items", queues="default:10")
    second = await crew.start("items", queues="default:10")
    await app.enqueue_many("hold", [{"item": n} for n in range(20)])
    holding = await log.heard("holding", count=20)
    assert Counter(line["pid"] for line in holding) == {first.pid: 10, second.pid: 10}

    await app.enqueue_many("work", [{"item": n} for n in range(300)])
    gates.open("go")

    await all_ended(database)
    assert states(database) == {"completed": 320}
    assert sorted(line["item"] for line in log.find("worked")) == list(range(300))


async def test_a_killed_worker_is_replaced_within_its_lease_and_two_seconds(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """A worker is killed mid-run; another one, already there, has the run soon after the lease has run out."""
    victim = await crew.start("items", lease="1s")
    handle = await app.enqueue("hold", {"item": 1})
    await log.heard("holding", pid=victim.pid)
    heir = await crew.start("items", lease="1s")
    killed = time.monotonic()

    victim.kill()
    gates.open("go")

    [again] = await log.heard("holding", pid=heir.pid)
    assert again["at"] - killed < LEASE + 2.0
    await all_ended(database)
    assert run_row(database, handle.id, "state, lease_no") == ("completed", 2)


async def test_a_run_that_is_processed_twice_leaves_one_row(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """Killed between its statement and its commit, the run goes again and counts once; so does its key."""
    victim = await crew.start("items", lease="1s")
    keyed = {"key": "item 7", "unique": "forever"}
    handle = await app.enqueue("write_and_hold", {"item": 7}, **keyed)
    await log.heard("written", pid=victim.pid)
    victim.kill()
    gates.open("go")

    await crew.start("items", lease="1s")
    await handle.result(timeout=10)
    again = await app.enqueue("write_and_hold", {"item": 7}, **keyed)

    assert (again.id, again.created) == (handle.id, False)
    assert len(log.find("written")) == 2
    assert_one_effect_each(database, [7])


async def test_a_hundred_items_at_once_are_done_within_five_seconds(app: App, crew: Crew, database: Database, log: Log):
    """A hundred callers enqueue at the same moment."""
    worker = await crew.start("items")
    await worker.asleep()
    began = time.monotonic()

    await asyncio.gather(*(app.enqueue("work", {"item": n}) for n in range(100)))

    await log.heard("worked", count=100)
    await all_ended(database)
    assert time.monotonic() - began < 5.0
    assert Counter(line["item"] for line in log.find("worked")) == Counter(range(100))
