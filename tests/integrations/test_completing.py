"""A handler completes its run in its own transaction: sync libraries in plain functions, async ones in coroutines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato import App, Retry, Run
from ostinato.engine.blocking import BlockingRun
from ostinato.engine.threads import at_once
from ostinato.errors import LeaseLost
from ostinato.telemetry import QueueAsleep, RunCompleted, StaleWriteRefused
from ostinato.telemetry import RunFailed as AttemptFailed
from ostinato.testing.probe import Probe
from tests.engine.databases import Database, notes
from tests.integrations.libraries import Held, Library
from tests.integrations.scenes import Scene, done, play


def handler(library: Library, url: str, work: Any, *, first: Callable[[], Any] = list) -> Any:
    """A handler in the library's colour; `work` is a coroutine function that takes the run and what is held."""

    async def in_the_loop(run: Run) -> None:
        first()
        async with library.open(url) as held:
            await work(run, held)

    def in_a_thread(run: BlockingRun) -> None:
        first()
        with library.open(url) as held:
            at_once(work(run, held))

    return in_the_loop if library.is_async else in_a_thread


async def test_a_run_is_completed_with_the_users_rows(app: App, database: Database, library: Library, probe: Probe):
    """The worker finds it completed, with the output that was given."""

    async def work(run: Any, held: Held) -> None:
        await done(held.note("mine"))
        await done(run.complete({"by": run.id}, conn=held.conn))
        await done(held.commit())

    function = app.function(name="work")(handler(library, database.url, work))
    async with app.worker():
        handle = await function.options(key="k").enqueue()
        assert await handle.result(10) == {"by": handle.id}
        await probe.next(RunCompleted, run_id=handle.id)
    assert notes(database) == ["mine"]
    assert database.query("select count(*) from ostinato_keys") == [(0,)]


async def test_a_completion_that_is_rolled_back_is_none(app: App, database: Database, library: Library, probe: Probe):
    """Nothing of it is left, and the run is tried again."""

    async def work(run: Any, held: Held) -> None:
        await done(held.note(f"attempt {run.attempt}"))
        await done(run.complete(run.attempt, conn=held.conn))
        await done(held.rollback() if run.attempt == 1 else held.commit())

    function = app.function(name="work", retry=Retry("0s"))(handler(library, database.url, work))
    async with app.worker():
        handle = await function.enqueue()
        failed = await probe.next(AttemptFailed, run_id=handle.id)
        assert (failed.error_code, failed.will_retry) == ("not_committed", True)
        assert await handle.result(10) == 2
    assert notes(database) == ["attempt 2"]


async def test_a_run_that_somebody_else_has_by_now_is_refused(
    app: App, database: Database, library: Library, probe: Probe
):
    """The fence is the same as anywhere else, and the connection can be rolled back as after any error."""
    refused: list[str] = []

    def take_over() -> None:
        database.query("update ostinato_runs set lease_no = lease_no + 1")

    async def work(run: Any, held: Held) -> None:
        await done(held.note("lost"))
        try:
            await done(run.complete(conn=held.conn))
        except LeaseLost as error:
            refused.append(str(error))
            await done(held.rollback())

    function = app.function(name="work")(handler(library, database.url, work, first=take_over))
    async with app.worker():
        handle = await function.enqueue()
        await probe.next(StaleWriteRefused, run_id=handle.id)
    assert refused == [f"run {handle.id} is not ours any more; roll back, nothing of it may be written"]
    assert notes(database) == []


async def test_a_sleeping_worker_is_woken_by_the_users_commit(app: App, library: Library, probe: Probe):
    """Long before it would look by itself, and not before the commit."""

    async def work(scene: Scene) -> str:
        handle = await scene.enqueue("mail", {"to": "Ada"})
        assert not probe.seen(RunCompleted)
        await scene.commit()
        return str(handle.id)

    async with app.worker():
        await probe.next(QueueAsleep)
        await probe.next(RunCompleted, run_id=await play(library, app, work), timeout=10)
