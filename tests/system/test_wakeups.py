"""Workers are woken, from any process and at once; and they look for themselves where nobody can wake them."""

from __future__ import annotations

import time
from statistics import median

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew, WorkerProcess

AT_ONCE = 2.0
"""Far less than the poll of 30 s, and much for two busy cores."""


async def latency(log: Log, item: int, committed: float) -> float:
    """Seconds from a commit to the handler's start."""
    [worked] = await log.heard("worked", item=item, timeout=10)
    return float(worked["at"]) - committed


# --- late commits ---------------------------------------------------------------------------------------------------


async def busy_worker(app: App, crew: Crew, log: Log) -> WorkerProcess:
    """A worker whose only slot is taken: it does not ask to be woken."""
    worker = await crew.start("items", queues="default:1")
    await app.enqueue("hold", {"item": 0})
    await log.heard("holding")
    return worker


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_an_enqueue_that_commits_after_the_worker_fell_asleep_is_claimed_at_once(
    app: App, crew: Crew, log: Log, gates: Gates
):
    """It looked for a sleeping worker before there was one. The worker knows, and does not sleep until it has ended."""
    worker = await busy_worker(app, crew, log)
    async with app.transaction() as tx:
        await tx.enqueue("work", {"item": 1})
        gates.open("go")
        await looked_in_vain(log, worker)
    committed = time.monotonic()

    assert await latency(log, 1, committed) < AT_ONCE


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_the_newest_transaction_of_all_is_waited_for_too(app: App, crew: Crew, log: Log, gates: Gates):
    """Nothing else is written meanwhile, so that no snapshot lists it among the open transactions."""
    worker = await crew.start("items", faults=["hesitates_to_sleep"])
    await log.heard("hesitating")
    async with app.transaction() as tx:
        await tx.enqueue("work", {"item": 1})
        gates.open("sleep")
        await looked_in_vain(log, worker)
    committed = time.monotonic()

    assert await latency(log, 1, committed) < AT_ONCE


async def looked_in_vain(log: Log, worker: WorkerProcess) -> None:
    """Until the worker has looked for work a few times and found none, or has fallen asleep over it."""
    began = time.monotonic()

    def looked() -> bool:
        looks = [line for line in log.find("QueueScanned", pid=worker.pid, found=0) if line["at"] > began]
        return len(looks) >= 4 or any(line["at"] > began for line in log.find("QueueAsleep", pid=worker.pid))

    await log.until(looked, "a worker that found nothing")


@pytest.mark.parametrize("priority", [-600, 600])
async def test_any_priority_is_claimed_at_once(app: App, crew: Crew, database: Database, log: Log, priority: int):
    """Ten minutes before or behind everything that was claimed until now, it is found without waiting for the poll."""
    worker = await crew.start("items")
    await app.enqueue("work", {"item": 1})
    [first] = await log.heard("worked", item=1)
    await worker.asleep(since=first["at"])

    await app.enqueue("work", {"item": 2}, priority=priority)

    assert await latency(log, 2, time.monotonic()) < AT_ONCE
    await all_ended(database)


# --- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_processes_on_one_file_wake_each_other(app: App, crew: Crew, log: Log):
    """Three workers sleep for 30 s on one file: an enqueue by a fourth process, and its result, take milliseconds."""
    for _ in range(3):
        worker = await crew.start("items")
        await worker.asleep()

    waits, rounds = [], []
    for item in range(20):
        began = time.monotonic()
        handle = await app.enqueue("work", {"item": item})
        assert await handle.result(timeout=10) == item * 2
        rounds.append(time.monotonic() - began)
        waits.append(await latency(log, item, began))
    assert median(waits) < 0.1
    assert max(rounds) < 2.0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_without_notifications_processes_on_one_file_poll(crew: Crew, database: Database, log: Log):
    """OSTINATO_NOTIFY=off: the worker looks at its own pace, and finds everything."""
    worker = await crew.start("items", notify="off", poll="500ms")
    await worker.asleep()

    async with App(database.url, notify=False) as app:
        handles = await app.enqueue_many("work", [{"item": item} for item in range(20)])
        committed = time.monotonic()
        assert [await handle.result(timeout=10) for handle in handles] == [item * 2 for item in range(20)]

    assert await latency(log, 19, committed) < AT_ONCE
