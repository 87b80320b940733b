"""How much the steps of a run may return."""

from __future__ import annotations

import pytest

from ostinato import Retry, Run, RunFailed, StepFailed
from ostinato.testing import Drain
from tests.engine.conftest import MakeApp


async def text(length: int) -> str:
    return "x" * length


async def test_a_result_that_is_too_large_fails_its_step(make_app: MakeApp):
    """For good, by name, and with the remedy; the function may go on without it."""
    async with make_app(step_limit=100) as app:

        @app.function(retry=Retry("1s"))
        async def work(run: Run) -> str:
            await run.step("fits", text, 98)
            try:
                await run.step("huge", text, 99)
            except StepFailed as failed:
                return str(failed)
            return "kept"

        handle = await work.enqueue()
        await Drain(app)()
        why = "the result has 101 bytes as JSON and may have 100; store it elsewhere and pass a reference"
        assert await handle.result(1) == f"step 'huge' failed: {why}"
        steps = await app.runs.steps(handle.id)
        assert [("fits", 0), ("huge", 0)] == [(step.name, step.retry_count) for step in steps]


async def test_results_that_are_too_large_together_fail_the_last(make_app: MakeApp):
    """Also where some were returned to an earlier start, in letters that take two bytes."""
    async with make_app(steps_limit=250) as app:

        async def umlauts() -> str:
            return "ü" * 49

        @app.function(retry=Retry.none())
        async def work(run: Run) -> None:
            await run.step("first", umlauts)
            await run.sleep("nap", "1ms")
            await run.step("second", text, 98)
            await run.step("third", text, 98)

        handle = await work.enqueue()
        while (await app.runs.get(handle.id)).ended_at is None:
            await Drain(app)()
        with pytest.raises(
            RunFailed, match=r"step 'third' failed: .* 30[04] bytes and may have 250; store it elsewhere"
        ):
            await handle.result(1)
