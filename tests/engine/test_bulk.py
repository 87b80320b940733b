"""Verbs for many runs at once, by what the runs are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostinato import App, ConfigError, Fatal, InvalidOption
from ostinato.resources import bulk
from ostinato.telemetry import RunFailed
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, states


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few runs are many pages and commits."""
    monkeypatch.setattr(bulk, "PAGE", 10)
    monkeypatch.setattr(bulk, "BATCH", 4)


async def some_runs(app: App) -> None:
    """Runs of two functions, ready and held, in two queues."""

    @app.function
    async def mix(): ...

    @app.function(queue="mail")
    async def send(): ...

    await mix.enqueue_many([{}] * 25)
    await mix.options(delay="1h").enqueue_many([{}] * 7)
    await send.enqueue_many([{}] * 13)


async def failed_runs(app: App, count: int, **options: Any) -> Any:
    """A function that always fails, and runs of it that have."""

    @app.function
    async def refuse():
        raise Fatal("no")

    async with app.worker():
        handles = [await refuse.options(**options).enqueue() for _ in range(count)]
        await asyncio.wait([asyncio.create_task(handle.result(10)) for handle in handles])
    return refuse


# --- cancelling


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({"function": "mix"}, 32),
        ({"function": "mix", "state": "ready"}, 25),
        ({"state": ["held", "ready"]}, 45),
        ({"queue": "mail"}, 13),
        ({"queue": "mail", "function": "mix"}, 0),
        ({"queue": "default", "limit": 11}, 11),
        ({"key": "k"}, 0),
        ({"code": "ValueError"}, 0),
        ({"older_than": "1h"}, 0),
        ({"newer_than": "1h"}, 45),
        ({"everything": True}, 45),
    ],
    ids=str,
)
async def test_runs_are_cancelled_by_what_they_are(app: App, filters: dict[str, Any], count: int):
    """A dry run says how many, and changes nothing; then exactly so many are cancelled, and none the second time."""
    await some_runs(app)

    preview = await app.runs.cancel_where(**filters, dry_run=True)
    assert (preview.count, len(preview.sample), preview.dry_run) == (count, min(count, bulk.SAMPLE), True)
    assert (await states(app)).get("cancelled", 0) == 0

    outcome = await app.runs.cancel_where(**filters, reason="not wanted")
    assert (outcome.count, outcome.left, len(outcome.sample)) == (count, 0, min(count, bulk.SAMPLE))
    assert not outcome.dry_run
    assert (await states(app)).get("cancelled", 0) == count
    for run_id in outcome.sample:
        run = await app.runs.get(run_id)
        assert run.error is not None
        assert (run.state, run.error.message) == ("cancelled", "not wanted")
    if "limit" not in filters:
        assert (await app.runs.cancel_where(**filters)).count == 0


async def test_who_is_at_work_is_counted_exactly(app: App):
    """Runs that are claimed and settled meanwhile are cancelled, or have completed: each is one of the two, and the
    answer is the number of the first."""

    @app.function
    async def work():
        await asyncio.sleep(0)

    async with app.worker() as worker:
        await work.enqueue_many([{}] * 400)
        outcome = await app.runs.cancel_where(function="work")
        await worker.settled()
        after = await states(app)
    assert (outcome.count, outcome.left) == (after.get("cancelled", 0), 0)
    assert set(after) <= {"cancelled", "completed"}
    assert sum(after.values()) == 400


async def test_running_runs_are_asked_to_stop(app: App):
    """Unless only waiting ones are meant."""
    started = asyncio.Event()

    @app.function
    async def linger():
        started.set()
        await asyncio.Event().wait()

    async with app.worker() as worker:
        await linger.enqueue()
        await started.wait()
        assert (await app.runs.cancel_where(function="linger", state=["ready", "held"])).count == 0
        assert (await app.runs.cancel_where(function="linger", state="running")).count == 1
        await worker.settled()
    assert await states(app) == {"cancelled": 1}


# --- retrying


async def test_failed_runs_go_again_once_each(app: App, probe: Probe):
    """Those that fail again meanwhile are not taken for others: it ends, and the number is right."""
    refuse = await failed_runs(app, 23)
    async with app.worker() as worker:
        outcome = await app.runs.retry_where(function=refuse.name)
        for _ in range(46):
            await probe.next(RunFailed)
        await worker.settled()
    assert (outcome.count, outcome.left) == (23, 0)
    assert await states(app) == {"failed": 23}


async def test_runs_go_again_by_their_error(app: App):
    """And by how long ago it was."""
    await failed_runs(app, 5)
    assert (await app.runs.retry_where(code="ValueError")).count == 0
    assert (await app.runs.retry_where(code="fatal", older_than="1h")).count == 0
    preview = await app.runs.retry_where(code="fatal", newer_than="1h", dry_run=True)
    assert (preview.count, await states(app)) == (5, {"failed": 5})
    assert (await app.runs.retry_where(code="fatal", newer_than="1h", limit=3)).count == 3
    assert await states(app) == {"failed": 2, "ready": 3}


async def test_cancelled_runs_go_again_if_they_are_named(app: App):
    """By default it is the failed ones."""
    await some_runs(app)
    await app.runs.cancel_where(queue="mail")
    assert (await app.runs.retry_where(queue="mail")).count == 0
    assert (await app.runs.retry_where(queue="mail", state="cancelled")).count == 13


async def test_runs_whose_key_is_taken_are_left(app: App):
    """They are counted apart, and do not keep others, or a limit, from being reached."""
    refuse = await failed_runs(app, 1, key="k")
    await failed_runs_of(app, refuse, 6)
    await refuse.options(key="k").enqueue()
    outcome = await app.runs.retry_where(function="refuse", limit=4)
    assert outcome.count == 4
    outcome = await app.runs.retry_where(function="refuse")
    assert (outcome.count, outcome.left) == (2, 1)


async def failed_runs_of(app: App, function: Any, count: int) -> None:
    async with app.worker():
        handles = await function.enqueue_many([{}] * count)
        await asyncio.wait([asyncio.create_task(handle.result(10)) for handle in handles])


# --- purging


async def test_ended_runs_are_purged(app: App, database: Database):
    """With their attempts; those that wait are not, unless they are named."""
    await some_runs(app)
    refuse = await failed_runs_elsewhere(app, 9)
    assert (await app.runs.purge(queue="mail", dry_run=True)).count == 0
    assert (await app.runs.purge(function=refuse, dry_run=True)).count == 9
    assert database.query("select count(*) from ostinato_attempts") == [(9,)]
    assert (await app.runs.purge(function=refuse, older_than="1h")).count == 0
    assert (await app.runs.purge(function=refuse, state="completed")).count == 0
    assert (await app.runs.purge(function=refuse)).count == 9
    assert database.query("select count(*) from ostinato_attempts") == [(0,)]
    assert (await app.runs.purge(queue="mail", state=["ready", "failed"])).count == 13
    assert await states(app) == {"held": 7, "ready": 25}


async def failed_runs_elsewhere(app: App, count: int) -> str:
    """Runs that have failed, while those of the other queues wait."""
    await app.queues.pause("default")
    await app.queues.pause("mail")
    another = App(app.settings.url, queues={"third": 5}, shutdown_grace="500ms")

    @another.function(queue="third")
    async def refuse():
        raise Fatal("no")

    async with another, another.worker():
        handles = await refuse.enqueue_many([{}] * count)
        await asyncio.wait([asyncio.create_task(handle.result(10)) for handle in handles])
    return refuse.name


async def test_a_purge_frees_no_key_for_ever(app: App):
    """As with retention: the key was taken for good."""

    @app.function
    async def work(): ...

    first = await work.options(key="k", unique="forever").enqueue()
    await first.cancel()
    assert (await app.runs.purge(state="cancelled")).count == 1
    again = await work.options(key="k", unique="forever").enqueue()
    assert (again.created, again.id) == (False, first.id)


# --- what is refused


@pytest.mark.parametrize("verb", ["cancel_where", "retry_where", "purge"])
async def test_everything_must_be_said(app: App, verb: str):
    """A call without a filter is a mistake more often than not."""
    with pytest.raises(
        InvalidOption, match=r"^say which runs to \w+: state=, function=, queue=, .*; or everything=True$"
    ):
        await getattr(app.runs, verb)()
    with pytest.raises(InvalidOption, match=r"^say which runs"):
        await getattr(app.runs, verb)(function=None, dry_run=True)


@pytest.mark.parametrize(
    ("verb", "state", "message"),
    [
        ("cancel_where", "failed", "cancel: state 'failed' must be one of held, ready, running"),
        ("retry_where", "completed", "retry: state 'completed' must be one of failed, cancelled"),
        ("purge", ["completed", "running"], "purge: state 'running' must be one of completed, failed, cancelled, held"),
        ("purge", "lost", "purge: state 'lost' must be one of"),
    ],
)
async def test_states_that_a_verb_is_not_for_are_refused(app: App, verb: str, state: Any, message: str):
    """Running runs are never purged, and so on; nothing is changed."""
    with pytest.raises(InvalidOption, match=message):
        await getattr(app.runs, verb)(state=state)


async def test_ages_must_be_durations_and_filters_exist(app: App):
    """The error names what is wrong."""
    with pytest.raises(ConfigError, match="older_than: 'yesterday' is not a duration"):
        await app.runs.cancel_where(older_than="yesterday")
    with pytest.raises(ConfigError, match="newer_than: 'now' is not a duration"):
        await app.runs.list(newer_than="now")
    with pytest.raises(InvalidOption, match="limit=0 must be at least 1, or None"):
        await app.runs.purge(state="failed", limit=0)
    with pytest.raises(TypeError, match="'colour' is no filter; there are function, queue"):
        await app.runs.cancel_where(colour="red")  # type: ignore[call-arg]


async def test_lists_take_ages_as_people_write_them(make_app: MakeApp):
    """Like the verbs."""
    async with make_app() as app:
        await some_runs(app)
        assert await app.runs.list(older_than="1h") == []
        assert len(await app.runs.list(newer_than="1h", queue="mail")) == 13
