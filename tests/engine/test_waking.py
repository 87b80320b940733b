"""Wake-ups and polls: notifications are only hints."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable

import pytest

import ostinato.app
from ostinato import App
from ostinato.store.ports import Rung, RunsEnded
from ostinato.store.postgres.listener import PostgresListener
from ostinato.store.sqlite.watch import Watch
from ostinato.telemetry import NotificationReceived, QueueAsleep, QueueScanned, RunCompleted
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database


async def test_without_notifications_work_is_found_by_polling(make_app: MakeApp):
    """Within the poll interval."""
    async with make_app(notify=False, poll="50ms") as app:

        @app.function
        async def work() -> str:
            return "done"

        with Probe(app.telemetry) as probe:
            async with app.worker():
                await probe.next(QueueAsleep)
                handle = await work.enqueue()
                await probe.next(RunCompleted, run_id=handle.id, timeout=3)
                assert await handle.result(5) == "done"
        assert probe.seen(NotificationReceived) == []


async def test_nobody_wakes_a_worker_that_polls(make_app: MakeApp):
    """From its first look on: what it finds counts as found by polling."""
    async with make_app(notify=False, poll="20ms") as app:
        with Probe(app.telemetry) as probe:
            async with app.worker():
                for _ in range(6):
                    assert not (await probe.next(QueueScanned)).woken


async def test_a_worker_that_sleeps_is_woken(make_app: MakeApp):
    """By an enqueue of another app, long before the poll."""
    async with make_app(poll="30s") as there, make_app() as here:

        @there.function
        async def work(): ...

        with Probe(there.telemetry) as probe:
            async with there.worker():
                await probe.next(QueueAsleep)
                for _ in range(20):
                    began = time.monotonic()
                    handle = await here.enqueue("work")
                    await probe.next(RunCompleted, run_id=handle.id)
                    assert time.monotonic() - began < 2


async def test_a_worker_that_sleeps_is_woken_for_a_run_that_becomes_due(make_app: MakeApp):
    """By its own scheduler."""
    async with make_app(poll="30s") as app:

        @app.function
        async def work(): ...

        with Probe(app.telemetry) as probe:
            async with app.worker():
                await probe.next(QueueAsleep)
                handle = await work.options(delay="200ms").enqueue()
                await probe.next(RunCompleted, run_id=handle.id, timeout=5)


async def test_an_idle_worker_is_quiet(make_app: MakeApp):
    """It sleeps, and does not keep asking."""
    async with make_app(poll="30s") as app:
        with Probe(app.telemetry) as probe:
            async with app.worker():
                await probe.next(QueueAsleep)
                await asyncio.sleep(0.2)  # the listener's first word wakes it once more
                before = len(probe.seen(QueueScanned))
                await asyncio.sleep(0.5)
                assert len(probe.seen(QueueScanned)) - before <= 2


async def test_the_youngest_open_transaction_counts_too(postgres_database: Database):
    """A sleeper may not rest before it has ended: its commit comes without a signal."""
    store = ostinato.app.make_store(App(postgres_database.url).settings)
    listening = asyncio.Event()
    listener = store.listener(lambda signal: listening.set())
    await listener.start()
    await listening.wait()
    try:
        async with store.begin() as transaction:
            await transaction.execute("insert into notes (text) values ($1)", "open")
            assert not await listener.arm("q:default")
            await transaction.commit()
        async with asyncio.timeout(5):
            quiet = False
            while not quiet:
                quiet = await listener.arm("q:default")
    finally:
        await listener.stop()
        await store.close()


class Ear:
    """A listener that writes down what it hears."""

    armed = True

    def __init__(self) -> None:
        self.heard: list[type[object]] = []

    def hear(self, signals: Iterable[object]) -> None:
        self.heard.extend(type(signal) for signal in signals)


@pytest.mark.parametrize("others", [["settle_runs"], ["insert_runs", "complete_runs"], ["complete_runs", "retry_runs"]])
def test_one_commit_may_tell_several_things(others: list[str]):
    """On SQLite runs become ready and runs end in one commit; who sleeps on the one is not forgotten for the other."""
    watch, ear = Watch(), Ear()
    watch.add(ear)
    watch.executed.update(others)
    watch.committed(changed=True)
    assert {Rung, RunsEnded} <= set(ear.heard)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio.wait_for of 3.11 may swallow a cancellation")
async def test_a_listener_can_be_stopped_at_any_moment(postgres_database: Database):
    """Even when the answer to its probe comes in the same instant."""
    store = ostinato.app.make_store(App(postgres_database.url).settings)
    listener = store.listener(lambda signal: None)
    assert isinstance(listener, PostgresListener)
    probing = asyncio.Event()

    async def send_nothing(token: str) -> None:
        probing.set()

    listener._send_probe = send_nothing
    await listener.start()
    await probing.wait()
    await asyncio.sleep(0)
    assert listener._probed is not None
    listener._probed.set_result(None)
    stopping = asyncio.create_task(listener.stop())
    ended, _ = await asyncio.wait([stopping], timeout=2)
    if not ended and listener._task is not None:
        listener._task.cancel()
        await stopping
    await store.close()
    assert ended
