"""What surrounds a run: its end in the ledger, the function for failures, its version, and functions that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostinato import App, ConfigError, Event, Fatal, Retry, Run
from ostinato.model.change import RunCompleted
from ostinato.model.outcome import Done, settle
from ostinato.model.run import Claimed
from ostinato.testing import Clock, Drain
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, notes
from tests.engine.ledger import runs_of
from tests.engine.test_transactions import connected

ONCE = Retry.none()


async def ends(app: App) -> list[Event]:
    """The ends in the ledger, in order."""
    return sorted(await app.events.recent(on="run.*"), key=lambda event: event.sequence_no)


async def fetch() -> str:
    return "fetched"


async def explode() -> None:
    raise Fatal("no such thing")


# --- lifecycle=


async def test_the_ends_of_runs_are_recorded(app: App, drain: Drain):
    """With the step that failed, how many are done and how often the run was tried again."""

    @app.function(lifecycle=True, retry=Retry("0s"))
    async def work(run: Run, how: str) -> str:
        await run.step("fetch", fetch)
        if how == "badly":
            await run.step("explode", explode)
        if run.attempt == 1:
            raise ValueError("not yet")
        return how

    well, badly = await work.enqueue(how="well"), await work.enqueue(how="badly")
    await drain()

    found = {event.payload["run_id"]: event for event in await ends(app)}
    assert ("run.completed", "run.failed") == (found[well.id].type, found[badly.id].type)
    assert (None, None, 1, 1) == told(found[well.id])
    message = "step 'explode' failed: no such thing"
    assert ({"code": "step_failed", "message": message}, "explode", 0, 1) == told(found[badly.id])
    assert "explode" == getattr((await app.runs.get(badly.id)).error, "step", None)


def told(event: Event) -> tuple[Any, ...]:
    payload = event.payload
    return payload["error"], payload["failed_step"], payload["retries"], payload["steps_completed"]


async def test_only_the_ends_that_are_asked_for_are_recorded(app: App, drain: Drain):
    """And none of functions that ask for none."""

    @app.function(lifecycle=("failed", "cancelled"), retry=ONCE)
    async def careful(fail: bool) -> None:
        if fail:
            raise ValueError("out of tune")

    @app.function(retry=ONCE)
    async def careless() -> None:
        raise ValueError("out of tune")

    await careful.enqueue(fail=False)
    failing, unwanted = await careful.enqueue(fail=True), await careful.options(delay="1h").enqueue(fail=True)
    await careless.enqueue()
    await drain()
    await unwanted.cancel("changed my mind")

    assert [("run.failed", failing.id), ("run.cancelled", unwanted.id)] == [
        (event.type, event.payload["run_id"]) for event in await ends(app)
    ]


def test_a_completion_that_nobody_asks_about_is_one_change():
    """What most runs end with costs what it did."""
    run = Claimed("r", 1, "mix", "default", 1, "{}", 0, 0.0)
    assert [RunCompleted] == [type(change) for change in settle(run, Done(b"1"), ONCE, worker="w", duration=0.1)]  # type: ignore[arg-type]


async def test_an_end_starts_what_is_subscribed_to_it(app: App, drain: Drain):
    """It is an event like any other."""
    seen: list[str] = []

    @app.function(lifecycle=True)
    async def work() -> None: ...

    @app.function(on="run.completed")
    async def celebrate(end: dict[str, Any]) -> None:
        seen.append(f"{end['function']} {end['run_id']}")

    handle = await work.enqueue()
    await drain()

    assert [f"work {handle.id}"] == seen


async def test_an_end_is_recorded_with_the_runs_own_transaction(app: App, drain: Drain, database: Database):
    """Together with the user's rows, or not at all."""

    @app.function(lifecycle=True, retry=ONCE)
    async def work(run: Run, well: bool) -> None:
        async with run.transaction() as tx:
            await tx.execute("insert into notes (text) values ($1)", "mine")
            if not well:
                raise ValueError("out of tune")

    await work.enqueue(well=True)
    await work.enqueue(well=False)
    await drain()

    assert ["mine"] == notes(database)
    assert ["run.completed", "run.failed"] == sorted(event.type for event in await ends(app))


async def test_an_end_is_recorded_in_the_users_own_transaction(app: App, drain: Drain, database: Database):
    """Which the user commits, or rolls back."""

    @app.function(lifecycle=True, retry=Retry("0s"))
    async def work(run: Run) -> None:
        async with connected(database) as connection:
            await connection.begin()
            await run.complete("done", conn=connection.raw)
            await (connection.rollback() if run.attempt == 1 else connection.commit())

    await work.enqueue()
    await drain()

    (event,) = await ends(app)
    assert ("run.completed", 1) == (event.type, event.payload["retries"])


# --- on_failure=


async def test_a_function_is_started_when_a_run_has_failed_for_good(app: App, drain: Drain):
    """Not while there are attempts left, and once."""
    given: list[dict[str, Any]] = []

    @app.function
    async def mourn(run: Run, failure: dict[str, Any]) -> None:
        given.append({**failure, "by": run.invoked_by})

    @app.function(on_failure=mourn, retry=Retry("0s"))
    async def work(n: int) -> None:
        raise ValueError("out of tune")

    handle = await work.enqueue(n=7)
    await drain()

    (failure,) = given
    assert (handle.id, "work", {"n": 7}, 1) == (
        failure["run_id"],
        failure["function"],
        failure["input"],
        failure["retries"],
    )
    assert {"code": "ValueError", "message": "out of tune"} == failure["error"]
    assert f"run:{handle.id}" == failure["by"]


async def test_the_failure_of_a_function_for_failures_starts_its_own_alone(app: App, drain: Drain):
    """Nothing goes round in circles."""

    @app.function(on_failure="bury", retry=ONCE)
    async def work() -> None:
        raise ValueError("out of tune")

    @app.function(name="bury", on_failure="pray", retry=ONCE)
    async def bury(failure: dict[str, Any]) -> None:
        raise ValueError("no spade")

    @app.function(name="pray", retry=ONCE)
    async def pray(failure: dict[str, Any]) -> None:
        raise ValueError("no god")

    await work.enqueue()
    await drain()

    assert (1, 1) == (len(await runs_of(app, "bury")), len(await runs_of(app, "pray")))


async def test_a_function_for_failures_must_be_there(make_app: MakeApp):
    """Here, or declared by a worker elsewhere; and none may come back to itself."""
    app = make_app()

    @app.function(on_failure="mourns")
    async def work() -> None: ...

    @app.function
    async def mourn(failure: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match=r"'work': on_failure='mourns': no function .* did you mean 'mourn'"):
        async with app.worker():
            pass

    circular = make_app()

    @circular.function(on_failure="there")
    async def here() -> None: ...

    @circular.function(on_failure="here")
    async def there() -> None: ...

    with pytest.raises(ConfigError, match="goes round in circles: here → there → here;"):
        async with circular.worker():
            pass


def test_bad_declarations_are_refused():
    """With what was given and what would do."""
    app, other = App("sqlite:///unused.db"), App("sqlite:///unused.db")

    @other.function
    async def mourn() -> None: ...

    for options, said in (
        ({"lifecycle": "failed"}, "lifecycle='failed' must be True, or some of"),
        ({"lifecycle": ("fail",)}, "must be True, or some of"),
        ({"on_failure": mourn}, "on_failure='mourn' belongs to another app"),
        ({"on_failure": fetch}, "is no function; declare it"),
        ({"start_timeout": "0s"}, "start_timeout='0s' must be longer than zero"),
        ({"finish_timeout": "soon"}, "finish_timeout of 'work'"),
        ({"cancel_on": 7}, "cancel_on=7 must be an event type"),
        ({"cancel_on": "order..x"}, "cancel_on: glob"),
    ):
        with pytest.raises(ConfigError, match=said.replace("(", "\\(")):
            app.function(name="work", **options)(fetch)


# --- version=


async def test_a_run_shows_the_version_it_was_last_started_with(make_app: MakeApp, clock: Clock):
    """Nothing, for functions that have none."""
    seen: list[str | None] = []

    async def work(run: Run) -> None:
        seen.append(run.version)
        await run.sleep("nap", "1h")

    async def plain(run: Run) -> None:
        seen.append(run.version)

    handle = None
    for version in ("1", "2"):
        async with make_app() as app:
            app.function(version=version)(work)
            other = app.function(plain)
            handle = handle or await app.enqueue("work", queue="default")
            await other.enqueue()
            await Drain(app, clock)()
            assert version == (await app.runs.get(handle.id)).version
            assert None is (await runs_of(app, "plain"))[-1].version
            clock.advance("1h")
    assert ["1", "2", None, None] == sorted(seen, key=str)


# --- functions that are gone


async def test_a_run_whose_function_is_gone_waits_for_it(make_app: MakeApp, clock: Clock):
    """Held, with the remedy, its attempts untouched; it goes on from its steps, and sleeps as long as it would have."""
    calls: list[str] = []

    async def count() -> str:
        calls.append("counted")
        return "counted"

    async def flow(run: Run) -> list[Any]:
        counted = await run.step("count", count)
        _, came = await asyncio.gather(run.sleep("a year", "365d"), run.wait_for("go", "go.now"))
        return [counted, came and came.type]

    async with make_app() as before:
        handle = await before.function(flow).enqueue()
        await Drain(before, clock)()
        wakes_at = (await before.runs.get(handle.id)).run_at
        await before.record("go.now")

    async with make_app() as without:
        drain = Drain(without, clock)
        await drain(until="5m")
        parked = await without.runs.get(handle.id)
        assert ("held", "parked", 0) == (parked.state, parked.held_because, parked.attempt)
        assert parked.error is not None
        assert "unknown_function" == parked.error.code
        assert "start a worker that declares it" in parked.error.message

    async with make_app() as after:
        after.function(flow)
        drain = Drain(after, clock)
        await drain(until="2m")
        sleeping = await after.runs.get(handle.id)
        assert ("held", "sleep") == (sleeping.state, sleeping.reason)
        assert abs((sleeping.run_at - wakes_at).total_seconds()) < 1
        await drain(until="365d")
        assert ["counted", "go.now"] == await after.runs.result(handle.id, timeout=5)
    assert ["counted"] == calls
