"""Queues that people pause, resume and purge while workers are at work."""

from __future__ import annotations

import asyncio

import pytest

from ostinato import App, ConfigError, Queue, Retry
from ostinato.errors import UnknownQueue
from ostinato.model.view import Overview
from ostinato.telemetry import QueueAsleep, QueueScanned, RunFailed
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, states

SOON = 5.0
"""Seconds within which a worker that was woken has done its work; it would poll after thirty."""


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_a_paused_queue_starts_nothing_until_it_is_resumed(
    app: App, probe: Probe, make_app: MakeApp, elsewhere: bool
):
    """And then at once: a worker that sleeps is woken, whoever resumes it."""

    @app.function
    async def work() -> int:
        return 1

    operator = make_app() if elsewhere else app
    async with app.worker():
        await probe.next(QueueAsleep, queue="default")
        assert await operator.queues.pause("default")
        with Probe(app.telemetry) as from_now_on:
            handle = await work.enqueue()
            await from_now_on.next(QueueScanned, queue="default", found=0)
            await from_now_on.next(QueueAsleep, queue="default")
        view = await app.runs.get(handle.id)
        assert (view.state, view.status, view.held_because) == ("ready", "pending", "paused")
        assert await operator.queues.resume("default")
        assert await handle.result(SOON) == 1


async def test_no_wake_up_is_lost_between_pausing_and_resuming(app: App):
    """Whether the worker is just falling asleep, or looking."""

    @app.function
    async def work(): ...

    async with app.worker():
        for turn in range(40):
            await app.queues.pause("default")
            handle = await work.enqueue()
            for _ in range(turn % 5):
                await app.queues.get("default")
            await app.queues.resume("default")
            await handle.result(SOON)


async def test_what_runs_goes_on(app: App):
    """Pausing stops starts, not runs; other queues are not concerned."""
    started, go = asyncio.Event(), asyncio.Event()

    @app.function
    async def work() -> str:
        started.set()
        await go.wait()
        return "done"

    async with app.worker():
        handle = await work.enqueue()
        await started.wait()
        await app.queues.pause("default")
        go.set()
        assert await handle.result(SOON) == "done"


async def test_a_retry_waits_too(make_app: MakeApp):
    """A run that is due again while its queue is paused goes on after it; other queues are not concerned."""
    app, attempts = make_app(queues={"default": 1, "other": 1}), list[int]()

    @app.function(retry=Retry("0s"))
    async def work():
        attempts.append(1)
        if len(attempts) == 1:
            await app.queues.pause("default")
            raise ValueError("once")

    with Probe(app.telemetry) as probe:
        async with app, app.worker():
            handle = await work.enqueue()
            await probe.next(RunFailed, run_id=handle.id, will_retry=True)
            await (await work.options(queue="other").enqueue()).result(SOON)
            assert len(attempts) == 2
            assert await app.queues.resume("default")
            await handle.result(SOON)


async def test_a_worker_that_starts_leaves_a_queue_paused(make_app: MakeApp):
    """What the operator decided outlives restarts; what the app declares is written all the same."""
    async with make_app(queues={"default": Queue(5, max_waiting=100)}) as app:

        @app.function
        async def work(): ...

        await app.queues.pause("default")
        handle = await work.enqueue()
        with Probe(app.telemetry) as probe:
            async with app.worker():
                await probe.next(QueueAsleep, queue="default")
                queue = await app.queues.get("default")
        assert (queue.paused, queue.max_waiting, queue.ready, queue.slots) == (True, 100, 1, 5)
        assert await handle.status() == "pending"


async def test_queues_are_listed(make_app: MakeApp):
    """Those of the workers, functions and runs, with what they hold."""
    async with make_app(queues={"default": 4}) as app:

        @app.function(queue="mail")
        async def send(): ...

        await send.enqueue_many([{}] * 3)
        await send.options(delay="1h").enqueue()
        async with app.worker():
            found = {queue.name: queue for queue in await app.queues.list()}
    assert list(found) == ["default", "mail"]
    assert (found["default"].slots, found["default"].workers, found["default"].ready) == (4, 1, 0)
    mail = found["mail"]
    assert (mail.ready, mail.held, mail.running, mail.slots, mail.paused) == (3, 1, 0, 0, False)
    assert mail.longest_wait is not None


# --- names


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "purge"])
async def test_a_mistyped_name_is_refused(app: App, verb: str, database: Database):
    """With a guess, and without making a queue of it."""

    @app.function(queue="mail")
    async def send(): ...

    with pytest.raises(UnknownQueue, match=r"^no queue is named 'mial'; did you mean 'mail'\?$"):
        await getattr(app.queues, verb)("mial")
    with pytest.raises(
        UnknownQueue, match=r"^no queue is named 'elsewhere'; a queue is known once a worker, a function"
    ):
        await getattr(app.queues, verb)("elsewhere")
    with pytest.raises(ConfigError, match="must be a name of 1 to 100 printable characters"):
        await getattr(app.queues, verb)("a,b")
    assert database.query("select name from ostinato_queues") == []


async def test_a_queue_can_be_paused_before_anybody_uses_it(app: App, make_app: MakeApp):
    """What the app declares is known at once; of other names one says so."""

    @app.function(queue="mail")
    async def send(): ...

    assert await app.queues.pause("mail")
    assert await app.queues.pause("later", create=True)
    async with make_app() as another:
        assert [(queue.name, queue.paused) for queue in await another.queues.list()] == [
            ("later", True),
            ("mail", True),
        ]
        assert await another.queues.resume("later")


# --- purging


async def test_a_queue_is_purged_of_what_has_ended(app: App):
    """Not of what waits, unless it is named, and never of another queue's."""

    @app.function
    async def work(): ...

    async with app.worker():
        for handle in await work.enqueue_many([{}] * 3):
            await handle.result(10)
    await app.queues.pause("default")
    await work.enqueue_many([{}] * 2)
    await work.options(queue="elsewhere").enqueue()

    preview = await app.queues.purge("default", dry_run=True)
    assert (preview.count, preview.dry_run, len(preview.sample)) == (3, True, 3)
    assert await states(app) == {"completed": 3, "ready": 3}
    assert (await app.queues.purge("default", older_than="1h")).count == 0
    assert (await app.queues.purge("default")).count == 3
    assert await states(app) == {"ready": 3}
    assert (await app.queues.purge("default", state="ready")).count == 2
    assert await states(app) == {"ready": 1}


# --- at a glance


async def test_an_overview_counts_what_ended_since_the_last(app: App):
    """Every run once, from one to the next."""

    @app.function(retry=Retry.none())
    async def work(fail: bool = False):
        if fail:
            raise ValueError("no")

    def ended(overview: Overview) -> dict[tuple[str, str], int]:
        return {(each.queue, each.state.value): each.count for each in overview.ended}

    before = await app.queues.overview()
    async with app.worker():
        for handle in await work.enqueue_many([{}] * 3 + [{"fail": True}] * 2):
            await asyncio.wait([asyncio.create_task(handle.result(10))])
        first = await app.queues.overview(since=before.until)
        await (await work.enqueue()).result(10)
        second = await app.queues.overview(since=first.until)
        third = await app.queues.overview(since=second.until)
    assert ended(first) == {("default", "completed"): 3, ("default", "failed"): 2}
    assert (before.seconds, before.ended, first.since) == (10.0, [], before.until)
    assert (ended(second), ended(third)) == ({("default", "completed"): 1}, {})
    assert [failure.function for failure in third.failures] == ["work", "work"]
    assert [worker.alive for worker in third.workers] == [True]
    assert [queue.name for queue in third.queues] == ["default"]
