"""Waiting for results."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

import pytest

from ostinato import App, Cancel, Fatal, ResultTimeout, Retry, RunCancelled, RunFailed
from ostinato.engine.wakeups import Wakeups
from ostinato.errors import RunEnded, UnknownRun
from ostinato.telemetry import RunCompleted
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp


async def test_a_result_that_does_not_come_in_time(app: App):
    """The error names the run and the time; the run goes on."""
    go = asyncio.Event()

    @app.function
    async def slow() -> str:
        await go.wait()
        return "done"

    async with app.worker():
        handle = await slow.enqueue()
        with pytest.raises(ResultTimeout, match=f"^run {handle.id} has not ended within 0.05 s; it goes on$"):
            await handle.result(0.05)
        with pytest.raises(TimeoutError):
            await handle.result(0.05)
        go.set()
        assert await handle.result(5) == "done"


async def test_a_failed_run_has_an_error_for_a_result(app: App):
    """With its code and message."""

    @app.function
    async def work():
        raise Fatal("no such album")

    async with app.worker():
        handle = await work.enqueue()
        with pytest.raises(RunFailed, match=f"^run {handle.id} failed: fatal: no such album$") as caught:
            await handle.result(5)
    assert (caught.value.run_id, caught.value.code) == (handle.id, "fatal")


async def test_a_cancelled_run_has_an_error_for_a_result(app: App):
    """Whoever waits is told at once."""

    @app.function
    async def work(): ...

    handle = await work.enqueue()
    waiting = asyncio.create_task(handle.result(5))
    await asyncio.sleep(0)
    await handle.cancel("not needed")
    with pytest.raises(RunCancelled, match="not needed") as caught:
        await waiting
    assert caught.value.run_id == handle.id


async def test_a_result_may_be_asked_for_again(app: App, probe: Probe):
    """And later, by anyone who knows the id."""

    @app.function
    async def work() -> dict[str, list[int]]:
        return {"a": [1]}

    async with app.worker():
        handle = await work.enqueue()
        await probe.next(RunCompleted, run_id=handle.id)
    for _ in range(2):
        assert await handle.result(5) == {"a": [1]}
    assert await app.runs.handle(handle.id).result(5) == {"a": [1]}


async def test_a_result_that_is_there_is_given_without_any_time_to_wait(app: App, probe: Probe):
    """`result(0)` is how to ask without waiting."""

    @app.function
    async def work() -> str:
        return "done"

    async with app.worker():
        handle = await work.enqueue()
        await probe.next(RunCompleted, run_id=handle.id)
        assert await handle.result(0) == "done"


async def test_nobody_waits_for_a_run_that_does_not_exist(app: App):
    """It is said at once, with or without a time limit."""
    for timeout in (0.2, None):
        with pytest.raises(UnknownRun, match="no run has the id 'nope'"):
            async with asyncio.timeout(1):
                await app.runs.handle("nope").result(timeout)


async def test_two_hundred_wait_at_once(app: App):
    """Through one listener."""

    @app.function
    async def work(n: int) -> int:
        return n

    async with app.worker():
        handles = await work.enqueue_many({"n": n} for n in range(200))
        results = await asyncio.gather(*(handle.result(10) for handle in handles))
    assert results == list(range(200))


async def test_many_wait_for_the_same_run(app: App):
    """All of them get it."""
    go = asyncio.Event()

    @app.function
    async def work() -> str:
        await go.wait()
        return "done"

    async with app.worker():
        handle = await work.enqueue()
        waiting = [asyncio.create_task(handle.result(5)) for _ in range(20)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        go.set()
        assert await asyncio.gather(*waiting[1:]) == ["done"] * 19


async def test_a_result_comes_from_a_worker_of_another_app(make_app: MakeApp):
    """As from another process, without opening anything first."""
    async with make_app() as there:

        @there.function
        async def work() -> str:
            return "done"

        here = make_app()
        async with there.worker():
            handle = await here.enqueue("work")
            assert await handle.result(5) == "done"


@pytest.mark.parametrize("error", [None, Fatal("no"), Cancel("no"), ValueError("no")], ids=repr)
async def test_a_result_comes_soon(app: App, error: Exception | None):
    """By a wake-up and not by the poll, time after time, however the run ends."""

    @app.function(retry=Retry("0s"))
    async def work():
        if error is not None:
            raise error

    async with app.worker():
        for _ in range(25):
            began = time.monotonic()
            with nullcontext() if error is None else pytest.raises(RunEnded):
                await (await work.enqueue()).result(5)
            assert time.monotonic() - began < 3


async def test_who_comes_while_the_listener_is_being_closed_is_served(app: App, monkeypatch: pytest.MonkeyPatch):
    """The one that closes does not see them, so another is opened."""
    monkeypatch.setattr("ostinato.engine.results.POLL", 0.05)
    monkeypatch.setattr("ostinato.engine.results.ARMED_FOR", 0.0)
    monkeypatch.setattr("ostinato.engine.results.KEPT_FOR", 0.0)
    closing, close, stop = asyncio.Event(), asyncio.Event(), Wakeups.stop
    gates = [asyncio.Event(), asyncio.Event()]

    async def stop_slowly(wakeups: Wakeups) -> None:
        closing.set()
        await close.wait()
        await stop(wakeups)

    @app.function
    async def work(n: int) -> int:
        await gates[n].wait()
        return n

    async with app.worker():
        first, second = await work.enqueue_many([{"n": 0}, {"n": 1}])
        with monkeypatch.context() as patched:
            patched.setattr(Wakeups, "stop", stop_slowly)
            waiting = asyncio.create_task(first.result(5))
            await asyncio.sleep(0.05)  # until it waits
            gates[0].set()
            assert await waiting == 0
            await asyncio.wait_for(closing.wait(), 5)
            waiting = asyncio.create_task(second.result(2))
            await asyncio.sleep(0.05)
            close.set()
        gates[1].set()
        assert await waiting == 1


async def test_closing_the_app_ends_who_still_waits(make_app: MakeApp):
    """Nobody is left hanging on a listener that is gone."""
    app = make_app()

    @app.function
    async def work(): ...

    async with app:
        handle = await work.enqueue()
        waiting = asyncio.create_task(handle.result(0.3))
        await asyncio.sleep(0.05)
    with pytest.raises(ResultTimeout):
        await asyncio.wait_for(waiting, 3)
