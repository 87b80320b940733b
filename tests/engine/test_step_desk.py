"""The desk where the steps of many runs are saved together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ostinato import App, Retry, Run
from ostinato.engine import deadlines
from ostinato.engine.deadlines import Deadlines
from ostinato.engine.steps.desk import StepDesk


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


async def test_that_a_step_runs_is_not_noted_once_it_has_ended(app: App, monkeypatch: pytest.MonkeyPatch):
    """Its end waits for a slow commit. A note that came after it would take the memo away."""
    saving, database_answers, ended, looked = (asyncio.Event() for _ in range(4))
    calls: list[str] = []
    commit, look = StepDesk._commit, Deadlines._note_long_steps

    async def slow(self: StepDesk, batch: Sequence[Any]) -> None:
        saving.set()
        await database_answers.wait()
        await commit(self, batch)

    def looking(self: Deadlines, now: float) -> None:
        look(self, now)
        if ended.is_set():
            looked.set()

    monkeypatch.setattr(deadlines, "LONG", 0.0)
    monkeypatch.setattr(StepDesk, "_commit", slow)
    monkeypatch.setattr(Deadlines, "_note_long_steps", looking)

    async def do(name: str) -> None:
        calls.append(name)
        if name == "second":
            await saving.wait()
            ended.set()

    @app.function
    async def work(run: Run) -> None:
        await asyncio.gather(run.step("do", do, "first"), run.step("do", do, "second"))
        await run.sleep("nap", "1ms")

    async with app.worker():
        handle = await work.enqueue()
        await asyncio.wait_for(looked.wait(), 10)
        database_answers.set()
        await handle.result(10)
    assert ["first", "second"] == calls
