"""Runs that start others and wait for them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ostinato import App, Cancel, Retry, Run, RunCancelled, RunFailed, StepFailed
from ostinato.errors import InvalidOption
from ostinato.telemetry import RunSuspended
from ostinato.testing import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database
from tests.engine.test_steps import steps_of, until

ONCE = Retry.none()


def children_of(database: Database, run_id: str) -> list[tuple[Any, ...]]:
    return database.query(f"select id, state from ostinato_runs where parent_run = '{run_id}' order by id")


async def test_a_child_is_started_once_and_its_result_waited_for(app: App, probe: Probe, database: Database):
    """Its parent is held meanwhile, and knows the result at later attempts."""
    calls: list[int] = []

    @app.function(retry=ONCE)
    async def child(number: int) -> dict[str, int]:
        calls.append(number)
        return {"doubled": 2 * number}

    @app.function(retry=Retry("0s"))
    async def parent(run: Run) -> Any:
        found = await run.invoke("kid", child, number=4)
        if run.attempt == 1:
            raise ValueError("again")
        return found

    async with app.worker():
        handle = await parent.enqueue()
        assert await handle.result(10) == {"doubled": 8}
        assert (await probe.next(RunSuspended, run_id=handle.id)).reason == "child"
    assert calls == [4]
    (kid,) = children_of(database, handle.id)
    assert kid[1] == "completed"
    assert (await app.runs.get(kid[0])).invoked_by == f"run:{handle.id}"


async def test_a_childs_failure_is_raised(app: App, database: Database):
    """With the run that failed, so that people find it; caught or not."""
    seen: list[StepFailed] = []

    @app.function(retry=ONCE)
    async def child(how: str):
        raise Cancel("not wanted") if how == "cancel" else ValueError("out of tune")

    @app.function(retry=Retry("0s", "0s"))
    async def parent(run: Run, how: str):
        try:
            await run.invoke("kid", child, how=how)
        except StepFailed as failed:
            seen.append(failed)
            raise

    async with app.worker():
        for how, code, message in (("fail", "run_failed", "out of tune"), ("cancel", "run_cancelled", "not wanted")):
            handle = await parent.enqueue(how=how)
            with pytest.raises(RunFailed, match=f"step_failed: step 'kid' failed: {message}"):
                await handle.result(10)
            ((kid, _),) = children_of(database, handle.id)
            assert (seen[-1].code, seen[-1].message, seen[-1].run_id) == (code, message, kid)
    assert len(seen) == 2


async def test_children_in_a_loop_and_at_once(app: App):
    """Each call has its own child, in whatever order they are called at the next attempt."""
    dice = random.Random(5)

    @app.function(retry=ONCE)
    async def child(number: int) -> int:
        await asyncio.sleep(dice.random() / 50)
        return 10 * number

    async def fetch(number: int) -> int:
        await asyncio.sleep(dice.random() / 50)
        return number

    @app.function(retry=ONCE)
    async def parent(run: Run) -> list[int]:
        async def one(number: int) -> int:
            return await run.invoke("kid", child, number=await run.step("fetch", fetch, number))  # type: ignore[no-any-return]

        together = await asyncio.gather(*[one(number) for number in range(8)])
        return [*together, *[await run.invoke("again", child, number=1) for _ in range(2)]]

    async with app.worker():
        handle = await parent.enqueue()
        assert await handle.result(20) == [0, 10, 20, 30, 40, 50, 60, 70, 10, 10]


async def test_a_child_that_ends_before_its_parent_is_held_wakes_it(app: App, database: Database):
    """What comes while a run is about to wait is not lost."""

    @app.function(retry=ONCE)
    async def child() -> str:
        return "done"

    @app.function(retry=ONCE)
    async def parent(run: Run) -> Any:
        try:
            return await run.invoke("kid", child)
        finally:
            if run.lease_no == 1:
                await until(lambda: [state for _, state in children_of(database, run.id)] == ["completed"])

    async with app.worker():
        assert await (await parent.enqueue()).result(10) == "done"


# --- cancelling


async def test_children_are_cancelled_with_their_parent(app: App, probe: Probe, database: Database):
    """And theirs with them: those who run and those who wait."""

    @app.function(retry=ONCE)
    async def grandchild(run: Run):
        await asyncio.Event().wait()

    @app.function(retry=ONCE)
    async def child(run: Run):
        await run.invoke("kid", grandchild)

    @app.function(retry=ONCE)
    async def parent(run: Run):
        await run.invoke("kid", child)

    async with app.worker():
        handle = await parent.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        ((kid, _),) = children_of(database, handle.id)
        await probe.next(RunSuspended, run_id=kid)
        ((grandkid, _),) = children_of(database, kid)
        await handle.cancel("not wanted")
        for run_id in (handle.id, kid, grandkid):
            with pytest.raises(RunCancelled, match="not wanted"):
                await app.runs.handle(run_id).result(10)


async def test_children_are_cancelled_when_their_parent_cancels_itself(app: App, database: Database):
    """By raising Cancel beside them."""

    @app.function(retry=ONCE)
    async def child(run: Run):
        await run.sleep("nap", "1h")

    @app.function(retry=ONCE)
    async def parent(run: Run):
        async def stop() -> None:
            await until(lambda: bool(children_of(database, run.id)))
            raise Cancel("enough")

        await asyncio.gather(run.invoke("kid", child), run.step("stop", stop))

    async with app.worker():
        handle = await parent.enqueue()
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result(10)
        ((kid, _),) = children_of(database, handle.id)
        with pytest.raises(RunCancelled, match="enough"):
            await app.runs.handle(kid).result(10)


async def test_a_child_that_is_purged_is_told_of(make_app: MakeApp, database: Database):
    """Whoever waits for it does not wait for ever."""
    async with make_app(queues={"default": 10}) as app:

        @app.function(retry=ONCE, queue="nobody")
        async def child():
            raise AssertionError

        @app.function(retry=ONCE)
        async def parent(run: Run) -> str:
            try:
                await run.invoke("kid", child)
            except StepFailed as failed:
                return failed.message
            return ""

        with Probe(app.telemetry) as probe:
            async with app.worker():
                handle = await parent.enqueue()
                await probe.next(RunSuspended, run_id=handle.id)
                assert (await app.queues.purge("nobody", state="ready")).count == 1
                assert await handle.result(10) == "purged"
        assert children_of(database, handle.id) == []


# --- retried by a person


async def test_a_parent_that_a_person_retries_starts_what_failed_anew(app: App, database: Database):
    """And keeps what was completed."""
    broken = [True]

    @app.function(retry=ONCE)
    async def child(name: str) -> str:
        if name == "bad" and broken[0]:
            raise ValueError("out of tune")
        return name

    @app.function(retry=ONCE)
    async def parent(run: Run) -> list[Any]:
        return [await run.invoke("kid", child, name="good"), await run.invoke("kid", child, name="bad")]

    async with app.worker():
        handle = await parent.enqueue()
        with pytest.raises(RunFailed):
            await handle.result(10)
        broken[0] = False
        await app.runs.retry(handle.id)
        assert await handle.result(10) == ["good", "bad"]
    assert sorted(state for _, state in children_of(database, handle.id)) == ["completed", "completed", "failed"]


async def test_a_parent_that_a_person_retries_waits_for_the_child_that_it_has(
    app: App, probe: Probe, database: Database
):
    """One that goes on is not started again."""
    over, broken = asyncio.Event(), [True]

    @app.function(retry=ONCE)
    async def child() -> str:
        await over.wait()
        return "done"

    async def bad() -> str:
        if broken[0]:
            raise ValueError("out of tune")
        return "mended"

    @app.function(retry=ONCE)
    async def parent(run: Run) -> list[Any]:
        return list(await asyncio.gather(run.invoke("kid", child), run.step("bad", bad)))

    async with app.worker():
        handle = await parent.enqueue()
        with pytest.raises(RunFailed):
            await handle.result(10)
        broken[0] = False
        await app.runs.retry(handle.id)
        await probe.next(RunSuspended, run_id=handle.id, reason="child")
        over.set()
        assert await handle.result(10) == ["done", "mended"]
    assert len(children_of(database, handle.id)) == 1
    assert [row[0] for row in steps_of(database, handle.id)] == ["kid", "bad"]


# --- refusals


async def test_a_child_takes_no_key(app: App, database: Database):
    """It might be another's run that has it, whose end nobody would tell."""

    @app.function(retry=ONCE)
    async def child():
        pass

    @app.function(retry=ONCE)
    async def parent(run: Run):
        with pytest.raises(InvalidOption, match=r"step 'kid': run\.invoke\(\) .* takes no key="):
            await run.invoke("kid", child.options(key="one"))

    async with app.worker():
        handle = await parent.enqueue()
        await handle.result(10)
    assert steps_of(database, handle.id) == []


async def test_a_child_may_have_options(app: App, database: Database):
    """Such as a delay, a priority or metadata."""

    @app.function(retry=ONCE)
    async def child(run: Run) -> Any:
        return run.metadata

    @app.function(retry=ONCE)
    async def parent(run: Run) -> Any:
        return await run.invoke("kid", child.options(delay="20ms", metadata={"of": "parent"}))

    async with app.worker():
        assert await (await parent.enqueue()).result(10) == {"of": "parent"}
