"""Ended runs are kept for a while, and no longer."""

from __future__ import annotations

import pytest

from ostinato import App, Cancel, Fatal, Retention
from ostinato.telemetry import RunsPruned
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, states


async def ended_runs(app: App, count: int) -> None:
    """Some runs in each state in which a run can end, and some that have not."""

    @app.function
    async def end(how: str):
        if how == "failed":
            raise Fatal("no")
        if how == "cancelled":
            raise Cancel("no")

    with Probe(app.telemetry):
        async with app.worker():
            for how in ("completed", "failed", "cancelled"):
                for handle in await end.enqueue_many([{"how": how}] * count):
                    try:
                        await handle.result(10)
                    except Exception:
                        continue
    await end.options(delay="1h").enqueue_many([{"how": "completed"}] * 2)
    await end.options(queue="elsewhere").enqueue_many([{"how": "completed"}] * 2)


async def test_what_was_kept_long_enough_is_removed_in_batches_by_state(
    make_app: MakeApp, database: Database, monkeypatch: pytest.MonkeyPatch
):
    """And the rest is kept, with what goes with it."""
    monkeypatch.setattr("ostinato.engine.pruner.BATCH", 10)
    monkeypatch.setattr("ostinato.engine.pruner.BETWEEN_BATCHES", 0.001)
    async with make_app(retention="forever") as app:
        await ended_runs(app, 25)
        assert await states(app) == {"completed": 25, "failed": 25, "cancelled": 25, "held": 2, "ready": 2}
    async with make_app(retention=Retention(completed=0.0, failed=3600.0, cancelled=None)) as app:
        with Probe(app.telemetry) as probe:
            async with app.worker():
                pruned = [await probe.next(RunsPruned) for _ in range(3)]
        assert {event.state for event in pruned} == {"completed"}
        assert [event.count for event in pruned] == [10, 10, 5]
        assert await states(app) == {"failed": 25, "cancelled": 25, "held": 2, "ready": 2}
    assert database.query("select count(*) from ostinato_attempts") == [(25,)]


async def test_attempts_go_with_their_run(make_app: MakeApp, database: Database):
    """Nothing is left behind."""
    async with make_app(retention="forever") as app:
        await ended_runs(app, 3)
    async with make_app(retention=0) as app:
        with Probe(app.telemetry) as probe:
            async with app.worker():
                for state in ("completed", "failed", "cancelled"):
                    assert (await probe.next(RunsPruned, state=state)).count == 3
    assert database.query("select count(*) from ostinato_attempts") == [(0,)]


async def test_a_key_outlives_its_run(make_app: MakeApp):
    """Retention frees no keys that hold for ever."""
    async with make_app(retention=0) as app:

        @app.function
        async def work(): ...

        with Probe(app.telemetry) as probe:
            first = await work.options(key="k", unique="forever").enqueue()
            await first.cancel()
            async with app.worker():
                await probe.next(RunsPruned)
            again = await work.options(key="k", unique="forever").enqueue()
    assert (again.created, again.id) == (False, first.id)


async def test_nothing_is_removed_by_default(make_app: MakeApp):
    """A week is longer than a test."""
    async with make_app() as app:
        await ended_runs(app, 2)
        async with app.worker():
            pass
        assert await states(app) == {"completed": 2, "failed": 2, "cancelled": 2, "held": 2, "ready": 2}
