"""Runs that do not start, or do not end, in time."""

from __future__ import annotations

import asyncio

import pytest

from ostinato import App, Run, RunCancelled
from ostinato.model.run import State
from ostinato.testing import Clock, Drain
from tests.engine.conftest import MakeApp


async def code_of(app: App, run_id: str) -> str | None:
    error = (await app.runs.get(run_id)).error
    return None if error is None else error.code


async def test_a_run_that_is_not_started_in_time_is_cancelled(app: App, drain: Drain, clock: Clock):
    """So long after it was due, and not before; one that has started has time."""

    @app.function(start_timeout="10m")
    async def work(run: Run) -> None:
        await run.sleep("nap", "1h")

    started = await work.enqueue()
    await drain()
    late = await work.options(queue="nobody").enqueue()
    delayed = await work.options(queue="nobody", delay="1h").enqueue()
    await app.queues.pause("nobody")
    await drain(until="9m")
    assert "pending" == await late.status()
    await drain(until="2m")

    assert ("waiting", "cancelled", "pending") == (
        await started.status(),
        await late.status(),
        await delayed.status(),
    )
    assert "start_timeout" == await code_of(app, late.id)
    with pytest.raises(RunCancelled, match="it had not started in time"):
        await late.result(1)


async def test_a_run_that_sleeps_past_its_time_is_cancelled(app: App, drain: Drain):
    """And so is what it waits for."""

    @app.function
    async def child(run: Run) -> None:
        await run.sleep("long", "2d")

    @app.function(finish_timeout="1d")
    async def parent(run: Run) -> None:
        await run.invoke("child", child)

    handle = await parent.enqueue()
    await drain(until="23h")
    assert "waiting" == await handle.status()
    await drain(until="2h")

    assert ("cancelled", "finish_timeout") == (await handle.status(), await code_of(app, handle.id))
    (waited_for,) = await app.runs.list(function="child")
    assert (State.CANCELLED, "cancelled") == (waited_for.state, await code_of(app, waited_for.id))


async def test_a_handler_that_runs_past_its_time_is_stopped(app: App):
    """As by somebody who cancels it, within about a second; the run says why."""
    seen: list[object] = []

    @app.function(finish_timeout="200ms", lifecycle=("cancelled",))
    async def work(run: Run) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(run.stopping)

    async with app.worker():
        handle = await work.enqueue()
        with pytest.raises(RunCancelled) as error:
            await handle.result(5)
    view = await app.runs.get(handle.id)
    assert ("finish_timeout", ["cancel"]) == (error.value.code, seen)
    assert view.ended_at is not None
    assert (view.ended_at - view.run_at).total_seconds() < 2
    (event,) = await app.events.recent(on="run.cancelled")
    assert "finish_timeout" == event.payload["error"]["code"]


async def test_who_does_not_know_the_function_gives_its_runs_the_same_time(make_app: MakeApp, clock: Clock):
    """By name, with a queue and without; and a function without timeouts has none."""
    async with make_app() as app:

        @app.function(start_timeout="10m")
        async def work() -> None: ...

        @app.function
        async def patient() -> None: ...

        await Drain(app)()
    async with make_app() as stranger:
        late = [await stranger.enqueue("work"), await stranger.enqueue("work", queue="nobody")]
        late += await stranger.enqueue_many("work", [{}, {}], queue="nobody")
        waiting = await stranger.enqueue("patient", queue="nobody")
        clock.advance("11m")
        async with stranger._site.store() as store:
            assert {handle.id for handle in late} == {each.id for each in await store.end_overdue(10)}
        assert "pending" == await waiting.status()
