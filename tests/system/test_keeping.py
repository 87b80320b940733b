"""Leases: kept while a worker lives, whatever its handlers do, and given up when it dies."""

from __future__ import annotations

import asyncio
import time

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended, run_row, until
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew


@pytest.mark.parametrize(
    ("function", "database"),
    [("compute", "sqlite"), ("compute", "postgres"), ("compute_in_a_thread", "sqlite")],
    indirect=["database"],
)
async def test_a_handler_that_computes_for_three_leases_keeps_its_run(
    app: App, crew: Crew, database: Database, log: Log, function: str
):
    """The lease is renewed by a thread of its own, so that nobody takes over from a worker that is only busy."""
    await crew.start("stopping", lease="1s")
    await crew.start("stopping", lease="1s")

    handle = await app.enqueue(function, {"seconds": 3.0})

    await all_ended(database)
    assert run_row(database, handle.id, "state, lease_no, attempt") == ("completed", 1, 1)
    assert log.find("WorkerBuried") == log.find("RunRescued") == log.find("LeaseLost") == []


async def test_a_handler_that_holds_the_event_loop_is_not_blamed_for_the_timeout_of_another(
    app: App, crew: Crew, database: Database, log: Log
):
    """A run with a short timeout has long ended when a slow one keeps the event loop busy past that."""
    worker = await crew.start("stopping", lease="1s", faults=["impatient"])
    await (await app.enqueue("quick", {}, timeout="200ms")).result(timeout=10)

    handle = await app.enqueue("compute", {"seconds": 3.0})

    await all_ended(database)
    assert worker.is_alive
    assert run_row(database, handle.id, "state, lease_no") == ("completed", 1)


async def test_a_worker_that_starts_after_the_lease_ran_out_takes_over_soon(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """It has just looked, and found nothing, when the dead worker's runs are given back."""
    victim = await crew.start("items", lease="1s")
    handle = await app.enqueue("hold", {"item": 1})
    await log.heard("holding")
    victim.kill()
    await until(lambda: expired(database), 1)
    gates.open("go")

    heir = await crew.start("items", lease="1s")

    [began] = await log.heard("WorkerStarted", pid=heir.pid)
    [again] = await log.heard("holding", pid=heir.pid)
    assert again["at"] - began["at"] < 3.0
    await all_ended(database)
    assert run_row(database, handle.id, "state, lease_no") == ("completed", 2)


@pytest.mark.parametrize("busy", [False, True], ids=["asleep", "busy"])
async def test_a_run_is_rescued_for_workers_of_other_queues_too(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates, busy: bool
):
    """The one that rescues it cannot do it; the one that can is woken, even if it has just looked for such runs."""
    victim = await crew.start("items", queues="a:10", lease="1s")
    await app.enqueue("hold", {"item": 1}, queue="a")
    await log.heard("holding")
    await crew.start("items", queues="b:10", lease="1s")
    heir = await crew.start("items", queues="a:10", lease="1s", faults=["never_rescues"])
    await heir.asleep()

    victim.kill()
    gates.open("go")
    while busy and not log.find("RunRescued"):
        await app.enqueue("work", {"item": 0}, queue="a")
        await asyncio.sleep(0.05)

    [rescued] = await log.heard("RunRescued")
    [again] = await log.heard("holding", pid=heir.pid)
    assert again["at"] - rescued["at"] < 2.0
    await all_ended(database)


async def test_runs_of_a_worker_that_was_buried_long_ago_are_rescued(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """Whoever declared it dead died too, before it could give the runs back; then nobody worked for a while."""
    victim = await crew.start("items", lease="1s")
    await app.enqueue("hold", {"item": 1})
    await log.heard("holding")
    victim.kill()
    bury_long_ago(database)
    gates.open("go")

    heir = await crew.start("items", lease="1s")

    await log.heard("holding", pid=heir.pid, timeout=5)
    await all_ended(database)


async def test_a_worker_that_was_declared_dead_goes_on_under_a_new_name(
    app: App, crew: Crew, database: Database, log: Log
):
    """What was enqueued while it stood still is claimed soon after it goes on, though it had slept through the bell."""
    frozen = await crew.start("items", lease="1s")
    await frozen.asleep()
    frozen.freeze()
    await crew.start("items", queues="other", lease="1s")
    await log.heard("WorkerBuried")
    await app.enqueue("work", {"item": 1})

    frozen.thaw()
    thawed = time.monotonic()

    [worked] = await log.heard("worked", pid=frozen.pid)
    assert worked["at"] - thawed < 3.0
    await all_ended(database)


# --- arranging ------------------------------------------------------------------------------------------------------


def expired(database: Database) -> int:
    """How many workers' leases have run out."""
    now = "ostinato.clock()" if database.dialect == "postgresql" else f"{time.time() * 1_000_000:.0f}"
    found: int = database.query(f"select count(*) from {database.workers} where expires_at < {now}")[0][0]
    return found


def bury_long_ago(database: Database) -> None:
    """Declares every worker dead, ten minutes ago."""
    now = time.time() - 600
    moment = f"to_timestamp({now})" if database.dialect == "postgresql" else f"{now * 1_000_000:.0f}"
    database.query(f"update {database.workers} set dead_at = {moment}")
