"""The metrics of real worker processes equal what happened, exactly."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ostinato import App
from tests.metrics.scraping import Samples, of, scraped
from tests.system.databases import Database, states, until
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew, WorkerProcess

SETTINGS: dict[str, Any] = {"lease": "1s", "shutdown_grace": "200ms", "metrics_port": 0}


async def address(worker: WorkerProcess, log: Log) -> str:
    """Where a worker can be asked."""
    (served,) = await log.heard("MetricsServed", pid=worker.pid)
    return str(served["url"])


async def counted(where: str, *names: str) -> Samples:
    """What the page says once these are on it: what happens is written to the log before it is counted."""
    async with asyncio.timeout(15):
        found = await scraped(where)
        while not all(of(found, name) for name in names):
            found = await scraped(where)
    return found


def by_type(found: Samples, name: str) -> dict[str, float]:
    """The sums of one metric by job type."""
    sums: Counter[str] = Counter()
    for labels, value in of(found, name).items():
        sums[labels.partition("/")[0]] += value  # type: ignore[assignment]
    return dict(sums)


def tallied(log: Log, worker: WorkerProcess, what: str, field: str) -> dict[str, float]:
    """How often a worker told this, by a field."""
    return dict(Counter(str(line[field]) for line in log.find(what, pid=worker.pid)))


@contextmanager
def overheard(database: Database) -> Iterator[list[str]]:
    """What PostgreSQL itself sends to those who listen, heard by another driver."""
    heard: list[str] = []
    if database.dialect == "sqlite":
        yield heard
        return
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("listen ostinato")
        yield heard
        heard += [each.payload.partition(":")[0] for each in connection.notifies(timeout=0.2)]


async def test_the_metrics_of_a_script_equal_what_happened(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """Runs that succeed, are retried, fail for good, are cancelled, outlive a killed worker, are given back at
    shutdown, wait, and are unknown: every counter of the worker that saw it all has the number that the script says."""
    killed = await crew.start("metered", **SETTINGS)
    for function in ("listen", "listen", "once"):
        await app.enqueue(function, {"gate": "rescued"})
    await log.heard("listening", pid=killed.pid, count=3)
    before = await scraped(await address(killed, log))
    assert by_type(before, "job_claimed_total") == {"listen": 2, "once": 1}
    assert of(before, "job_completed_total") == {}
    killed.kill()

    with overheard(database) as notifications:
        worker = await crew.start("metered", **SETTINGS)
        await log.heard("RunRescued", pid=worker.pid, count=3)
        gates.open("rescued")
        await until(lambda: states(database), {"completed": 2, "failed": 1})

        for function, count in {"succeed": 5, "flaky": 3, "doomed": 2, "refuse": 1, "unwanted": 1}.items():
            for _ in range(count):
                await app.enqueue(function, {})
        await app.enqueue("stranger", {}, queue="default")
        await app.enqueue_many("succeed", [{}] * 4, queue="attic")
        await app.enqueue_many("succeed", [{}] * 2, delay="1h")
        waiting = await app.enqueue("succeed", {}, delay="1h")
        await waiting.cancel()
        running = await app.enqueue("listen", {"gate": "never"})
        await log.heard("listening", run=running.id)
        await running.cancel()
        # doomed, refuse and once have failed; stranger is held for a minute, like what is delayed.
        await until(lambda: states(database), {"completed": 10, "failed": 4, "cancelled": 3, "held": 3, "ready": 4})

        left = await app.enqueue("listen", {"gate": "never"})
        await log.heard("listening", run=left.id)
        worker.terminate()
        await log.heard("WorkerStopped", pid=worker.pid)
        found = await scraped(await address(worker, log))
        gates.open("end")
        assert await worker.exit_code() == 0

    claims = {"succeed": 5, "flaky": 9, "doomed": 4, "refuse": 1, "unwanted": 1, "listen": 4, "other": 1}
    assert by_type(found, "job_claimed_total") == claims
    assert by_type(found, "job_wakeup_latency_seconds_count") == claims
    (identity,) = [line["worker"] for line in log.find("WorkerStarted", pid=worker.pid)]
    assert {labels.partition("/")[2] for labels in of(found, "job_claimed_total")} == {identity}

    assert of(found, "job_completed_total") == {
        "succeed/success": 5,
        "flaky/success": 3,
        "flaky/failed": 6,
        "doomed/failed": 2,
        "doomed/dead": 2,
        "refuse/dead": 1,
        "listen/success": 2,
        "once/dead": 1,
        "other/failed": 1,
    }
    assert of(found, "job_cancelled_total") == {"unwanted": 1, "listen": 1}
    assert of(found, "job_given_back_total") == {"listen": 1}
    assert of(found, "job_rescued_total") == {"listen": 2, "once": 1}
    assert of(found, "job_workers_buried_total") == {"": 1}
    assert of(found, "job_stale_writes_refused_total") == of(found, "job_leases_lost_total") == {}
    assert of(found, "job_processing_seconds_count") == {
        **{name: count for name, count in claims.items() if name != "listen"},
        "listen": 3,
    }
    assert of(found, "job_queue_depth") == {"succeed": 4, "listen": 1}
    assert_it_balances(found)

    renewals = len(log.find("LeaseRenewed", pid=worker.pid))
    assert of(found, "job_lease_renewals_total") == {"": renewals}
    assert renewals >= 1
    polled = sum(line["found"] for line in log.find("QueueScanned", pid=worker.pid, woken=False))
    assert sum(of(found, "job_poll_scanned_total").values()) == polled
    received = of(found, "job_notification_received_total")
    assert received == tallied(log, worker, "NotificationReceived", "channel")
    assert received["cancel"] >= 1
    if database.dialect == "postgresql":
        assert received == {"queue": notifications.count("q"), "cancel": notifications.count("c")}


def assert_it_balances(found: Samples) -> None:
    """Whatever was claimed has ended in one of the ways that are counted; of the dead, rescuers add some."""
    ended = Counter[str]()
    for name in ("job_completed", "job_cancelled", "job_given_back", "job_stale_writes_refused"):
        ended.update(by_type(found, f"{name}_total"))
    del ended["once"]
    assert by_type(found, "job_claimed_total") == dict(ended)


async def test_a_worker_that_lost_its_lease_says_so(app: App, crew: Crew, log: Log, gates: Gates):
    """What it could not write is counted once, and its old identity is not shown any more."""
    frozen = await crew.start("metered", **SETTINGS)
    await app.enqueue("listen", {"gate": "go"})
    await log.heard("listening", pid=frozen.pid)
    frozen.freeze()
    other = await crew.start("metered", **SETTINGS)
    await log.heard("listening", pid=other.pid, lease_no=2)
    frozen.thaw()
    await log.heard("StaleWriteRefused", pid=frozen.pid)
    _, renamed = await log.heard("WorkerStarted", pid=frozen.pid, count=2)
    found = await counted(await address(frozen, log), "job_stale_writes_refused_total", "job_leases_lost_total")

    assert of(found, "job_leases_lost_total") == {"": 1}
    assert of(found, "job_stale_writes_refused_total") == {"listen": 1}
    assert of(found, "job_completed_total") == {}
    assert {key[2] for key in found if key[0] == "job_claimed_total"} == {renamed["worker"]}

    gates.open("go")
    await until(lambda: bool(log.find("RunRescued", pid=other.pid)), True)
    rescuer = await counted(await address(other, log), "job_rescued_total")
    assert of(rescuer, "job_rescued_total") == {"listen": 1}
    assert by_type(rescuer, "job_claimed_total") == {"listen": 1}


@pytest.mark.parametrize("notify", ["on", "off"])
async def test_what_polling_finds_is_told_apart(app: App, crew: Crew, database: Database, log: Log, notify: str):
    """A worker that sleeps finds runs because it is woken, now and then because it looks at the very moment; without
    wake-ups it finds all of them by looking."""
    unhurried = {**SETTINGS, "lease": "30s"}  # one that is lost and taken anew makes a worker look, too
    worker = await crew.start("metered", poll="300ms" if notify == "off" else "30s", notify=notify, **unhurried)
    slept_since = 0.0
    for count in range(1, 6):
        await worker.asleep(since=slept_since)
        await app.enqueue("succeed", {})
        looks = await log.heard("QueueScanned", found=1, count=count)
        slept_since = looks[-1]["at"]
    await until(lambda: states(database), {"completed": 5})

    found = of(await scraped(await address(worker, log)), "job_poll_scanned_total").get("", 0)
    assert found == sum(line["found"] for line in looks if not line["woken"])
    assert found == 5 if notify == "off" else found < 5
