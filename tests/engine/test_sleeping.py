"""Runs that sleep, and what happens to a function whose run is left to wait."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ostinato import App, Retry, Run, RunCancelled, RunFailed
from ostinato.engine.steps import suspending
from ostinato.errors import InvalidOption
from ostinato.telemetry import RunClaimed, RunSuspended
from ostinato.testing import Clock, Drain, Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database
from tests.engine.test_steps import steps_of

ONCE = Retry.none()


class Notes(list[str]):
    """What steps have left."""

    async def note(self, text: str) -> str:
        self.append(text)
        return text


# --- sleeping


async def test_a_run_sleeps_by_the_databases_clock(
    app: App, clock: Clock, drain: Drain, probe: Probe, database: Database
):
    """Held, without a slot; and goes on when its time has come, with the attempt that it had."""
    attempts: list[int] = []

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        attempts.append(run.attempt)
        await run.sleep("nap", "1h")
        return "awake"

    handle = await mix.enqueue()
    await drain()
    view = await app.runs.get(handle.id)
    assert (view.state, view.reason, view.attempt) == ("held", "sleep", 0)
    assert [event.reason for event in probe.seen(RunSuspended)] == ["sleep"]
    assert steps_of(database, handle.id) == [("nap", "sleep", "pending", 0)]
    clock.advance("59m")
    await drain()
    assert (await app.runs.get(handle.id)).state == "held"
    clock.advance("61s")
    await drain()
    assert (await app.runs.get(handle.id)).output == "awake"
    assert attempts == [1, 1]
    assert steps_of(database, handle.id) == [("nap", "sleep", "completed", 0)]


async def test_many_short_sleeps_use_no_attempts(app: App):
    """Not even of a function that has only one."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> int:
        for _ in range(5):
            await run.sleep("nap", "1ms")
        return run.lease_no

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == 6
        assert (await app.runs.get(handle.id)).attempt == 1


async def test_a_sleep_of_nothing_is_over_at_once(app: App, probe: Probe):
    """And so is one until a moment that has passed."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> int:
        await run.sleep("nothing", 0)
        await run.sleep_until("past", datetime.now(UTC) - timedelta(days=1))
        return run.lease_no

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == 1
    assert probe.seen(RunSuspended) == []


async def test_a_run_sleeps_until_a_moment(app: App, clock: Clock, drain: Drain):
    """Which is decided once, whatever the function says the next time."""
    moments: list[datetime] = []

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        moments.append(datetime.now(UTC) + timedelta(hours=len(moments) + 1))
        await run.sleep_until("noon", moments[-1])
        return "awake"

    handle = await mix.enqueue()
    await drain()
    held = await app.runs.get(handle.id)
    assert held.run_at is not None
    assert abs(held.run_at - moments[0]) < timedelta(seconds=5)
    clock.advance("61m")
    await drain()
    assert (await app.runs.get(handle.id)).output == "awake"
    assert len(moments) == 2


async def test_a_year_is_the_longest_sleep(app: App, probe: Probe):
    """What is longer, or no moment at all, is refused."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        with pytest.raises(InvalidOption, match="is longer than a year"):
            await run.sleep("nap", "367d")
        with pytest.raises(InvalidOption, match="longer than a year"):
            await run.sleep_until("nap", datetime.now(UTC) + timedelta(days=400))
        with pytest.raises(InvalidOption, match="time zone"):
            await run.sleep_until("nap", datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidOption):
            await run.sleep("nap", "-1s")
        await run.sleep("nap", "366d")

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        held = await app.runs.get(handle.id)
        assert held.run_at is not None
        assert held.run_at - datetime.now(UTC) > timedelta(days=365)


async def test_a_sleeping_run_can_be_cancelled(app: App, probe: Probe):
    """At once."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        await run.sleep("nap", "1h")

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await handle.cancel("not wanted")
        with pytest.raises(RunCancelled, match="not wanted"):
            await handle.result(10)


async def test_a_key_tells_sleeps_of_one_name_apart(app: App):
    """In whatever order they come."""
    woken = Notes()

    @app.function(retry=ONCE)
    async def mix(run: Run) -> list[str]:
        async def nap(name: str, how_long: str) -> None:
            await run.options(key=name).sleep("nap", how_long)
            await run.step("woken", woken.note, name)

        naps = [("short", "30ms"), ("long", "300ms")]
        await asyncio.gather(*[nap(*each) for each in (naps if run.lease_no % 2 else naps[::-1])])
        return woken

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == ["short", "long"]


async def test_what_a_function_does_not_wait_for_any_more_does_not_wake_it(app: App, probe: Probe):
    """The loser of a race is left behind; its time is nobody's."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        short, long = asyncio.create_task(run.sleep("short", "30ms")), asyncio.create_task(run.sleep("long", "10m"))
        await asyncio.wait([short, long], return_when=asyncio.FIRST_COMPLETED)
        long.cancel()
        await asyncio.gather(run.sleep("night", "1h"), run.sleep("day", "2h"))

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await probe.next(RunSuspended, run_id=handle.id)
        held = await app.runs.get(handle.id)
        assert held.run_at is not None
        assert held.run_at - datetime.now(UTC) > timedelta(minutes=50)


# --- being left


async def test_cleanup_runs_when_a_function_is_left(app: App):
    """`finally` and `async with` do; `except Exception` sees nothing."""
    seen: list[str] = []

    @app.function(retry=ONCE)
    async def mix(run: Run):
        try:
            await run.sleep("nap", "20ms")
        except Exception:
            seen.append("except")
        finally:
            await asyncio.sleep(0)
            seen.append("finally")

    async with app.worker():
        await (await mix.enqueue()).result(10)
    assert seen == ["finally", "finally"]


async def test_a_function_that_swallows_being_left_is_left_all_the_same(app: App, database: Database):
    """Whatever it does or returns after that is nobody's: it is called again."""
    calls = Notes()

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        try:
            await run.sleep("nap", "50ms")
        except BaseException:
            try:
                await run.step("after", calls.note, "after")
            except BaseException:
                return "swallowed"
        return await run.step("then", calls.note, "then")

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == "then"
    assert calls == ["then"]
    assert [row[0] for row in steps_of(database, handle.id)] == ["nap", "then"]


async def test_a_function_that_fails_while_it_is_left_has_not_failed(app: App):
    """An exception in `finally` is no failure of the attempt."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        try:
            await run.sleep("nap", "20ms")
        finally:
            if run.lease_no == 1:
                raise KeyError("in cleanup")
        return "awake"

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == "awake"


async def _in_task_group(run: Run) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(run.sleep("nap", "20ms"))
        group.create_task(run.sleep("other", "30ms"))


async def _in_wait_for(run: Run) -> None:
    await asyncio.wait_for(run.sleep("nap", "20ms"), 60)


async def _in_timeout(run: Run) -> None:
    async with asyncio.timeout(60):
        await run.sleep("nap", "20ms")


async def _shielded(run: Run) -> None:
    await asyncio.shield(run.sleep("nap", "20ms"))


async def _gathered(run: Run) -> None:
    await asyncio.gather(run.sleep("nap", "20ms"), run.sleep("other", "30ms"), return_exceptions=True)


async def _nested(run: Run) -> None:
    async def inner() -> None:
        await asyncio.gather(run.sleep("nap", "20ms"), run.sleep("other", "30ms"))

    await asyncio.gather(inner(), run.sleep("third", "10ms"))


@pytest.mark.parametrize("how", [_in_task_group, _in_wait_for, _in_timeout, _shielded, _gathered, _nested])
async def test_a_function_may_wait_inside_of_whatever_asyncio_has(app: App, how: Any, caplog: pytest.LogCaptureFixture):
    """It is left, and called again; and nobody complains about tasks that nobody awaited."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        await how(run)
        return "awake"

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == "awake"
    gc.collect()
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text


# --- several at once


async def test_a_chain_beside_a_sleeping_sibling_is_carried_to_its_end(app: App, probe: Probe):
    """Also if it does something of its own between two steps."""
    done = Notes()

    @app.function(retry=ONCE)
    async def mix(run: Run):
        async def chain() -> None:
            for name in "abc":
                await run.step(name, done.note, name)
                await asyncio.sleep(0.06)

        await asyncio.gather(run.sleep("nap", "1h"), chain())

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
    assert done == ["a", "b", "c"]
    assert len(probe.seen(RunClaimed, run_id=handle.id)) == 1


async def test_a_task_beside_a_function_that_sleeps_itself_is_carried_on(app: App, probe: Probe):
    """At the first start, and when its run goes on from where it was."""
    done = Notes()

    @app.function(retry=ONCE)
    async def mix(run: Run):
        async def chain() -> None:
            await run.step("a", done.note, "a")
            await asyncio.sleep(0.03)
            await run.sleep("short", "30ms")
            await run.step("b", done.note, "b")
            await asyncio.sleep(0.03)
            await run.step("c", done.note, "c")

        task = asyncio.create_task(chain())
        await run.sleep("nap", "1h")
        await task

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await probe.next(RunSuspended, run_id=handle.id)
    assert done == ["a", "b", "c"]


async def test_a_task_that_was_just_made_is_carried_on(app: App, probe: Probe):
    """Its function waits at once, since it remembers all that it has done."""
    done, tries = Notes(), Notes()

    async def flaky() -> None:
        tries.append("try")
        if len(tries) == 1:
            raise ValueError("out of tune")

    @app.function(retry=Retry("30ms"))
    async def mix(run: Run):
        async def chain() -> None:
            await run.step("flaky", flaky)
            await run.step("a", done.note, "a")

        await run.step("first", done.note, "first")
        task = asyncio.create_task(chain())
        await run.sleep("nap", "1h")
        await task

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await probe.next(RunSuspended, run_id=handle.id)
    assert done == ["first", "a"]


async def test_a_function_that_works_on_beside_a_sleeping_task_is_carried_on(app: App, probe: Probe):
    """The other way round."""
    done = Notes()

    @app.function(retry=ONCE)
    async def mix(run: Run):
        task = asyncio.create_task(run.sleep("nap", "1h"))
        await asyncio.sleep(0)
        for name in "abc":
            await run.step(name, done.note, name)
            await asyncio.sleep(0.06)
        await task

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
    assert done == ["a", "b", "c"]


async def test_tasks_that_await_each_other_are_left_at_once(app: App, monkeypatch: pytest.MonkeyPatch):
    """Who awaits those who wait, however deep, is not taken to be busy."""
    monkeypatch.setattr(suspending, "PATIENCE", 60.0)
    done = Notes()

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        async def inner(name: str) -> None:
            await run.step("begin", done.note, name)
            await asyncio.gather(run.sleep(f"{name}1", "20ms"), run.sleep(f"{name}2", "30ms"))

        task = asyncio.create_task(inner("a"))
        await run.step("main", done.note, "main")
        await asyncio.gather(inner("b"), inner("c"))
        await task
        return "awake"

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == "awake"
    assert sorted(done) == ["a", "b", "c", "main"]


async def test_a_task_that_goes_on_after_its_run_was_left_does_nothing(app: App, probe: Probe, database: Database):
    """Its calls leave it, too; and when the run goes on, its own do."""
    done = Notes()
    over = asyncio.Event()
    orphans: list[asyncio.Task[None]] = []

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        async def orphan() -> None:
            await over.wait()
            await run.step("orphan", done.note, "orphan")

        orphans.append(asyncio.create_task(orphan()))
        await run.sleep("nap", "50ms")
        return "awake"

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        over.set()
        await asyncio.wait(orphans[:1])
        assert type(orphans[0].exception()).__name__ == "Suspending"
        assert await handle.result(10) == "awake"
        await asyncio.wait(orphans)
    assert "orphan" not in [row[0] for row in steps_of(database, handle.id)] or done == ["orphan"]


async def test_a_wait_that_the_function_gives_up_does_not_hold_it(app: App, probe: Probe):
    """Cancelled by the function itself while another step is in flight."""

    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "done"

    @app.function(retry=ONCE)
    async def mix(run: Run) -> str:
        nap = asyncio.create_task(run.sleep("nap", "1h"))
        found = await run.step("slow", slow)
        nap.cancel()
        return found

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == "done"
    assert probe.seen(RunSuspended) == []


# --- those who stop a handler


async def test_a_shutdown_while_a_run_sleeps_is_no_matter(make_app: MakeApp):
    """The next worker wakes it."""
    async with make_app() as app:

        @app.function(retry=ONCE)
        async def mix(run: Run) -> int:
            await run.sleep("nap", "300ms")
            return run.attempt

        with Probe(app.telemetry) as probe:
            async with app.worker():
                handle = await mix.enqueue()
                await probe.next(RunSuspended, run_id=handle.id)
        async with app.worker():
            assert await handle.result(10) == 1


async def test_a_run_is_not_late_because_it_slept(app: App):
    """A timeout is for what runs."""

    @app.function(retry=ONCE, timeout="250ms")
    async def mix(run: Run) -> str:
        await run.sleep("nap", "400ms")
        return "awake"

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == "awake"


async def test_a_run_that_fails_after_it_slept_counts_its_attempts_right(app: App):
    """Two attempts are two, however often it was woken."""
    attempts: list[int] = []

    @app.function(retry=Retry("0s"))
    async def mix(run: Run):
        await run.sleep("one", "10ms")
        await run.sleep("two", "10ms")
        attempts.append(run.attempt)
        raise ValueError("out of tune")

    async with app.worker():
        with pytest.raises(RunFailed, match="out of tune"):
            await (await mix.enqueue()).result(10)
    assert attempts == [1, 2]
