"""Handlers that take too long, and handlers in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from ostinato import App, Retry, Run, RunCancelled, RunFailed
from ostinato.engine.blocking import BlockingRun
from ostinato.engine.threads import at_once
from ostinato.errors import TransactionMisused
from ostinato.telemetry import LeaseRenewed, RunClaimed, RunCompleted, WorkerStopped
from ostinato.telemetry import RunFailed as AttemptFailed
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, notes, states

NOTE = "insert into notes (text) values ($1)"
ONCE = Retry.none()


# --- async handlers


async def test_a_handler_past_its_timeout_is_really_ended(app: App, probe: Probe):
    """It can see why, its cleanup runs, and the attempt fails."""
    seen: list[Any] = []

    @app.function(timeout="100ms", retry=ONCE)
    async def slow(run: Run):
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(run.stopping)

    async with app.worker():
        handle = await slow.enqueue()
        with pytest.raises(RunFailed, match=r"timeout: the handler ran longer than 0\.1 s"):
            await handle.result(5)
        failed = await probe.next(AttemptFailed, run_id=handle.id)
    assert seen == ["timeout"]
    assert 0.1 <= failed.duration < 5


async def test_a_run_may_have_a_timeout_of_its_own(app: App):
    """Shorter or longer than the function's."""

    @app.function(timeout="1h", retry=ONCE)
    async def slow():
        await asyncio.Event().wait()

    @app.function(timeout="50ms", retry=ONCE)
    async def quick() -> str:
        await asyncio.sleep(0.2)
        return "done"

    async with app.worker():
        with pytest.raises(RunFailed, match="timeout"):
            await (await slow.options(timeout="50ms").enqueue()).result(5)
        assert await (await quick.options(timeout="1m").enqueue()).result(5) == "done"


async def test_a_timeout_counts_as_an_attempt(app: App):
    """And has rules like any exception."""

    @app.function(timeout="50ms", retry=Retry("0s", "0s").on(TimeoutError, "0s"))
    async def slow():
        await asyncio.Event().wait()

    async with app.worker():
        handle = await slow.enqueue()
        with pytest.raises(RunFailed, match="timeout"):
            await handle.result(5)
    assert (await app.runs.get(handle.id)).attempt == 2


async def test_a_timeout_of_next_to_nothing_is_a_timeout(app: App):
    """Even if it is over before the handler began."""

    @app.function(retry=ONCE)
    async def slow():
        await asyncio.Event().wait()

    async with app.worker():
        with pytest.raises(RunFailed, match="timeout"):
            await (await slow.options(timeout=1e-9).enqueue()).result(1)


async def test_a_handlers_own_timeouts_are_its_own(app: App):
    """`asyncio.timeout` inside of a handler is an exception like any other."""

    @app.function(retry=ONCE)
    async def slow():
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    async with app.worker():
        with pytest.raises(RunFailed) as caught:
            await (await slow.enqueue()).result(5)
    assert caught.value.code == "TimeoutError"


async def test_a_handler_that_returns_when_it_is_stopped_has_its_result(app: App):
    """It was in time after all."""

    @app.function(timeout="50ms", retry=ONCE)
    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "what I have so far"
        return ""

    async with app.worker():
        assert await (await tidy.enqueue()).result(5) == "what I have so far"


async def test_a_handler_that_swallows_its_cancellation_is_given_up_on(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
):
    """Its run fails without it, its slot stays taken until it returns, and what it returns counts for nothing."""
    go = asyncio.Event()
    async with make_app(queues={"default": 1}) as app:

        @app.function(timeout="50ms", retry=ONCE)
        async def stubborn() -> str:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"

        @app.function
        async def fine() -> str:
            return "fine"

        with Probe(app.telemetry) as probe:
            async with app.worker():
                monkeypatch.setattr("ostinato.engine.floor.UNRESPONSIVE_GRACE", 0.2)
                handle = await stubborn.enqueue()
                with pytest.raises(RunFailed, match="timeout"):
                    await handle.result(5)
                waiting = await fine.enqueue()
                await asyncio.sleep(0.3)  # nothing may happen, which nothing announces
                assert probe.seen(RunClaimed, run_id=waiting.id) == []
                go.set()
                assert await waiting.result(5) == "fine"
        assert await handle.status() == "failed"


async def test_an_attempt_that_was_given_up_on_shows_how_long_it_took(app: App, monkeypatch: pytest.MonkeyPatch):
    """Its timeout at least."""
    go = asyncio.Event()

    @app.function(timeout="50ms", retry=ONCE)
    async def stubborn():
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with app.worker():
        monkeypatch.setattr("ostinato.engine.floor.UNRESPONSIVE_GRACE", 0.1)
        handle = await stubborn.enqueue()
        with pytest.raises(RunFailed, match="timeout"):
            await handle.result(5)
        go.set()
    (kept,) = (await app.runs.get(handle.id)).attempts
    assert (kept.ended_at - kept.started_at).total_seconds() >= 0.05


# --- handlers in threads


async def test_a_plain_function_runs_in_a_thread(app: App):
    """Beside the event loop, with its result."""

    @app.function
    def work(n: int) -> list[Any]:
        return [n, threading.current_thread() is threading.main_thread()]

    async with app.worker():
        assert await (await work.enqueue(n=5)).result(5) == [5, False]


async def test_threads_do_not_hold_up_the_loop(app: App):
    """Several block at once while others go on."""
    barrier = threading.Barrier(5, timeout=5)

    @app.function
    def meet():
        barrier.wait()

    @app.function
    async def quick(): ...

    async with app.worker():
        handles = [*await meet.enqueue_many([{}] * 4), await quick.enqueue()]
        await handles[-1].result(5)
        await asyncio.to_thread(barrier.wait)
        for handle in handles:
            await handle.result(5)


async def test_a_thread_knows_its_run(app: App):
    """All that an async handler knows."""
    seen: dict[str, Any] = {}

    @app.function
    def work(run: Run, n: int):
        seen.update(id=run.id, attempt=run.attempt, stopping=run.stopping, key=run.key, metadata=run.metadata, n=n)

    async with app.worker():
        handle = await work.options(key="k", metadata={"a": 1}).enqueue(n=3)
        await handle.result(5)
    assert seen == {"id": handle.id, "attempt": 1, "stopping": None, "key": "k", "metadata": {"a": 1}, "n": 3}


async def test_a_thread_has_transactions(app: App, database: Database):
    """With blocking methods of the same names."""

    @app.function
    async def child(): ...

    @app.function
    def work(run: BlockingRun) -> str:
        with run.transaction() as tx:
            assert tx.execute(NOTE, "a") == 1
            assert tx.fetch("select text from notes") == [{"text": "a"}]
            assert tx.fetchrow("select text from notes") == {"text": "a"}
            assert tx.fetchval("select count(*) from notes") == 1
            return tx.enqueue(child.options(delay="1h"))

    async with app.worker():
        handle = await work.enqueue()
        made = await handle.result(5)
    assert notes(database) == ["a"]
    assert (await app.runs.get(made)).invoked_by == f"run:{handle.id}"


async def test_a_threads_tx_is_of_no_use_after_its_block(app: App, database: Database):
    """The error says where to move the statement, and the block is committed with the run all the same."""
    refused: list[str] = []

    @app.function
    async def child(): ...

    @app.function
    def work(run: BlockingRun):
        with run.transaction() as tx:
            tx.execute(NOTE, "inside")
        for use in (
            lambda: tx.execute(NOTE, "late"),
            lambda: tx.fetch("select 1 as one"),
            lambda: tx.fetchrow("select 1 as one"),
            lambda: tx.fetchval("select 1 as one"),
            lambda: tx.enqueue(child),
            lambda: tx.enqueue_many(child, [{}]),
        ):
            with pytest.raises(TransactionMisused) as caught:
                use()
            refused.append(str(caught.value))

    async with app.worker():
        await (await work.enqueue()).result(5)
    assert notes(database) == ["inside"]
    assert await states(app) == {"completed": 1}
    assert len(refused) == 6
    assert all("after its block has ended; move this into the block of run.transaction()" in words for words in refused)


@pytest.mark.parametrize("where", ["inside", "after"])
async def test_a_threads_effects_are_undone_when_it_raises(app: App, database: Database, where: str):
    """As those of any handler."""

    @app.function(retry=ONCE)
    def work(run: BlockingRun):
        with run.transaction() as tx:
            tx.execute(NOTE, "lost")
            if where == "inside":
                raise ValueError("no")
        raise ValueError("no")

    async with app.worker():
        with pytest.raises(RunFailed, match="ValueError: no"):
            await (await work.enqueue()).result(5)
    assert notes(database) == []


async def test_a_thread_that_raises_fails_its_attempt(app: App):
    """With its traceback."""

    @app.function(retry=ONCE)
    def work():
        raise ValueError("no")

    async with app.worker():
        handle = await work.enqueue()
        with pytest.raises(RunFailed, match="ValueError: no"):
            await handle.result(5)
    (kept,) = (await app.runs.get(handle.id)).attempts
    assert 'raise ValueError("no")' in (kept.traceback or "")


async def test_a_thread_that_raises_stop_iteration_fails_its_attempt(app: App):
    """Which no future can carry."""

    @app.function(retry=ONCE)
    def work():
        next(iter([]))

    async with app.worker():
        with pytest.raises(RunFailed, match="StopIteration"):
            await (await work.enqueue()).result(3)


async def test_a_thread_past_its_timeout_keeps_its_slot_and_then_fails(make_app: MakeApp):
    """It cannot be ended, so it counts until it returns."""
    go = threading.Event()
    async with make_app(queues={"default": 1}) as app:

        @app.function(timeout="50ms", retry=ONCE)
        def slow(run: BlockingRun) -> str:
            assert go.wait(5)
            return f"stopped by {run.stopping}"

        @app.function
        async def fine() -> str:
            return "fine"

        with Probe(app.telemetry) as probe:
            async with app.worker():
                handle, waiting = await slow.enqueue(), await fine.enqueue()
                await probe.next(RunClaimed, run_id=handle.id)
                await asyncio.sleep(0.3)  # nothing may happen, which nothing announces
                assert await handle.status() == "running"
                assert probe.seen(RunClaimed, run_id=waiting.id) == []
                go.set()
                with pytest.raises(RunFailed, match="timeout"):
                    await handle.result(5)
                assert await waiting.result(5) == "fine"


async def test_a_thread_past_its_timeout_does_not_end_a_process_whose_loop_answers(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
):
    """Only a handler that holds the event loop itself is a reason to."""
    exits, go = list[int](), threading.Event()
    monkeypatch.setattr("os._exit", exits.append)
    monkeypatch.setattr("ostinato.engine.floor.UNRESPONSIVE_GRACE", 0.2)
    async with make_app(lease="1s") as app:

        @app.function(timeout="50ms", retry=ONCE)
        def slow():
            go.wait(5)

        with Probe(app.telemetry) as probe:
            async with app.worker():
                await slow.enqueue()
                for _ in range(5):
                    await probe.next(LeaseRenewed)
                go.set()
    assert exits == []


async def test_a_thread_that_is_cancelled_ends_as_cancelled_when_it_returns(app: App, database: Database):
    """It can see that it should, and what it did in its transaction is undone."""
    started = threading.Event()

    @app.function
    def work(run: BlockingRun):
        started.set()
        deadline = time.monotonic() + 5
        while run.stopping is None and time.monotonic() < deadline:
            time.sleep(0.005)
        with run.transaction() as tx:
            tx.execute(NOTE, "lost")

    async with app.worker():
        handle = await work.enqueue()
        await asyncio.to_thread(started.wait, 5)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result(5)
    assert notes(database) == []


async def test_a_thread_that_hangs_does_not_keep_the_worker_from_stopping(make_app: MakeApp):
    """Its run is given back, with its attempt."""
    go, started = threading.Event(), threading.Event()
    async with make_app(shutdown_grace="50ms") as app:

        @app.function
        def hang():
            started.set()
            go.wait(10)

        with Probe(app.telemetry) as probe:
            async with app.worker():
                handle = await hang.enqueue()
                await asyncio.to_thread(started.wait, 5)
            stopped = await probe.next(WorkerStopped)
        view = await app.runs.get(handle.id)
        go.set()
    assert (stopped.given_back, view.state, view.attempt) == (1, "ready", 0)


async def test_a_thread_that_was_let_go_leaves_no_transaction_open(make_app: MakeApp, database: Database):
    """What it opens after its run was given back is refused: nobody would end it."""
    go, started, refused = threading.Event(), threading.Event(), list[BaseException]()
    ended = threading.Event()
    async with make_app(shutdown_grace="50ms") as app:

        @app.function
        def hang(run: BlockingRun):
            started.set()
            go.wait(10)
            try:
                with run.transaction() as tx:
                    tx.execute(NOTE, "lost")
            except BaseException as error:
                refused.append(error)
            finally:
                ended.set()

        async with app.worker():
            await hang.enqueue()
            await asyncio.to_thread(started.wait, 5)
        go.set()
        await asyncio.to_thread(ended.wait, 5)
        async with app.transaction() as tx:  # on SQLite the write lock must be free
            await tx.execute(NOTE, "mine")
    assert len(refused) == 1
    assert notes(database) == ["mine"]


def test_what_is_done_at_once_must_not_await():
    """A thread has no event loop that would ever go on with it."""

    async def answer() -> int:
        return 42

    async def wait():
        await asyncio.sleep(0)

    assert at_once(answer()) == 42
    with pytest.raises(RuntimeError, match="awaited something, and there is no event loop in this thread"):
        at_once(wait())


async def test_many_threads_are_reused(app: App, probe: Probe):
    """As many as are busy at once, not one for each run."""
    names: set[str] = set()

    @app.function
    def work():
        names.add(threading.current_thread().name)

    async with app.worker():
        for _ in range(20):
            handle = await work.enqueue()
            await probe.next(RunCompleted, run_id=handle.id)
    assert len(names) <= 3
    assert await states(app) == {"completed": 20}
