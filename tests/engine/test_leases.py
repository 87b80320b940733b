"""A worker that loses its lease, and one that stops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostinato import App, Retry, Run, StoreUnavailable
from ostinato.model.run import Claimed
from ostinato.store.ports import Store
from ostinato.telemetry import (
    LeaseLost,
    RunClaimed,
    RunCompleted,
    RunGivenBack,
    RunRescued,
    StaleWriteRefused,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from ostinato.telemetry import RunFailed as AttemptFailed
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, notes, states

NOTE = "insert into notes (text) values ($1)"


def store_of(app: App) -> Store:
    """The store that an open app uses."""
    store = app._site.opened()
    assert store is not None
    return store


async def bury(app: App, worker: Any) -> None:
    """Declares a worker dead, as another would."""
    assert worker.id is not None
    await store_of(app).retire(worker.id)


# --- the lease is lost


async def test_handlers_are_cancelled_when_the_lease_is_lost(make_app: MakeApp):
    """They can see why; nothing of theirs is written, and the run goes again, with its attempt where it may."""
    started, seen = asyncio.Event(), list[Any]()
    async with make_app(lease="1s") as app:

        @app.function
        async def work(run: Run) -> str:
            if run.lease_no > 1:
                return "by the second"
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(run.stopping)
            return "by the first"

        with Probe(app.telemetry) as probe:
            async with app.worker() as worker:
                handle = await work.enqueue()
                await started.wait()
                first = worker.id
                await bury(app, worker)
                lost = await probe.next(LeaseLost)
                stale = await probe.next(StaleWriteRefused, run_id=handle.id)
                assert await handle.result(10) == "by the second"
                assert worker.id not in (None, first)
        assert seen == ["lease_lost"]
        assert (lost.worker, lost.why) == (first, "declared dead by another worker")
        assert (stale.worker, stale.lease_no) == (first, 1)
        view = await app.runs.get(handle.id)
        assert (view.state, view.lease_no) == ("completed", 2)


async def test_a_worker_that_lost_its_lease_takes_a_new_identity_and_goes_on(make_app: MakeApp):
    """With all of its slots."""
    async with make_app(lease="1s", queues={"default": 2}) as app:

        @app.function
        async def work(): ...

        with Probe(app.telemetry) as probe:
            async with app.worker() as worker:
                first = (await probe.next(WorkerStarted)).worker
                await bury(app, worker)
                second = (await probe.next(WorkerStarted)).worker
                assert second != first
                for handle in await work.enqueue_many([{}] * 10):
                    assert (await probe.next(RunClaimed, run_id=handle.id)).worker == second
                    await handle.result(5)


async def test_effects_of_a_worker_that_lost_its_lease_are_refused(postgres_database: Database):
    """Even of a handler that does not stop: the fence holds in its transaction."""
    rescued, go = asyncio.Event(), asyncio.Event()
    async with App(postgres_database.url, lease="1s", shutdown_grace="1s") as app:

        @app.function
        async def work(run: Run) -> str:
            async with run.transaction() as tx:
                await tx.execute(NOTE, f"lease {run.lease_no}")
                if run.lease_no == 1:
                    go.set()
                    while not rescued.is_set():
                        try:
                            await rescued.wait()
                        except asyncio.CancelledError:
                            continue
            return f"lease {run.lease_no}"

        with Probe(app.telemetry) as probe:
            async with app.worker() as worker:
                handle = await work.enqueue()
                await go.wait()
                await bury(app, worker)
                await probe.next(RunRescued, run_id=handle.id)
                rescued.set()
                assert await handle.result(10) == "lease 2"
    assert notes(postgres_database) == ["lease 2"]


async def test_a_handler_slow_to_stop_does_not_disturb_the_next_attempt_of_its_run(make_app: MakeApp):
    """The same worker may have claimed it again meanwhile: when the old one ends, the new one is still watched over."""
    tidy, second, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with make_app(lease="1s", shutdown_grace="5s") as app:

        @app.function
        async def work(run: Run) -> str:
            if run.lease_no == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    await tidy.wait()
            second.set()
            await go.wait()
            return "done"

        with Probe(app.telemetry) as probe:
            async with app.worker() as worker:
                handle = await work.enqueue()
                await probe.next(RunClaimed, run_id=handle.id)
                await bury(app, worker)
                await second.wait()
                tidy.set()
                await probe.next(StaleWriteRefused, run_id=handle.id)
                asyncio.get_running_loop().call_later(0.2, go.set)
            # leaving the block drains: the second attempt is waited for
            assert await handle.status() == "completed"


async def test_a_claim_that_comes_back_after_the_lease_is_gone_costs_no_slot(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
):
    """What it took is rescued, and all slots are there afterwards."""
    async with make_app(lease="1s", queues={"default": 2}) as app:

        @app.function
        async def work(): ...

        store = store_of(app)
        claim, lost = store.claim, list[Claimed]()

        with Probe(app.telemetry):
            async with app.worker() as worker:

                async def claim_and_lose(*args: Any, **kwargs: Any) -> list[Claimed]:
                    claimed = await claim(*args, **kwargs)
                    if claimed and not lost:
                        lost.extend(claimed)
                        await bury(app, worker)
                        worker.lease_lost(kwargs["worker"], "declared dead while it claimed")
                    return claimed

                monkeypatch.setattr(store, "claim", claim_and_lose)
                handles = await work.enqueue_many([{}] * 6)
                for handle in handles:
                    await handle.result(4)
                assert worker._intakes["default"]._running == 0
        assert await states(app) == {"completed": 6}


# --- the worker stops


async def test_a_worker_that_stops_lets_its_handlers_finish(make_app: MakeApp):
    """Within the grace period; it claims nothing new."""
    started, go = asyncio.Event(), asyncio.Event()
    async with make_app(shutdown_grace="5s", queues={"default": 1}) as app:

        @app.function
        async def work() -> str:
            started.set()
            await go.wait()
            return "done"

        with Probe(app.telemetry) as probe:
            async with app.worker() as worker:
                first, second = await work.enqueue_many([{}, {}])
                await started.wait()
                worker.stop()
                stopping = await probe.next(WorkerStopping)
                go.set()
                await probe.next(RunCompleted, run_id=first.id)
            stopped = await probe.next(WorkerStopped)
        assert (stopping.running, stopping.forced, stopped.given_back) == (1, False, 0)
        assert (await first.status(), await second.status()) == ("completed", "pending")


async def test_what_does_not_finish_in_time_is_given_back_with_its_attempt(make_app: MakeApp):
    """Handlers are told, and can see why."""
    started, seen = asyncio.Event(), list[Any]()
    async with make_app(shutdown_grace="50ms") as app:

        @app.function(retry=Retry.none())
        async def work(run: Run) -> int:
            if run.lease_no > 1:
                return run.attempt
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(run.stopping)
            return 0

        with Probe(app.telemetry) as probe:
            async with app.worker():
                handle = await work.enqueue()
                await started.wait()
            await probe.next(RunGivenBack, run_id=handle.id)
            assert (await probe.next(WorkerStopped)).given_back == 1
        view = await app.runs.get(handle.id)
        assert (view.state, view.attempt, view.suspect, view.attempts) == ("ready", 0, False, [])
        assert seen == ["shutdown"]
        async with app.worker():
            assert await handle.result(5) == 1


async def test_asking_twice_gives_everything_back_at_once(make_app: MakeApp):
    """However long the grace period is."""
    started = asyncio.Event()
    async with make_app(shutdown_grace="30s") as app:

        @app.function
        async def work():
            started.set()
            await asyncio.Event().wait()

        async with app.worker() as worker:
            handle = await work.enqueue()
            await started.wait()
            worker.stop()
            worker.stop()
        assert await handle.status() == "pending"


async def test_leaving_the_block_of_a_worker_that_was_asked_to_stop_is_no_second_asking(make_app: MakeApp):
    """It drains as it was told to."""
    started = asyncio.Event()
    async with make_app(shutdown_grace="5s") as app:

        @app.function
        async def work():
            started.set()
            await asyncio.sleep(0.2)

        async with app.worker() as worker:
            handle = await work.enqueue()
            await started.wait()
            worker.stop()
        assert await handle.status() == "completed"


async def test_a_worker_that_stopped_holds_nothing(app: App):
    """Its lease is given up, so that nobody has to wait for it to run out."""

    @app.function
    async def work(): ...

    async with app.worker():
        await (await work.enqueue()).result(5)
    assert await app.workers.list() == []


# --- the database has trouble


async def test_settlements_wait_for_the_database(app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch):
    """The result is kept until it can be stored; the handler does not run again."""
    started: list[str] = []

    @app.function
    async def work(run: Run) -> str:
        started.append(run.id)
        return "done"

    store = store_of(app)
    commit, failures = store.commit, 3

    async def fail_at_first(changes: Any) -> Any:
        nonlocal failures
        if failures and type(changes[0]).__name__ == "RunCompleted":
            failures -= 1
            raise StoreUnavailable("gone for a moment")
        return await commit(changes)

    monkeypatch.setattr(store, "commit", fail_at_first)
    async with app.worker():
        handle = await work.enqueue()
        assert await handle.result(10) == "done"
        await probe.next(RunCompleted, run_id=handle.id)
    assert (failures, started) == (0, [handle.id])


async def test_a_commit_that_succeeded_but_seemed_to_fail_is_no_harm(
    app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch
):
    """It is given again, refused, and understood; and announced once."""

    @app.function
    async def work() -> str:
        return "done"

    store = store_of(app)
    commit, failed = store.commit, list[str]()

    async def commit_and_fail(changes: Any) -> Any:
        committed = await commit(changes)
        if not failed and type(changes[0]).__name__ == "RunCompleted":
            failed.append("once")
            raise StoreUnavailable("the connection was cut at COMMIT")
        return committed

    monkeypatch.setattr(store, "commit", commit_and_fail)
    async with app.worker():
        handle = await work.enqueue()
        await probe.next(RunCompleted, run_id=handle.id)
        assert await handle.result(5) == "done"
    assert len(probe.seen(RunCompleted, run_id=handle.id)) == 1
    assert probe.seen(StaleWriteRefused) == []


async def test_a_refusal_that_cannot_be_explained_yet_stops_nobody(
    app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch
):
    """The database is asked again, and the other runs go on."""
    started, go = asyncio.Event(), asyncio.Event()

    @app.function
    async def stubborn():
        started.set()
        try:
            await go.wait()
        except asyncio.CancelledError:
            return

    @app.function
    async def fine() -> str:
        return "fine"

    store = store_of(app)
    fences, failures = store.fences, 2

    async def fail_at_first(ids: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("gone for a moment")
        return await fences(ids)

    monkeypatch.setattr(store, "fences", fail_at_first)
    async with app.worker():
        handle = await stubborn.enqueue()
        await started.wait()
        await handle.cancel("enough")
        assert await (await fine.enqueue()).result(5) == "fine"
        with pytest.raises(Exception, match="enough"):
            await handle.result(5)


async def test_a_transaction_that_cannot_be_undone_ends_the_attempt_all_the_same(
    app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch
):
    """Its connection is gone, and the transaction with it; the slot is free."""

    @app.function(retry=Retry.none())
    async def work(run: Run):
        async with run.transaction() as tx:
            transaction: Any = tx._transaction
            rollback = transaction.rollback

            async def undo_and_fail() -> None:
                await rollback()
                raise StoreUnavailable("the connection is gone")

            monkeypatch.setattr(type(transaction), "rollback", lambda self: undo_and_fail())
        raise ValueError("after the block")

    async with app.worker() as worker:
        handle = await work.enqueue()
        failed = await probe.next(AttemptFailed, run_id=handle.id, timeout=3)
        monkeypatch.undo()
        assert worker._floor.running == {}
    assert failed.error_code == "ValueError"
