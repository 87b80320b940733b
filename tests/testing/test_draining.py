"""Draining: what is due is executed here and now, and told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from ostinato import (
    App,
    Cancel,
    ConfigError,
    Fatal,
    OstinatoError,
    Queue,
    Retry,
    RetryAfter,
    Run,
    RunFailed,
    UnknownFunction,
)
from ostinato.model.run import State
from ostinato.telemetry import RunClaimed
from ostinato.testing import Bind, Clock, Drain, Probe
from tests.engine.databases import database_at, notes, states

SLOW = 30.0


async def test_what_handlers_enqueue_is_executed_too(ostinato_app: App, ostinato_drain: Drain):
    """Until nothing is left; what ran is told in the order of the starts."""

    @ostinato_app.function
    async def enrich(track: int) -> dict[str, int]:
        await announce.enqueue(track=track)
        return {"album": track + 1}

    @ostinato_app.function
    def announce(track: int) -> str:
        return f"enriched {track}"

    handle = await enrich.enqueue(track=1)

    first, second = await ostinato_drain()

    assert (handle.id, "enrich", 1, {"track": 1}) == (first.run_id, first.function, first.attempt, first.input)
    assert (State.COMPLETED, {"album": 2}) == (first.state, first.output)
    assert ("announce", "enriched 1") == (second.function, second.output)
    assert await ostinato_drain() == []


async def test_what_is_due_later_stays(ostinato_app: App, ostinato_drain: Drain, ostinato_clock: Clock):
    """Until the clock says so."""

    @ostinato_app.function
    async def later() -> None: ...

    await later.options(delay="1h").enqueue()

    assert await ostinato_drain() == []
    ostinato_clock.advance("59m")
    assert await ostinato_drain() == []
    ostinato_clock.advance("1m")
    assert ["later"] == [ran.function for ran in await ostinato_drain()]


async def test_time_can_be_passed(ostinato_app: App, ostinato_drain: Drain, ostinato_clock: Clock):
    """With `until`, each run is executed when it is due, and in the end the clock is there."""
    ostinato_clock.freeze()
    began = ostinato_clock.now()
    starts: list[timedelta] = []

    @ostinato_app.function(retry=Retry("30s", "5m", "2h"))
    async def stubborn() -> None:
        starts.append(ostinato_clock.now() - began)
        raise ValueError("not yet")

    await stubborn.enqueue()

    ran = await ostinato_drain(until="1h")

    assert [0, 30, 330] == [start.total_seconds() for start in starts]
    assert [(1, "held"), (2, "held"), (3, "held")] == [(each.attempt, each.state) for each in ran]
    assert began + timedelta(hours=1) == ostinato_clock.now()
    (last,) = await ostinato_drain(until=began + timedelta(hours=3))
    assert (4, "failed", "not yet") == (last.attempt, last.state, last.message)


async def test_time_goes_on_while_it_is_passed(ostinato_app: App, ostinato_drain: Drain, ostinato_clock: Clock):
    """A clock that was not stopped is a little past the end."""
    began = ostinato_clock.now()

    @ostinato_app.function(retry=Retry("30s"))
    async def stubborn() -> None:
        raise ValueError("not yet")

    await stubborn.enqueue()

    assert ["held", "failed"] == [ran.state for ran in await ostinato_drain(until="1m")]
    assert timedelta(minutes=1) <= ostinato_clock.now() - began < timedelta(minutes=1, seconds=SLOW)


async def test_what_is_due_at_the_end_is_executed(ostinato_app: App, ostinato_drain: Drain, ostinato_clock: Clock):
    """And nothing after, to the microsecond."""
    ostinato_clock.freeze()
    began = ostinato_clock.now()
    due = [timedelta(seconds=1.000001), timedelta(minutes=10), timedelta(minutes=10, microseconds=1)]

    @ostinato_app.function
    async def tick(number: int) -> None: ...

    for number, delay in enumerate(due):
        await tick.options(run_at=began + delay).enqueue(number=number)

    assert [0, 1] == [ran.input["number"] for ran in await ostinato_drain(until=began + due[1])]
    assert began + due[1] == ostinato_clock.now()


async def test_schedules_fire_when_time_passes(ostinato_app: App, ostinato_drain: Drain):
    """Each slot has its run."""

    @ostinato_app.cron("0 * * * *")
    async def hourly() -> None: ...

    assert await ostinato_drain() == []
    assert 24 == len(await ostinato_drain(until="1d"))


async def test_a_schedule_that_cannot_fire_is_passed_by(ostinato_bind: Bind, ostinato_url: str, ostinato_clock: Clock):
    """Time goes on without it."""
    app = ostinato_bind(App(ostinato_url, queues={"full": Queue(max_waiting=1)}))

    @app.cron("0 * * * *", queue="full")
    async def hourly() -> None: ...

    drain = Drain(app, ostinato_clock)
    await drain()
    await app.queues.pause("full")
    await hourly.enqueue()
    began = ostinato_clock.now()

    assert await drain(until="3h") == []
    assert timedelta(hours=3) <= ostinato_clock.now() - began


async def test_time_needs_a_clock(ostinato_app: App):
    """The error says which."""
    with pytest.raises(ConfigError, match=r"Drain\(app, clock\)"):
        await Drain(ostinato_app)(until="1h")


class TestFailures:
    async def test_they_are_told(self, ostinato_app: App, ostinato_drain: Drain):
        """With what the handler raised; nothing is raised here."""
        error = ValueError("no such track")

        @ostinato_app.function(retry=Retry("0s"))
        async def broken() -> None:
            raise error

        await broken.enqueue()

        ran = await ostinato_drain()

        assert [(1, "held", error), (2, "failed", error)] == [(each.attempt, each.state, each.error) for each in ran]
        assert {"failed": 1} == await states(ostinato_app)

    async def test_the_first_is_raised_if_asked_for(self, ostinato_app: App, ostinato_drain: Drain):
        """As the handler raised it, from the handler's frame on, with the run in a note."""

        @ostinato_app.function
        async def broken(track: int) -> None:
            raise ValueError("no such track")

        handle = await broken.enqueue(track=42)

        with pytest.raises(ValueError, match="no such track") as caught:
            await ostinato_drain(check=True)

        assert [f"in run {handle.id} of 'broken', attempt 1, input {{'track': 42}}"] == caught.value.__notes__
        ours = [entry for entry in caught.traceback if "ostinato/engine" in str(entry.path)]
        assert ([], "broken") == (ours, caught.traceback[-1].name)

    async def test_what_a_handler_wants_is_no_failure(self, ostinato_app: App, ostinato_drain: Drain):
        """To be cancelled, or to be tried again later."""

        @ostinato_app.function
        async def wants(what: str) -> None:
            raise Cancel("not needed") if what == "cancel" else RetryAfter("30s")

        await wants.enqueue(what="cancel")
        await wants.enqueue(what="later")

        ran = await ostinato_drain(check=True)

        assert [("cancelled", "not needed"), ("held", "asked to be tried again later")] == [
            (each.state, each.message) for each in ran
        ]

    async def test_fatal_is_one(self, ostinato_app: App, ostinato_drain: Drain):
        @ostinato_app.function
        async def broken() -> None:
            raise Fatal("no such item")

        await broken.enqueue()

        with pytest.raises(Fatal, match="no such item"):
            await ostinato_drain(check=True)

    async def test_a_timeout_is_one(self, ostinato_app: App, ostinato_drain: Drain):
        """There is no exception of the handler's to raise."""

        @ostinato_app.function(timeout="50ms")
        async def sleepy() -> None:
            await asyncio.sleep(SLOW)

        await sleepy.enqueue()

        with pytest.raises(RunFailed, match=r"timeout: the handler ran longer than 0.05 s, in run .* of 'sleepy'"):
            await ostinato_drain(check=True)

    async def test_a_function_that_the_app_does_not_have_is_one(
        self, ostinato_app: App, ostinato_bind: Bind, ostinato_url: str, ostinato_clock: Clock
    ):
        """Its module was not imported, most likely."""

        @ostinato_app.function
        async def elsewhere() -> None: ...

        await elsewhere.enqueue()
        drain = Drain(ostinato_bind(App(ostinato_url)), ostinato_clock)

        (ran,) = await drain()
        assert ("held", "no function is named 'elsewhere' here") == (ran.state, ran.message)
        ostinato_clock.advance("2m")
        with pytest.raises(UnknownFunction, match=r"'elsewhere', which the app does not have.*imported\?"):
            await drain(check=True)

    async def test_what_goes_on_for_ever_is_ended(self, ostinato_app: App, ostinato_drain: Drain):
        """With the name of the function that may be to blame."""

        started = 0

        @ostinato_app.function
        async def again() -> None:
            nonlocal started
            started += 1
            await again.enqueue()

        await again.enqueue()

        with pytest.raises(OstinatoError, match=r"5 attempts were executed.*the last were of again"):
            await ostinato_drain(limit=5)
        assert started <= 6


class TestLikeAWorker:
    async def test_transactions_commit_with_the_run(self, ostinato_app: App, ostinato_drain: Drain, ostinato_url: str):
        @ostinato_app.function
        async def note(run: Run) -> str:
            async with run.transaction() as tx:
                await tx.execute("insert into notes values ($1)", "effect")
            return "noted"

        await note.enqueue()

        (ran,) = await ostinato_drain(check=True)

        assert (State.COMPLETED, "noted") == (ran.state, ran.output)
        assert ["effect"] == notes(database_at(ostinato_url))

    async def test_middleware_and_lifespans_are_there(self, ostinato_app: App, ostinato_drain: Drain):
        """And lifespans are over when the drain is."""
        seen: list[str] = []

        @ostinato_app.lifespan
        async def provide() -> AsyncIterator[dict[str, str]]:
            seen.append("opened")
            yield {"service": "up"}
            seen.append("closed")

        @ostinato_app.middleware
        async def around(run, call_next):
            seen.append("before")
            return await call_next()

        @ostinato_app.function
        async def use(run: Run) -> str:
            seen.append("handler")
            return str(run.resources["service"])

        await use.enqueue()

        assert ["up"] == [ran.output for ran in await ostinato_drain()]
        assert ["opened", "before", "handler", "closed"] == seen

    async def test_the_concurrency_of_queues_holds(self, ostinato_bind: Bind, ostinato_url: str):
        """A queue with one slot runs one at a time."""
        app = ostinato_bind(App(ostinato_url, queues={"mail": 1}))
        running, most = 0, 0

        @app.function(queue="mail")
        async def send(number: int) -> None:
            nonlocal running, most
            running, most = running + 1, max(most, running + 1)
            await asyncio.sleep(0.001)
            running -= 1

        await send.enqueue_many({"number": number} for number in range(5))

        assert [0, 1, 2, 3, 4] == [ran.input["number"] for ran in await Drain(app)()]
        assert 1 == most

    async def test_queues_that_the_app_does_not_serve_are_drained(self, ostinato_app: App, ostinato_drain: Drain):
        """Also those that come up meanwhile."""

        @ostinato_app.function(queue="elsewhere")
        async def first() -> None:
            await second.options(queue="further").enqueue()

        @ostinato_app.function
        async def second() -> None: ...

        await first.enqueue()

        assert ["first", "second"] == [ran.function for ran in await ostinato_drain()]

    async def test_a_paused_queue_is_left_alone(self, ostinato_app: App, ostinato_drain: Drain):
        @ostinato_app.function
        async def paused() -> None: ...

        await paused.enqueue()
        await ostinato_app.queues.pause("default", create=True)

        assert await ostinato_drain() == []
        assert {"ready": 1} == await states(ostinato_app)

    async def test_a_handler_may_wait_for_another_run(self, ostinato_app: App, ostinato_drain: Drain):
        """What it enqueued is started beside it."""

        @ostinato_app.function
        async def parent() -> str:
            handle = await child.enqueue()
            return str(await handle.result(timeout=SLOW))

        @ostinato_app.function
        async def child() -> str:
            return "done"

        await parent.enqueue()

        assert ["done", "done"] == [ran.output for ran in await ostinato_drain()]

    async def test_suspects_are_executed(self, ostinato_app: App, ostinato_drain: Drain, ostinato_url: str):
        """Runs whose worker died."""

        @ostinato_app.function
        async def survivor() -> None: ...

        await survivor.enqueue_many([{}, {}])
        database_at(ostinato_url).query("update ostinato_runs set suspect = true")

        assert ["survivor", "survivor"] == [ran.function for ran in await ostinato_drain()]

    async def test_it_leaves_no_worker_behind(self, ostinato_app: App, ostinato_drain: Drain):
        await ostinato_drain()

        assert [] == list(await ostinato_app.workers.list())

    async def test_a_drain_that_is_cut_short_gives_its_runs_back(
        self, ostinato_app: App, ostinato_drain: Drain, ostinato_probe: Probe
    ):
        """As a worker that is stopped does: the attempt is returned."""

        stopped: list[str | None] = []

        @ostinato_app.function
        async def endless(run: Run) -> None:
            try:
                await asyncio.sleep(SLOW)
            finally:
                stopped.append(run.stopping)

        handle = await endless.enqueue()
        draining = asyncio.create_task(ostinato_drain())
        await ostinato_probe.next(RunClaimed, run_id=handle.id)

        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining

        run = await ostinato_app.runs.get(handle.id)
        assert (State.READY, 0, ["shutdown"]) == (run.state, run.attempt, stopped)


class TestDurableFunctions:
    async def test_sleeps_are_passed_by_the_clock(
        self, ostinato_app: App, ostinato_drain: Drain, ostinato_clock: Clock
    ):
        """A month takes no time, and what was done before it is not done again."""
        ostinato_clock.freeze()
        began = ostinato_clock.now()
        done: list[tuple[str, timedelta]] = []

        async def note(what: str) -> None:
            done.append((what, ostinato_clock.now() - began))

        @ostinato_app.function
        async def remind(run: Run) -> str:
            await run.step("first", note, "first")
            await run.sleep("a month", "30d")
            await run.step("second", note, "second")
            return "reminded"

        await remind.enqueue()

        (asleep,) = await ostinato_drain(check=True)
        assert (State.HELD, "it sleeps", None) == (asleep.state, asleep.message, asleep.error)
        assert [] == await ostinato_drain(until="29d")
        (woken,) = await ostinato_drain(until="1d")
        assert (State.COMPLETED, "reminded", 1) == (woken.state, woken.output, woken.attempt)
        assert [("first", timedelta(0)), ("second", timedelta(days=30))] == done

    async def test_waits_are_met_by_events_or_by_the_clock(self, ostinato_app: App, ostinato_drain: Drain):
        """What the test records is found at the next drain."""

        @ostinato_app.function
        async def approve(run: Run, order: int) -> bool:
            match = {"$.payload.order": order}
            return await run.wait_for("approval", "order.approved", match=match, timeout="1d") is not None

        for order in (1, 2):
            await approve.enqueue(order=order)
        assert ["it waits for an event"] * 2 == [ran.message for ran in await ostinato_drain()]
        await ostinato_app.record("order.approved", {"order": 2})

        assert [({"order": 2}, True)] == [(ran.input, ran.output) for ran in await ostinato_drain()]
        assert [({"order": 1}, False)] == [(ran.input, ran.output) for ran in await ostinato_drain(until="1d")]

    async def test_children_and_step_retries_are_driven_too(self, ostinato_app: App, ostinato_drain: Drain):
        """Each start of a run is told, in order."""
        tries: list[int] = []

        async def flaky() -> None:
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("not yet")

        @ostinato_app.function
        async def child() -> int:
            return 7

        @ostinato_app.function(retry=Retry("1h", "1h"))
        async def parent(run: Run) -> int:
            await run.step("flaky", flaky)
            invoked: int = await run.invoke("child", child)
            return invoked

        await parent.enqueue()

        ran = await ostinato_drain(until="3h", check=True)

        again = "it waits for a step's next try"
        assert [again, again, "it waits for another run", None, None] == [each.message for each in ran]
        assert [("child", 7), ("parent", 7)] == [(each.function, each.output) for each in ran[3:]]


class TestPlainFunctions:
    def test_they_drain_too(self, ostinato_app: App, ostinato_drain: Drain):
        @ostinato_app.function
        async def greet(name: str) -> str:
            return f"hello {name}"

        asyncio.run(greet.enqueue(name="Ada"))

        assert ["hello Ada"] == [ran.output for ran in ostinato_drain.sync(check=True)]

    async def test_inside_an_event_loop_it_is_refused(self, ostinato_drain: Drain):
        """It would stop the loop."""
        with pytest.raises(OstinatoError, match="`await drain"):
            ostinato_drain.sync()
