"""What is around handlers: middleware, resources, queues, event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ostinato import App, ConfigError, Fatal, Retry, Run, RunFailed
from ostinato.model.run import START
from ostinato.store.ports import Store
from ostinato.telemetry import RunClaimed, RunCompleted, WorkerStarted
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, states

Next = Callable[[], Awaitable[Any]]

# --- middleware


async def test_middleware_goes_around_handlers_in_the_order_of_declaration(app: App):
    """The first is the outermost; it sees the run, the result and the way back."""
    steps: list[str] = []

    @app.middleware
    async def outer(run: Run, call_next: Next) -> Any:
        steps.append(f"outer before {run.function}")
        result = await call_next()
        steps.append("outer after")
        return f"({result})"

    @app.middleware
    async def inner(run: Run, call_next: Next) -> Any:
        steps.append("inner before")
        result = await call_next()
        steps.append("inner after")
        return f"[{result}]"

    @app.function
    async def work() -> str:
        steps.append("handler")
        return "x"

    @app.function
    def threaded() -> str:
        return "y"

    async with app.worker():
        assert await (await work.enqueue()).result(5) == "([x])"
        assert steps == ["outer before work", "inner before", "handler", "inner after", "outer after"]
        assert await (await threaded.enqueue()).result(5) == "([y])"


async def test_middleware_sees_what_a_handler_raises(app: App):
    """And may make something of it."""

    @app.middleware
    async def forgiving(run: Run, call_next: Next) -> Any:
        try:
            return await call_next()
        except KeyError:
            return "forgiven"

    @app.function(retry=Retry.none())
    async def fail(kind: str):
        raise {"key": KeyError, "value": ValueError}[kind]

    async with app.worker():
        assert await (await fail.enqueue(kind="key")).result(5) == "forgiven"
        with pytest.raises(RunFailed, match="ValueError"):
            await (await fail.enqueue(kind="value")).result(5)


async def test_middleware_that_fails_fails_the_attempt(app: App):
    """It is a part of it."""

    @app.middleware
    async def strict(run: Run, call_next: Next) -> Any:
        raise Fatal("not today")

    @app.function
    async def work(): ...

    async with app.worker():
        with pytest.raises(RunFailed, match="fatal: not today"):
            await (await work.enqueue()).result(5)


async def test_middleware_shares_the_run_with_its_handler(app: App, database: Database):
    """A transaction opened by the handler is committed when the outermost has returned."""

    @app.middleware
    async def watch(run: Run, call_next: Next) -> Any:
        result = await call_next()
        assert database.query("select count(*) from notes") == [(0,)]
        return result

    @app.function
    async def work(run: Run) -> str:
        async with run.transaction() as tx:
            await tx.execute("insert into notes (text) values ($1)", "x")
        return "done"

    async with app.worker():
        assert await (await work.enqueue()).result(5) == "done"
    assert database.query("select count(*) from notes") == [(1,)]


# --- resources


async def test_resources_live_as_long_as_the_worker(app: App):
    """Several lifespans are opened in order, seen by all runs, and closed in reverse."""
    steps: list[str] = []

    @app.lifespan
    async def first() -> AsyncIterator[dict[str, Any]]:
        steps.append("first opens")
        yield {"client": "http", "shared": 1}
        steps.append("first closes")

    @app.lifespan
    async def second() -> AsyncIterator[dict[str, Any]]:
        steps.append("second opens")
        yield {"model": "llm"}
        steps.append("second closes")

    @app.function
    async def work(run: Run) -> list[str]:
        return [run.resources["client"], run.resources["model"]]

    async with app.worker():
        assert await (await work.enqueue()).result(5) == ["http", "llm"]
        assert steps == ["first opens", "second opens"]
    assert steps == ["first opens", "second opens", "second closes", "first closes"]


async def test_resources_are_there_until_the_last_handler_has_ended(make_app: MakeApp):
    """While the worker drains."""
    steps: list[str] = []
    started = asyncio.Event()
    async with make_app(shutdown_grace="5s") as app:

        @app.lifespan
        async def client() -> AsyncIterator[dict[str, Any]]:
            yield {}
            steps.append("closed")

        @app.function
        async def work():
            started.set()
            await asyncio.sleep(0.1)
            steps.append("worked")

        async with app.worker():
            handle = await work.enqueue()
            await started.wait()
        assert steps == ["worked", "closed"]
        assert await handle.status() == "completed"


async def test_a_resource_that_cannot_be_opened_keeps_the_worker_from_starting(app: App):
    """The error comes out, and what was opened before is closed."""
    closed: list[str] = []

    @app.lifespan
    async def fine() -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            closed.append("fine")

    @app.lifespan
    async def broken() -> AsyncIterator[dict[str, Any]]:
        raise ConnectionError("no route to the model")
        yield {}

    with pytest.raises(ConnectionError, match="no route to the model"):
        async with app.worker():
            pytest.fail("it must not start")
    assert closed == ["fine"]
    assert await app.workers.list() == []


# --- queues


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_queues_concurrency_is_never_exceeded(make_app: MakeApp, threaded: bool):
    """And it is used."""
    running, most, lock = 0, 0, threading.Lock()

    def enter(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    async with make_app(queues={"default": 3}) as app:

        @app.function
        async def work():
            enter(1)
            await asyncio.sleep(0.005)
            enter(-1)

        @app.function
        def work_in_a_thread():
            enter(1)
            threading.Event().wait(0.005)
            enter(-1)

        async with app.worker():
            handles = await (work_in_a_thread if threaded else work).enqueue_many([{}] * 40)
            for handle in handles:
                await handle.result(10)
    assert most == 3


async def store_of(app: App) -> Store:
    """The store that an open app uses."""
    store = app._site.opened()
    assert store is not None
    return store


async def orphans(app: App, name: str, count: int) -> list[str]:
    """Runs whose worker has died."""
    store = await store_of(app)
    await store.register("01DEAD", name="dead", queues={"default": 1}, lease=30.0)
    handles = await app.enqueue_many(name, [{}] * count)
    claimed = await store.claim("default", count, worker="01DEAD", mark=START)
    assert len(claimed) == count
    await store.retire("01DEAD")
    return [handle.id for handle in handles]


async def test_suspects_count_and_run_one_at_a_time(make_app: MakeApp):
    """Beside others, within the queue's concurrency; each of them completes."""
    suspects: set[str] = set()
    running: set[str] = set()
    most, most_suspects = 0, 0
    async with make_app(queues={"default": 3}) as app:

        @app.function
        async def work(run: Run):
            nonlocal most, most_suspects
            running.add(run.id)
            most = max(most, len(running))
            most_suspects = max(most_suspects, len(running & suspects))
            await asyncio.sleep(0.01)
            running.discard(run.id)

        async with app.worker():
            pass  # declares the function
        suspects.update(await orphans(app, "work", 4))
        fresh = await work.enqueue_many([{}] * 20)
        async with app.worker():
            for run_id in [*suspects, *(handle.id for handle in fresh)]:
                await app.runs.result(run_id, timeout=10)
    assert most == 3
    assert most_suspects == 1


async def test_a_rescued_run_keeps_its_attempts_when_its_start_was_in_doubt(app: App):
    """It was claimed with others, so nobody knows whether it had started."""
    attempts: list[int] = []

    @app.function
    async def work(run: Run):
        attempts.append(run.attempt)

    async with app.worker():
        pass
    ids = await orphans(app, "work", 2)
    async with app.worker():
        for run_id in ids:
            await app.runs.result(run_id, timeout=10)
    assert attempts == [1, 1]
    view = await app.runs.get(ids[0])
    assert [kept.code for kept in view.attempts] == ["worker_died"]
    assert "perhaps not started" in view.attempts[0].message


async def test_queues_do_not_wait_for_each_other(make_app: MakeApp):
    """A full one is in nobody's way."""
    go = asyncio.Event()
    async with make_app(queues={"slow": 1, "quick": 5}) as app:

        @app.function(queue="slow")
        async def slow():
            await go.wait()

        @app.function(queue="quick")
        async def quick(): ...

        async with app.worker():
            stuck = await slow.enqueue_many([{}] * 3)
            for handle in await quick.enqueue_many([{}] * 20):
                await handle.result(5)
            assert [await handle.status() for handle in stuck] == ["running", "pending", "pending"]
            go.set()
            for handle in stuck:
                await handle.result(5)


async def test_two_workers_share_the_work(make_app: MakeApp):
    """Each run is done once."""
    done: list[str] = []
    async with make_app(queues={"default": 2}) as app:

        @app.function
        async def work(run: Run):
            await asyncio.sleep(0.002)
            done.append(run.id)

        with Probe(app.telemetry) as probe:
            async with app.worker() as one, app.worker() as two:
                handles = await work.enqueue_many([{}] * 60)
                for handle in handles:
                    await handle.result(10)
                assert one.id != two.id
    assert sorted(done) == sorted(handle.id for handle in handles)
    assert len({event.worker for event in probe.seen(RunClaimed)}) == 2


# --- event loops


async def test_a_worker_lives_beside_the_users_own_tasks(app: App):
    """In the user's own loop, whose tasks go on."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.001)

    @app.function
    async def work(): ...

    heart = asyncio.create_task(beat())
    async with app.worker():
        for handle in await work.enqueue_many([{}] * 200):
            await handle.result(10)
    heart.cancel()
    assert beats > 10


async def test_a_worker_leaves_no_tasks_behind(make_app: MakeApp):
    """When its block is over, and the app's."""
    before = asyncio.all_tasks()
    async with make_app() as app:

        @app.function
        async def work(): ...

        async with app.worker():
            await (await work.enqueue()).result(5)
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


async def test_an_app_may_be_opened_inside_itself(make_app: MakeApp):
    """It stays open until the outermost block ends."""
    app = make_app()

    @app.function
    async def work(): ...

    async with app:
        outer = await store_of(app)
        async with app:
            await work.enqueue()
        assert await store_of(app) is outer
        await work.enqueue()
        assert await states(app) == {"ready": 2}
    assert app._site.opened() is None


def test_an_app_works_in_one_event_loop_after_the_other(make_app: MakeApp):
    """As scripts, tests and notebooks do it."""
    app = make_app()

    @app.function
    async def work(n: int) -> int:
        return n

    async def once(n: int) -> Any:
        async with app, app.worker():
            return await (await work.enqueue(n=n)).result(5)

    assert [asyncio.run(once(1)), asyncio.run(once(2))] == [1, 2]


def test_an_app_works_in_several_event_loops_at_once(make_app: MakeApp):
    """Each in its own thread."""
    app = make_app()
    made: list[str] = []

    @app.function
    async def work(): ...

    async def enqueue() -> None:
        async with app:
            made.extend([(await work.enqueue()).id for _ in range(10)])

    threads = [threading.Thread(target=lambda: asyncio.run(enqueue())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 30


async def test_a_call_that_is_cancelled_while_the_app_opens_hurts_nobody_else(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
):
    """Who shares the opening with it gets the answer; nothing is left open."""
    app = make_app()
    opening, go = asyncio.Event(), asyncio.Event()
    make_store = app._site._make_store

    def slow_store() -> Store:
        store = make_store()
        original = store.open

        async def open_slowly() -> None:
            opening.set()
            await go.wait()
            await original()

        monkeypatch.setattr(store, "open", open_slowly)
        return store

    monkeypatch.setattr(app._site, "_make_store", slow_store)

    @app.function
    async def work(): ...

    first = asyncio.create_task(work.enqueue())
    await opening.wait()
    second = asyncio.create_task(work.enqueue())
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    await asyncio.wait([first])
    assert (await second).created
    assert app._site.opened() is None


async def test_a_call_that_is_cancelled_while_another_opens_the_app_leaves_nothing_open(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
):
    """It is not counted among those who use it."""
    app = make_app()
    opening, go = asyncio.Event(), asyncio.Event()
    make_store = app._site._make_store

    def slow_store() -> Store:
        store = make_store()
        original = store.open

        async def open_slowly() -> None:
            opening.set()
            await go.wait()
            await original()

        monkeypatch.setattr(store, "open", open_slowly)
        return store

    monkeypatch.setattr(app._site, "_make_store", slow_store)

    @app.function
    async def work(): ...

    first = asyncio.create_task(work.enqueue())
    await opening.wait()
    second = asyncio.create_task(work.enqueue())
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    go.set()
    await first
    assert app._site.opened() is None


# --- what workers tell


async def test_workers_declare_what_they_know(make_app: MakeApp):
    """For SQL, other processes and people."""
    async with make_app(queues={"default": 7}) as app:

        @app.function(timeout="90s", retry=Retry("1s", "2s"), version="v2")
        async def enrich(track: str): ...

        with Probe(app.telemetry) as probe:
            async with app.worker() as worker:
                (view,) = await app.workers.list()
                assert (view.id, view.queues, view.alive, view.stopping) == (worker.id, {"default": 7}, True, False)
                started = await probe.next(WorkerStarted)
                assert (started.worker, started.queues) == (worker.id, {"default": 7})
        (declared,) = await app.workers.functions()
        assert (declared.name, declared.queue, declared.attempts, declared.timeout, declared.version) == (
            "enrich",
            "default",
            3,
            90.0,
            "v2",
        )
        assert "track" in str(declared.input_schema)
        assert await app.workers.list() == []
        (gone,) = await app.workers.list(dead=True)
        assert (gone.id, gone.alive) == (view.id, False)


async def test_a_running_run_shows_who_has_it(app: App, probe: Probe):
    """Its worker, and until when the lease lasts."""
    started, go = asyncio.Event(), asyncio.Event()

    @app.function
    async def work():
        started.set()
        await go.wait()

    async with app.worker() as worker:
        handle = await work.enqueue()
        await started.wait()
        view = await app.runs.get(handle.id)
        assert (view.status, view.locked_by, view.attempt) == ("running", worker.id, 1)
        assert view.lease_expires_at is not None
        assert view.started_at is not None
        assert [found.running for found in await app.workers.list()] == [1]
        go.set()
        await probe.next(RunCompleted, run_id=handle.id)


@pytest.mark.parametrize("kind", ["middleware", "lifespan"])
async def test_what_goes_around_handlers_is_async_or_refused_when_declared(app: App, kind: str):
    """Each run, or the worker's start, would fail otherwise."""

    def plain(*_: Any) -> Any:
        return None

    declare: Any = getattr(app, kind)
    with pytest.raises(ConfigError, match="async"):
        declare(plain)


# --- looking


async def test_runs_are_listed_newest_first_and_in_pages(app: App):
    """By function, queue and state."""

    @app.function
    async def one(): ...

    @app.function(queue="other")
    async def two(): ...

    ids = [handle.id for handle in await one.enqueue_many([{}] * 5)]
    (held,) = await two.options(delay="1h").enqueue_many([{}])
    assert [view.id for view in await app.runs.list(function="one")] == ids[::-1]
    page = await app.runs.list(function="one", limit=2)
    assert [view.id for view in page] == [ids[4], ids[3]]
    following = await app.runs.list(function="one", limit=2, before=page[-1].id)
    assert [view.id for view in following] == [ids[2], ids[1]]
    assert [view.id for view in await app.runs.list(queue="other")] == [held.id]
    assert [view.id for view in await app.runs.list(state="held")] == [held.id]


async def test_a_runs_log_carries_the_run(app: App, caplog: pytest.LogCaptureFixture):
    """So that its lines can be found by its id."""

    @app.function
    async def work(run: Run):
        run.log.info("looking at %s", "album 1", extra={"mine": 1})

    caplog.set_level("INFO", "ostinato.run")
    async with app.worker():
        handle = await work.enqueue()
        await handle.result(5)
    (record,) = [record for record in caplog.records if record.name == "ostinato.run"]
    assert record.getMessage() == "looking at album 1"
    fields = record.__dict__["ostinato_event"]
    assert (fields["job_id"], fields["job_type"], fields["attempt"]) == (handle.id, "work", 1)
    assert fields["message"] == "looking at album 1"
    assert record.__dict__["mine"] == 1
