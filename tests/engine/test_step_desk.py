"""The desk where the steps of many runs are saved together."""

from __future__ import annotations

import asyncio

from ostinato import App, Retry, Run


async def test_a_step_that_is_done_is_saved_though_nobody_waits_for_it_any_more(app: App):
    """Whoever awaited it was cancelled while it was being saved. What has been done is not done again."""
    fetched: list[int] = []
    done = asyncio.Event()

    async def fetch(number: int) -> int:
        fetched.append(number)
        done.set()
        return number

    @app.function(retry=Retry("0s"))
    async def mix(run: Run) -> int:
        waiting = asyncio.ensure_future(run.step("fetch", fetch, 1))
        if run.attempt == 1:
            await done.wait()
            waiting.cancel()
            await run.step("fetch", fetch, 2)  # saved after the first
            raise ValueError("not yet")
        return await waiting

    async with app.worker():
        assert 1 == await (await mix.enqueue()).result(10)
    assert [1, 2] == fetched
