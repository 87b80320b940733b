"""Handlers that are asked to stop: at shutdown, at their timeout, when somebody cancels their run."""

from __future__ import annotations

import time

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended, run_row, states, until
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew

LONG = "1h"
EXIT_OF_A_BLOCKED_PROCESS = 70


# --- shutdown -------------------------------------------------------------------------------------------------------


async def test_running_handlers_finish_within_the_grace_period(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """SIGTERM drains: what runs may finish, and nothing new is begun."""
    worker = await crew.start("stopping", shutdown_grace=LONG)
    begun = await app.enqueue("listen", {})
    [listening] = await log.heard("listening")
    await worker.asleep(since=listening["at"])

    worker.terminate()
    await until(lambda: database.query(f"select count(*) from {database.workers} where stopping"), [(1,)])
    late = await app.enqueue("listen", {})
    gates.open("go")

    assert await worker.exit_code() == 0
    assert run_row(database, begun.id, "state, attempt") == ("completed", 1)
    assert run_row(database, late.id, "state, attempt") == ("ready", 0)
    assert log.find("stopping") == []


@pytest.mark.parametrize("function", ["listen", "listen_in_a_thread", "ignore_everything"])
async def test_after_the_grace_period_everything_is_given_back(
    app: App, crew: Crew, database: Database, log: Log, function: str
):
    """The run is ready again and its attempt is returned, even when its handler does not stop."""
    worker = await crew.start("stopping", shutdown_grace="200ms")
    handle = await app.enqueue(function, {})
    await log.heard("listening")

    worker.terminate()

    assert await worker.exit_code() == 0
    assert run_row(database, handle.id, "state, attempt, worker") == ("ready", 0, None)
    expected = [] if function == "ignore_everything" else ["shutdown"]
    assert [line["why"] for line in log.find("stopping")] == expected


async def test_what_is_given_back_is_taken_at_once_by_another_worker(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """The other worker sleeps for 30 s, and is woken."""
    leaving = await crew.start("stopping", shutdown_grace="200ms")
    handle = await app.enqueue("listen", {})
    await log.heard("listening", pid=leaving.pid)
    staying = await crew.start("stopping")
    await staying.asleep()

    leaving.terminate()
    [stopped] = await log.heard("stopping", pid=leaving.pid)
    [taken] = await log.heard("listening", pid=staying.pid)
    gates.open("go")

    assert taken["at"] - stopped["at"] < 1.0
    assert taken["attempt"] == 1
    assert await handle.result(timeout=10) == "finished"
    assert run_row(database, handle.id, "attempt, lease_no") == (1, 2)


async def test_a_second_signal_gives_everything_back_now(app: App, crew: Crew, database: Database, log: Log):
    """The grace period would last an hour."""
    worker = await crew.start("stopping", shutdown_grace=LONG)
    handle = await app.enqueue("listen", {})
    await log.heard("listening")

    worker.terminate()
    await log.heard("WorkerStopping")
    worker.terminate()

    assert await worker.exit_code(timeout=5) == 0
    assert [line["why"] for line in log.find("stopping")] == ["shutdown"]
    assert run_row(database, handle.id, "state, attempt") == ("ready", 0)


async def test_signals_among_claims_lose_no_run(app: App, crew: Crew, database: Database, log: Log):
    """Workers are stopped as they claim: what they have claimed and not begun is given back, and none fails."""
    await app.enqueue_many("quick_once", [{}] * 300, queue="default")

    for _ in range(5):
        worker = await crew.start("stopping", queues="default:1", lease="1s")
        await log.heard("started once", pid=worker.pid)
        worker.terminate()
        assert await worker.exit_code() == 0
        assert states(database, "state not in ('ready', 'completed')") == {}

    await crew.start("stopping", lease="1s")
    await all_ended(database)
    assert states(database) == {"completed": 300}
    assert len(log.find("started once")) == 300


# --- telling apart --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["listen", "listen_in_a_thread"])
async def test_a_handler_knows_why_it_is_stopped(app: App, crew: Crew, database: Database, log: Log, function: str):
    """Shutdown, timeout and cancelling are three reasons, and lead to three states."""
    worker = await crew.start("stopping", shutdown_grace="100ms")
    late = await app.enqueue(function, {}, timeout="200ms")
    unwanted = await app.enqueue(function, {})
    unlucky = await app.enqueue(function, {})
    await log.heard("listening", count=3)

    await unwanted.cancel()
    await log.heard("stopping", run=unwanted.id)
    await log.heard("stopping", run=late.id)
    await until(lambda: states(database, "state = 'running'"), {"running": 1})
    worker.terminate()

    assert await worker.exit_code() == 0
    why = {line["run"]: line["why"] for line in log.find("stopping")}
    assert why == {late.id: "timeout", unwanted.id: "cancel", unlucky.id: "shutdown"}
    assert run_row(database, late.id, "state, attempt")[:2] == ("held", 1)
    assert run_row(database, unwanted.id, "state") == ("cancelled",)
    assert run_row(database, unlucky.id, "state, attempt") == ("ready", 0)


async def test_cancelling_reaches_a_running_handler_at_once(app: App, crew: Crew, database: Database, log: Log):
    """The worker is told, by the wake-up and not by the next renewal of its lease, which is 10 s away."""
    worker = await crew.start("stopping")
    await worker.asleep()
    handle = await app.enqueue("listen", {})
    await log.heard("listening")
    asked = time.monotonic()

    await handle.cancel()

    [stopped] = await log.heard("stopping", why="cancel")
    assert stopped["at"] - asked < 1.0
    await until(lambda: run_row(database, handle.id, "state"), ("cancelled",))


# --- timeouts -------------------------------------------------------------------------------------------------------


async def test_an_async_handler_is_ended_at_its_timeout(app: App, crew: Crew, database: Database, log: Log):
    """It is cancelled where it waits, and the attempt counts as failed."""
    await crew.start("stopping")
    began = time.monotonic()
    handle = await app.enqueue("listen", {}, timeout="300ms")

    [stopped] = await log.heard("stopping", why="timeout")

    assert 0.3 <= stopped["at"] - began < 2.0
    await until(lambda: run_row(database, handle.id, "state, attempt"), ("held", 1))


async def test_a_handler_that_swallows_its_cancellation_is_settled_without_it(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """Its run has failed while it still lingers; what it does later changes nothing."""
    await crew.start("stopping", faults=["impatient"])
    handle = await app.enqueue("linger", {})
    await log.heard("stopping", why="timeout")

    await until(lambda: run_row(database, handle.id, "state"), ("failed",))
    assert log.find("lingered") == []

    gates.open("go")
    await log.heard("lingered")
    await app.enqueue("quick", {})
    await until(lambda: states(database), {"failed": 1, "completed": 1})


async def test_a_handler_that_holds_the_event_loop_past_its_timeout_ends_its_process(
    app: App, crew: Crew, database: Database, log: Log
):
    """Nothing else could end it, and its run must go on: another worker has it next."""
    blocked = await crew.start("stopping", lease="1s", faults=["impatient"])
    handle = await app.enqueue("block", {})
    await log.heard("blocking", pid=blocked.pid)
    other = await crew.start("stopping", lease="1s")

    assert await blocked.exit_code() == EXIT_OF_A_BLOCKED_PROCESS

    await log.heard("blocking", pid=other.pid, lease_no=2)
    await until(lambda: run_row(database, handle.id, "state"), ("completed",))


async def test_a_timeout_at_the_moment_of_failing_loses_no_run(app: App, crew: Crew, database: Database):
    """Three hundred handlers raise as their time is up: whichever comes first, each run has failed."""
    await crew.start("stopping", queues="default:300")

    await app.enqueue_many("fail_in_time", [{"delay": 0.29 + 0.0001 * n} for n in range(300)])

    await all_ended(database, timeout=8)
    assert states(database) == {"failed": 300}
