"""What people may do with runs: cancel them, and send them on again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostinato import App, Fatal, InvalidOption, Retry, Run, RunCancelled, RunFailed
from ostinato.errors import IllegalMove, KeyTaken, UnknownRun
from ostinato.telemetry import RunCancelled as AttemptCancelled
from ostinato.telemetry import RunClaimed, RunCompleted
from ostinato.telemetry import RunFailed as AttemptFailed
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import states

# --- cancelling


@pytest.mark.parametrize("delay", [None, "1h"])
async def test_a_run_that_waits_is_cancelled_at_once(app: App, delay: str | None):
    """Ready or held, with the reason; it never starts."""
    started: list[str] = []

    @app.function
    async def work(run: Run):
        started.append(run.id)

    handle = await work.options(delay=delay).enqueue()
    assert await handle.cancel("changed my mind")
    with pytest.raises(RunCancelled, match=f"^run {handle.id} was cancelled: changed my mind$"):
        await handle.result(5)
    async with app.worker():
        await (await work.enqueue()).result(5)
    assert handle.id not in started
    view = await app.runs.get(handle.id)
    assert (view.state, view.reason, view.attempt) == ("cancelled", None, 0)
    assert view.ended_at is not None


async def test_one_id_is_a_run_and_not_its_letters(app: App):
    """`app.runs.cancel` takes one, or several."""

    @app.function
    async def greet(): ...

    handle = await greet.enqueue()
    assert await app.runs.cancel(handle.id) == [handle.id]
    assert (await app.runs.get(handle.id)).state == "cancelled"


async def test_a_running_handler_is_cancelled_and_can_see_why(app: App, probe: Probe):
    """Its cleanup runs, and the run ends as cancelled."""
    started, seen = asyncio.Event(), list[Any]()

    @app.function
    async def work(run: Run):
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(run.stopping)

    async with app.worker():
        handle = await work.enqueue()
        await started.wait()
        assert await handle.cancel()
        await probe.next(AttemptCancelled, run_id=handle.id)
        with pytest.raises(RunCancelled):
            await handle.result(5)
    assert seen == ["cancel"]
    assert await states(app) == {"cancelled": 1}


async def test_the_reason_for_cancelling_a_running_run_is_kept(app: App, probe: Probe):
    """For whoever waits, for people, and in what is announced."""
    started = asyncio.Event()

    @app.function
    async def work():
        started.set()
        await asyncio.Event().wait()

    async with app.worker():
        handle = await work.enqueue()
        await started.wait()
        await handle.cancel("customer left")
        cancelled = await probe.next(AttemptCancelled, run_id=handle.id)
        with pytest.raises(RunCancelled, match="customer left"):
            await handle.result(5)
    assert cancelled.reason == "customer left"


async def test_cancelling_what_has_ended_does_nothing(app: App):
    """And says so."""

    @app.function
    async def work() -> int:
        return 1

    async with app.worker():
        handle = await work.enqueue()
        await handle.result(5)
        assert not await handle.cancel()
    assert (await handle.status(), await handle.result(5)) == ("completed", 1)


async def test_cancelling_again_says_that_it_has_not_ended_yet(app: App):
    """`cancel` is False only for a run that has ended."""
    started, go = asyncio.Event(), asyncio.Event()

    @app.function
    async def stubborn():
        started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with app.worker():
        handle = await stubborn.enqueue()
        await started.wait()
        first, second = await handle.cancel(), await handle.cancel()
        go.set()
    assert (first, second) == (True, True)


async def test_a_handler_that_swallows_its_cancellation_is_cancelled_when_it_returns(app: App):
    """The flag came first: its result does not count."""
    started, stopped = asyncio.Event(), asyncio.Event()

    @app.function
    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
        return "done anyway"

    async with app.worker():
        handle = await stubborn.enqueue()
        await started.wait()
        await handle.cancel("enough")
        await stopped.wait()
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result(5)


async def test_a_handler_that_ignores_its_cancellation_does_not_outlive_its_timeout(
    app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch
):
    """The run is settled without it."""
    started, go = asyncio.Event(), asyncio.Event()

    @app.function(timeout="300ms")
    async def stubborn():
        started.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with app.worker():
        monkeypatch.setattr("ostinato.engine.floor.UNRESPONSIVE_GRACE", 0.1)
        handle = await stubborn.enqueue()
        await started.wait()
        await handle.cancel()
        try:
            with pytest.raises(RunCancelled):
                await handle.result(1.5)
        finally:
            go.set()


async def test_many_are_cancelled_in_one_call(app: App):
    """Those that had not ended are named."""

    @app.function
    async def work(): ...

    handles = await work.enqueue_many([{}] * 5)
    await handles[0].cancel()
    ids = [handle.id for handle in handles]
    assert sorted(await app.runs.cancel([*ids, "no such run"])) == sorted(ids[1:])
    assert await states(app) == {"cancelled": 5}


async def test_a_cancelled_run_frees_its_key(app: App):
    """Another may take its place."""

    @app.function
    async def work(): ...

    first = await work.options(key="k").enqueue()
    await first.cancel()
    assert (await work.options(key="k").enqueue()).created


async def test_a_run_that_waits_for_its_retry_can_be_cancelled(app: App, probe: Probe):
    """It does not start again."""

    @app.function(retry=Retry("1h"))
    async def flaky():
        raise ValueError

    async with app.worker():
        handle = await flaky.enqueue()
        await probe.next(AttemptFailed, run_id=handle.id)
        assert await handle.cancel()
    assert await handle.status() == "cancelled"
    assert len((await app.runs.get(handle.id)).attempts) == 1


@pytest.mark.parametrize(
    "reason",
    ["NUL \x00", "surrogate \ud800", "x" * 100_000],
    ids=["nul", "surrogate", "long"],
)
async def test_a_reason_that_cannot_be_stored_is_put_right_or_refused(app: App, reason: str):
    """By an error of ours, and not by the driver's; the same on both databases."""

    @app.function
    async def work(): ...

    handle = await work.enqueue()
    try:
        await handle.cancel(reason)
    except InvalidOption:
        return
    error = (await app.runs.get(handle.id)).error
    assert error is not None
    assert "\x00" not in error.message


async def test_cancelling_without_wake_ups_happens_with_the_next_renewal(make_app: MakeApp):
    """The flag is carried by renewals too."""
    started = asyncio.Event()
    async with make_app(notify=False, lease="1s") as app:

        @app.function
        async def work():
            started.set()
            await asyncio.Event().wait()

        async with app.worker():
            handle = await work.enqueue()
            await started.wait()
            await handle.cancel()
            with pytest.raises(RunCancelled):
                await handle.result(3)


# --- retrying


async def test_a_failed_run_goes_again_with_a_fresh_budget(app: App, probe: Probe):
    """Its earlier attempts stay readable."""
    broken = True

    @app.function(retry=Retry("0s"))
    async def work(run: Run) -> int:
        if broken:
            raise ValueError(f"attempt {run.attempt}")
        return run.attempt

    async with app.worker():
        handle = await work.enqueue()
        with pytest.raises(RunFailed):
            await handle.result(5)
        broken = False
        again = await app.runs.retry(handle.id)
        assert again.id == handle.id
        assert await again.result(5) == 1
    view = await app.runs.get(handle.id)
    assert (view.state, view.attempt, view.lease_no, view.error) == ("completed", 1, 3, None)
    assert [kept.message for kept in view.attempts] == ["attempt 1", "attempt 2"]


async def test_a_retried_run_may_fail_as_often_as_a_new_one(app: App):
    """All of its attempts are there again."""
    started: list[int] = []

    @app.function(retry=Retry("0s"))
    async def work(run: Run):
        started.append(run.attempt)
        raise ValueError

    async with app.worker():
        handle = await work.enqueue()
        with pytest.raises(RunFailed):
            await handle.result(5)
        await app.runs.retry(handle.id)
        with pytest.raises(RunFailed):
            await handle.result(5)
    assert started == [1, 2, 1, 2]
    assert len((await app.runs.get(handle.id)).attempts) == 4


async def test_a_cancelled_run_goes_again(app: App):
    """Somebody changed their mind once more."""

    @app.function
    async def work() -> str:
        return "done"

    handle = await work.enqueue()
    await handle.cancel()
    await app.runs.retry(handle.id)
    view = await app.runs.get(handle.id)
    assert (view.state, view.cancel_requested, view.ended_at) == ("ready", False, None)
    async with app.worker():
        assert await handle.result(5) == "done"


async def test_a_retry_wakes_a_worker_that_sleeps(make_app: MakeApp):
    """It does not wait for the poll."""
    async with make_app(poll="30s") as app:

        @app.function
        async def work() -> str:
            return "done"

        handle = await work.enqueue()
        await handle.cancel()
        with Probe(app.telemetry) as probe:
            async with app.worker():
                await (await work.enqueue()).result(5)
                await app.runs.retry(handle.id)
                await probe.next(RunCompleted, run_id=handle.id, timeout=3)


async def test_many_are_retried_in_one_call(app: App):
    """Those that go again are named, the others are left as they are."""

    @app.function
    async def work(fail: bool):
        if fail:
            raise Fatal("no")

    async with app.worker():
        failed = await work.enqueue_many([{"fail": True}] * 3)
        completed = await work.enqueue(fail=False)
        await completed.result(5)
        for handle in failed:
            with pytest.raises(RunFailed):
                await handle.result(5)
    ids = [handle.id for handle in failed]
    assert sorted(await app.runs.retry_many([*ids, completed.id, "no such run"])) == sorted(ids)
    assert await states(app) == {"ready": 3, "completed": 1}


async def test_a_run_in_another_state_cannot_be_retried(app: App):
    """The error names the run, its state, and which can be."""

    @app.function
    async def work(): ...

    handle = await work.enqueue()
    with pytest.raises(IllegalMove, match=f"^run {handle.id} is ready; only failed and cancelled runs can be retried$"):
        await app.runs.retry(handle.id)
    with pytest.raises(UnknownRun, match="no run has the id 'nope'; it may have been removed by retention"):
        await app.runs.retry("nope")


async def test_a_run_whose_key_is_taken_cannot_be_retried(app: App):
    """The error names the function and the key; once it is free, it can."""

    @app.function
    async def work(): ...

    first = await work.options(key="album-1").enqueue()
    await first.cancel()
    second = await work.options(key="album-1").enqueue()
    with pytest.raises(KeyTaken, match=f"run {first.id} cannot go again: another run of 'work' holds its key"):
        await app.runs.retry(first.id)
    assert await first.status() == "cancelled"
    await second.cancel()
    await app.runs.retry(first.id)
    assert await first.status() == "pending"
    assert not (await work.options(key="album-1").enqueue()).created


async def test_of_two_with_the_same_key_one_is_retried(app: App):
    """The key is held once."""

    @app.function
    async def work(): ...

    ids = []
    for _ in range(2):
        handle = await work.options(key="k").enqueue()
        await handle.cancel()
        ids.append(handle.id)
    assert len(await app.runs.retry_many(ids)) == 1
    assert await states(app) == {"ready": 1, "cancelled": 1}


async def test_a_run_cancelled_while_it_is_claimed_ends_as_cancelled(app: App, probe: Probe):
    """Whatever comes first, there is one end."""

    @app.function
    async def work(): ...

    async with app.worker():
        handles = await work.enqueue_many([{}] * 50)
        await app.runs.cancel([handle.id for handle in handles])
        for handle in handles:
            try:
                await handle.result(5)
            except RunCancelled:
                continue
    found = await states(app)
    assert found.get("completed", 0) + found.get("cancelled", 0) == 50
    assert len({event.run_id for event in probe.seen(RunClaimed)}) <= 50
