"""Steps that fail: their tries, what the run does meanwhile, and what their failure for good means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostinato import App, Fatal, Retry, RetryAfter, Run, RunFailed, StepFailed
from ostinato.errors import InvalidOption
from ostinato.telemetry import RunFailed as AttemptFailed
from ostinato.telemetry import RunSuspended, StepRetried
from ostinato.telemetry import StepFailed as StepFailedEvent
from ostinato.testing import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database
from tests.engine.test_steps import steps_of

ONCE = Retry.none()


class Flaky:
    """Fails a number of times."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.left, self.calls, self.error = times, 0, error or ValueError("out of tune")

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.left:
            raise self.error
        return self.calls


async def failing() -> None:
    raise ValueError("out of tune")


@pytest.mark.parametrize(("error", "calls"), [(Fatal("never"), 1), (ValueError("again"), 3)])
async def test_a_group_of_errors_means_what_the_decisive_one_means(app: App, error: Exception, calls: int):
    """As a TaskGroup inside of a step raises it."""
    seen = []

    async def inner() -> None:
        seen.append(1)
        raise error

    async def fetch() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(inner())

    @app.function(retry=Retry("0s", "0s"))
    async def work(run: Run) -> None:
        await run.step("fetch", fetch)

    async with app.worker():
        with pytest.raises(RunFailed):
            await (await work.enqueue()).result(10)
    assert calls == len(seen)


# --- trying again


async def test_a_step_is_tried_again_as_its_function_would_be(app: App, probe: Probe, database: Database):
    """The run's attempts are not used up by that: a resumed run has the attempt that it had."""
    flaky, attempts = Flaky(2), []

    @app.function(retry=Retry("10ms", "10ms"))
    async def mix(run: Run) -> int:
        attempts.append(run.attempt)
        return await run.step("flaky", flaky)

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == 3
        assert (await app.runs.get(handle.id)).attempt == 1
    assert attempts == [1, 1, 1]
    assert steps_of(database, handle.id) == [("flaky", "step", "completed", 2)]
    assert [event.retry_count for event in probe.seen(StepRetried)] == [1, 2]
    assert {event.reason for event in probe.seen(RunSuspended)} == {"step_retry"}
    assert probe.seen(AttemptFailed) == []


async def test_a_run_whose_step_waits_for_its_next_try_frees_its_slot(make_app: MakeApp, probe: Probe):
    """Others run meanwhile."""
    async with make_app(queues={"default": 1}) as app:
        flaky = Flaky(1)

        @app.function(retry=Retry("1h"))
        async def waits(run: Run):
            await run.step("flaky", flaky)

        @app.function
        async def quick() -> str:
            return "done"

        async with app.worker():
            held = await waits.enqueue()
            assert await (await quick.enqueue()).result(10) == "done"
            assert (await app.runs.get(held.id)).reason == "step_retry"


@pytest.mark.parametrize(
    ("retry", "error", "calls"),
    [
        (ONCE, ValueError("no"), 1),
        (Retry("0s"), ValueError("no"), 2),
        (Retry("0s", "0s"), Fatal("no"), 1),
        (Retry("0s", "0s").never(ValueError), ValueError("no"), 1),
        (Retry("1h", "1h"), RetryAfter("10ms", "no"), 3),
    ],
    ids=["none", "at once", "fatal", "never", "retry after"],
)
async def test_a_step_may_have_a_policy_of_its_own(app: App, retry: Retry, error: Exception, calls: int):
    """In place of its function's."""
    flaky = Flaky(9, error)

    @app.function(retry=Retry(*["0s"] * 5))
    async def mix(run: Run):
        await run.options(retry=retry).step("flaky", flaky)

    async with app.worker():
        handle = await mix.enqueue()
        with pytest.raises(RunFailed, match="step 'flaky' failed: no"):
            await handle.result(10)
        assert (await app.runs.get(handle.id)).attempt == 1
    assert flaky.calls == calls


async def test_tries_are_counted_across_attempts_and_workers(app: App, database: Database):
    """A run that is retried does not give its steps new tries."""
    flaky = Flaky(9)

    @app.function(retry=Retry(*["0s"] * 5))
    async def mix(run: Run):
        both = await asyncio.gather(
            run.options(retry=Retry("50ms", "50ms")).step("flaky", flaky), fails_twice(run), return_exceptions=True
        )
        for each in both:
            if isinstance(each, BaseException):
                raise each

    async def fails_twice(run: Run) -> None:
        if run.attempt < 3:
            await asyncio.sleep(0.01)
            raise KeyError("the run's own")

    async with app.worker():
        handle = await mix.enqueue()
        with pytest.raises(RunFailed, match="step 'flaky' failed: out of tune"):
            await handle.result(10)
    assert flaky.calls == 3
    assert steps_of(database, handle.id) == [("flaky", "step", "failed", 2)]


async def test_a_step_past_its_timeout_has_failed_once(app: App):
    """And is tried again like after any failure."""
    tries: list[int] = []

    async def slow() -> str:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "done"

    @app.function(retry=Retry("0s"))
    async def mix(run: Run) -> str:
        return await run.options(timeout="50ms").step("slow", slow)  # type: ignore[no-any-return]

    @app.function(retry=ONCE)
    async def blend(run: Run):
        await run.options(timeout="50ms").step("hang", asyncio.Event().wait)

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == "done"
        with pytest.raises(RunFailed, match=r"step 'hang' failed: step 'hang' ran longer than 0\.05 s"):
            await (await blend.enqueue()).result(10)


async def test_a_timeout_inside_a_step_is_its_own(app: App):
    """Only the step's deadline speaks of the step's."""

    async def inner() -> None:
        raise TimeoutError("the other side's")

    @app.function(retry=ONCE)
    async def mix(run: Run):
        await run.options(timeout="5s").step("call", inner)

    async with app.worker():
        with pytest.raises(RunFailed, match="step 'call' failed: the other side's"):
            await (await mix.enqueue()).result(10)


async def test_bad_options_are_refused(app: App):
    """With what they may be."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        for options, complaint in (
            ({"retries": 3}, "unknown option 'retries' of a step; options are key, retry, timeout, tx"),
            ({"retry": 3}, "retry=3 must be a Retry"),
            ({"timeout": 0}, "timeout=0 must be longer than zero"),
            ({"key": 3}, "key=3 must be text"),
            ({"key": "\x00"}, "must be text without NUL"),
        ):
            with pytest.raises(InvalidOption, match=complaint):
                run.options(**options)
        with pytest.raises(InvalidOption, match=r"run\.sleep\(\) takes key= alone"):
            await run.options(tx=True).sleep("nap", "1s")

    async with app.worker():
        await (await mix.enqueue()).result(10)


# --- failures for good


async def test_a_failure_that_is_caught_is_remembered(app: App, probe: Probe):
    """The function goes on, and at the next attempt meets the same failure without a call."""
    flaky, seen = Flaky(9), []

    @app.function(retry=Retry("0s"))
    async def mix(run: Run) -> str:
        try:
            await run.options(retry=ONCE).step("flaky", flaky)
        except StepFailed as failed:
            seen.append((failed.step, failed.code, failed.message, failed.run_id))
        if run.attempt == 1:
            raise KeyError("the run's own")
        return "went on"

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == "went on"
        assert (await probe.next(StepFailedEvent)).error_code == "ValueError"
    assert seen == [("flaky", "ValueError", "out of tune", None)] * 2
    assert flaky.calls == 1


@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "task group"])
async def test_a_failure_that_is_not_caught_fails_the_run_without_a_retry(app: App, grouped: bool):
    """The run's error says which step it was; out of a TaskGroup, too."""
    starts: list[int] = []

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run):
        starts.append(run.attempt)
        if not grouped:
            await run.options(retry=ONCE).step("failing", failing)
        async with asyncio.TaskGroup() as group:
            group.create_task(run.options(retry=ONCE).step("failing", failing))

    async with app.worker():
        handle = await mix.enqueue()
        with pytest.raises(RunFailed) as caught:
            await handle.result(10)
    assert (caught.value.code, "step 'failing' failed: out of tune" in str(caught.value)) == ("step_failed", True)
    assert starts == [1]


async def test_fatal_in_a_task_group_is_fatal(app: App):
    """What says how to go on says so inside of a group, too."""
    starts: list[int] = []

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run):
        starts.append(run.attempt)
        async with asyncio.TaskGroup() as group:
            group.create_task(fatal())

    async def fatal() -> None:
        raise Fatal("broken")

    async with app.worker():
        with pytest.raises(RunFailed, match="fatal: broken"):
            await (await mix.enqueue()).result(10)
    assert starts == [1]


# --- siblings


async def test_finished_siblings_stay_finished(app: App, database: Database):
    """One of three is tried again later; the others are not done again for that."""
    flaky, calls = Flaky(1), []

    async def good(name: str) -> str:
        calls.append(name)
        return name

    @app.function(retry=Retry("20ms"))
    async def mix(run: Run) -> list[Any]:
        return list(
            await asyncio.gather(run.step("good", good, "a"), run.step("flaky", flaky), run.step("good", good, "b"))
        )

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == ["a", 2, "b"]
    assert calls == ["a", "b"]
    assert [row[2] for row in steps_of(database, handle.id)] == ["completed"] * 3


async def test_a_sibling_that_is_still_busy_is_waited_for(app: App):
    """The run is not left while a step is in flight, however long the other has to wait."""
    flaky, done, slow_calls = Flaky(1), asyncio.Event(), []

    async def slow() -> str:
        slow_calls.append(1)
        await asyncio.sleep(0.1)
        done.set()
        return "slow"

    @app.function(retry=Retry("20ms"))
    async def mix(run: Run) -> list[Any]:
        return list(await asyncio.gather(run.step("flaky", flaky), run.step("slow", slow)))

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == [2, "slow"]
    assert slow_calls == [1]


async def test_a_failure_beside_finished_siblings_keeps_them(app: App, database: Database):
    """Their results are there when a person retries the run."""
    calls: list[str] = []
    broken = [True]

    async def good() -> str:
        calls.append("good")
        return "good"

    async def bad() -> str:
        calls.append("bad")
        if broken[0]:
            raise ValueError("out of tune")
        return "mended"

    @app.function(retry=ONCE)
    async def mix(run: Run) -> list[str]:
        found = await asyncio.gather(run.step("good", good), run.step("bad", bad), return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return list(found)  # type: ignore[arg-type]

    async with app.worker():
        handle = await mix.enqueue()
        with pytest.raises(RunFailed, match="step 'bad' failed"):
            await handle.result(10)
        broken[0] = False
        await app.runs.retry(handle.id)
        assert await handle.result(10) == ["good", "mended"]
    assert calls == ["good", "bad", "bad"]
