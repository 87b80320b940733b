"""Schedules at work: a run per slot, by the database's clock; pausing, firing by hand, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from ostinato import App, Queue
from ostinato.engine import timetable
from ostinato.errors import StoreUnavailable, UnknownSchedule
from ostinato.model.change import Change, Committed, ScheduleMoved
from ostinato.model.schedule import Planned
from ostinato.model.view import RunView
from ostinato.store.base import FlowStore
from ostinato.telemetry import RunCompleted, ScheduleBlocked, ScheduleFired, ScheduleMissed
from ostinato.testing.clock import Clock
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock(ostinato_clock: Clock) -> Clock:
    """Shortly before noon."""
    ostinato_clock.move_to(NOON - timedelta(seconds=30))
    return ostinato_clock


@pytest.fixture
async def app(make_app: MakeApp, clock: Clock) -> AsyncIterator[App]:
    """An app that is open, shortly before noon."""
    async with make_app() as app:
        yield app


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is put forward wakes nobody."""
    monkeypatch.setattr(timetable, "LONGEST_LOOK_AHEAD", 0.02)
    monkeypatch.setattr(timetable, "BLOCKED_PAUSE", 0.02)


class Looks:
    """Counts how often timetables look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self._news = asyncio.Event()
        planned = FlowStore.planned

        async def counted(store: FlowStore, names: Sequence[str], limit: int) -> list[Planned]:
            found = await planned(store, names, limit)
            self.number += 1
            self._news.set()
            return found

        monkeypatch.setattr(FlowStore, "planned", counted)

    async def more(self, number: int) -> None:
        """Until so many looks have ended after now."""
        until = self.number + number
        async with asyncio.timeout(10):
            while self.number < until:
                self._news.clear()
                await self._news.wait()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


async def the_runs(app: App) -> list[RunView]:
    return sorted(await app.runs.list(), key=lambda run: run.id)


# --- slots ----------------------------------------------------------------------------------------------------------


async def test_the_timetable_wakes_at_the_slot(app: App, probe: Probe, clock: Clock, looks: Looks):
    """Exactly, by the database's clock, and without looking all the time."""

    @app.cron("* * * * *")
    async def tick(): ...

    clock.move_to(NOON - timedelta(seconds=1))
    async with app.worker():
        fired = await probe.next(ScheduleFired)
        await probe.next(RunCompleted, run_id=fired.run_id)
    assert (fired.schedule, fired.function, fired.slot, fired.by_hand) == ("tick", "tick", NOON, False)
    assert 0 <= fired.late < 1
    assert looks.number < 10
    (run,) = await the_runs(app)
    assert (run.id, run.invoked_by, run.input, run.run_at) == (fired.run_id, "cron:tick", {}, NOON)


async def test_a_handler_may_take_the_slot(app: App, probe: Probe, clock: Clock, looks_often: None):
    """In the schedule's own time."""

    @app.cron("30 4 * * *", tz="Asia/Kathmandu")
    async def tick(scheduled_at: datetime) -> str:
        return scheduled_at.isoformat()

    async with app.worker():
        clock.move_to(NOON + timedelta(days=1))
        fired = await probe.next(ScheduleFired)
        assert await app.runs.result(fired.run_id, timeout=10) == "2026-11-17T04:30:00+05:45"


async def test_a_schedule_is_quiet_between_its_slots(app: App, probe: Probe, looks: Looks):
    """A few looks a minute: none within half a second."""

    @app.cron("0 0 1 1 *")
    async def tick(): ...

    async with app.worker():
        await looks.more(1)
        await asyncio.sleep(0.2)  # its own declaration, and the listener's first word, wake it once more each
        before = looks.number
        await asyncio.sleep(0.5)
        assert looks.number - before <= 1


async def test_without_schedules_nobody_looks(app: App, probe: Probe, looks: Looks):
    """An app that has none pays nothing."""

    @app.function
    async def work(): ...

    async with app.worker():
        await probe.next(RunCompleted, run_id=(await work.enqueue()).id)
    assert looks.number == 0


async def test_every_slot_gets_one_run_of_many_workers(make_app: MakeApp, clock: Clock, looks_often: None):
    """Four workers, twenty slots."""
    apps = [make_app() for _ in range(4)]
    started: list[ScheduleFired] = []
    for app in apps:
        app.cron("* * * * *", name="tick", missed="all")(_nothing)
        app.telemetry.subscribe(ScheduleFired, started.append)

    async with apps[0], apps[1], apps[2], apps[3]:
        async with apps[0].worker(), apps[1].worker(), apps[2].worker(), apps[3].worker():
            for n in range(20):
                clock.move_to(NOON + n * MINUTE)
                async with asyncio.timeout(10):
                    while len(started) <= n:  # noqa: ASYNC110 - any of four apps may announce it
                        await asyncio.sleep(0.005)
        runs = await apps[0].runs.list(limit=100)
    assert [event.slot for event in started] == [NOON + n * MINUTE for n in range(20)]
    assert sorted(run.id for run in runs) == sorted(event.run_id for event in started)


async def _nothing() -> None: ...


async def test_a_run_with_jitter_starts_after_its_slot(app: App, probe: Probe, clock: Clock, looks_often: None):
    """It is there at the slot, and held."""

    @app.cron("* * * * *", jitter="100d")
    async def tick(): ...

    async with app.worker():
        clock.move_to(NOON)
        await probe.next(ScheduleFired)
        (run,) = await the_runs(app)
    assert (run.state, run.reason) == ("held", "not_due")
    assert NOON < run.run_at < NOON + timedelta(days=100)


# --- missed slots ---------------------------------------------------------------------------------------------------


async def declared(app: App) -> None:
    """Until the database knows what the app declares."""
    async with app.worker():
        pass


@pytest.mark.parametrize(
    ("rule", "slots"),
    [("skip", []), ("once", [12 + 3]), ("all", [12, 13, 14, 15])],
)
async def test_slots_that_came_while_nobody_worked(
    app: App, probe: Probe, clock: Clock, rule: str, slots: list[int], looks: Looks
):
    """Are treated by the schedule's rule when the next worker starts, and what gets no run is said to be missed."""

    @app.cron("0 * * * *", missed=rule)
    async def tick(): ...

    await declared(app)
    clock.move_to(NOON + timedelta(hours=3, minutes=30))
    async with app.worker():
        await looks.more(2)
        fired = [(await probe.next(ScheduleFired)).slot.hour for _ in slots]
    assert slots == fired
    missed = [(event.since.hour, event.until.hour) for event in probe.seen(ScheduleMissed)]
    assert missed == ([] if rule == "all" else [(12, 15)])
    assert len(await the_runs(app)) == len(slots)
    assert (await app.schedules.get("tick")).next_at == NOON + timedelta(hours=4)


async def test_a_changed_expression_counts_from_its_start(make_app: MakeApp, clock: Clock):
    """The next worker brings it along; slots of the old one are over."""
    for expression in ("0 * * * *", "15 18 * * *"):
        async with make_app() as app:
            app.cron(expression, name="tick")(_nothing)
            await declared(app)
            clock.move_to(NOON + timedelta(hours=3, minutes=30))
            shown = await app.schedules.get("tick")
    assert (shown.expression, shown.next_at) == ("15 18 * * *", NOON + timedelta(hours=6, minutes=15))
    assert shown.origin.endswith("test_schedules:_nothing")


async def test_who_does_not_declare_a_schedule_does_not_fire_it(
    make_app: MakeApp, clock: Clock, looks_often: None, looks: Looks, monkeypatch: pytest.MonkeyPatch
):
    """A deploy without it ends it."""
    monkeypatch.setattr(timetable, "KEEP_EVERY", 0.0)
    async with make_app() as before, make_app() as after:
        before.cron("* * * * *", name="removed")(_nothing)
        await declared(before)
        after.cron("* * * * *", name="kept")(_nothing)
        with Probe(after.telemetry) as probe:
            async with after.worker():
                clock.move_to(NOON + 10 * MINUTE)
                await probe.next(ScheduleFired, schedule="kept")
                await looks.more(3)
            assert probe.seen(ScheduleFired, schedule="removed") == []
        states = {each.name: each.state for each in await after.schedules.list()}
    assert states == {"kept": "active", "removed": "undeclared"}


# --- pausing --------------------------------------------------------------------------------------------------------


async def test_a_paused_schedule_does_not_fire(app: App, probe: Probe, clock: Clock, looks_often: None, looks: Looks):
    """Not at its slots, and not because a worker starts."""

    @app.cron("* * * * *")
    async def tick(): ...

    await declared(app)
    assert (await app.schedules.pause("tick")).state == "paused"
    for minute in (0, 10):
        clock.move_to(NOON + minute * MINUTE)
        async with app.worker():
            await looks.more(3)
    assert (probe.seen(ScheduleFired), await the_runs(app)) == ([], [])


async def test_resuming_wakes_the_timetable(app: App, probe: Probe, clock: Clock, looks: Looks):
    """It fires at the very next slot, and what came meanwhile is over."""

    @app.cron("* * * * *")
    async def tick(): ...

    await declared(app)
    await app.schedules.pause("tick")
    async with app.worker():
        await looks.more(1)
        clock.move_to(NOON + timedelta(minutes=9, seconds=58))
        resumed = await app.schedules.resume("tick")
        assert (resumed.paused, resumed.next_at) == (False, NOON + 10 * MINUTE)
        assert (await probe.next(ScheduleFired)).slot == NOON + 10 * MINUTE
    assert probe.seen(ScheduleMissed) == []


async def test_what_is_not_there_is_told(app: App):
    """With the one that may be meant."""
    app.cron("@daily", name="nightly")(_nothing)
    with pytest.raises(UnknownSchedule, match=r"declare it with @app\.cron and start a worker once"):
        await app.schedules.get("nightly")
    await declared(app)
    for verb in (app.schedules.get, app.schedules.pause, app.schedules.resume, app.schedules.fire):
        with pytest.raises(UnknownSchedule, match=r"no schedule is named 'nightyl'; did you mean 'nightly'\?"):
            await verb("nightyl")


# --- by hand --------------------------------------------------------------------------------------------------------


async def test_firing_by_hand_leaves_the_schedule_alone(make_app: MakeApp, app: App, probe: Probe):
    """A run starts now, marked as such, from any process; also while the schedule is paused."""

    @app.cron("0 3 * * *", tz="Europe/Paris", input={"tier": "gold"}, jitter="1d")
    async def tick(tier: str, scheduled_at: datetime) -> list[str]:
        return [tier, scheduled_at.isoformat()]

    await declared(app)
    before = await app.schedules.pause("tick")
    async with make_app() as elsewhere:
        with Probe(elsewhere.telemetry) as there:
            handle = await elsewhere.schedules.fire("tick")
            fired = await there.next(ScheduleFired)
    assert (fired.run_id, fired.by_hand, fired.schedule, fired.late) == (handle.id, True, "tick", 0.0)
    async with app.worker():
        tier, slot = await app.runs.result(handle.id, timeout=10)
    assert (tier, slot.endswith("+01:00")) == ("gold", True)
    assert datetime.fromisoformat(slot) == fired.slot
    assert (await app.runs.get(handle.id)).invoked_by == "fire:tick"
    after = await app.schedules.get("tick")
    assert (after.next_at, after.last_slot, after.last_run_id, after.paused) == (before.next_at, None, None, True)


async def test_firing_from_a_handler_says_which_run_it_was(app: App, probe: Probe):
    """As any enqueue does."""
    app.cron("@yearly", name="tick")(_nothing)

    @app.function
    async def work() -> str:
        return (await app.schedules.fire("tick")).id

    async with app.worker():
        handle = await work.enqueue()
        started = await handle.result(timeout=10)
    assert (await app.runs.get(started)).invoked_by == f"run:{handle.id}"


# --- trouble --------------------------------------------------------------------------------------------------------


async def test_a_full_queue_blocks_its_schedules_alone(
    make_app: MakeApp, clock: Clock, looks_often: None, database: Database
):
    """The slot waits for room; the others go on."""
    queues = {"default": 10, "small": Queue(1, max_waiting=1)}
    async with make_app(queues=queues) as app:
        gate = asyncio.Event()

        @app.cron("* * * * *", queue="small", missed="all")
        async def slow():
            await gate.wait()

        @app.cron("* * * * *")
        async def quick(): ...

        with Probe(app.telemetry) as probe:
            async with app.worker():
                for minute in range(3):
                    clock.move_to(NOON + minute * MINUTE)
                    assert (await probe.next(ScheduleFired, schedule="quick")).slot == NOON + minute * MINUTE
                    if minute < 2:  # one runs, one waits
                        await probe.next(ScheduleFired, schedule="slow")
                blocked = await probe.next(ScheduleBlocked)
                assert (blocked.schedule, "may hold 1 waiting runs" in blocked.error) == ("slow", True)
                assert (await app.schedules.get("slow")).next_at == NOON + 2 * MINUTE
                gate.set()
                assert (await probe.next(ScheduleFired, schedule="slow")).slot == NOON + 2 * MINUTE


@pytest.mark.parametrize("column", ["expression", "tz"])
async def test_a_schedule_that_cannot_be_read_blocks_no_other(
    app: App, probe: Probe, clock: Clock, looks_often: None, database: Database, column: str
):
    """A machine may know fewer time zones than the one that declared it."""
    app.cron("* * * * *", name="broken")(_nothing)
    app.cron("* * * * *", name="whole")(_other)
    async with app.worker():
        database.query(f"update ostinato_schedules set {column} = 'Mars/Olympus' where name = 'broken'")
        clock.move_to(NOON)
        await probe.next(ScheduleFired, schedule="whole")
        blocked = await probe.next(ScheduleBlocked, schedule="broken")
    assert "Mars/Olympus" in blocked.error


async def _other() -> None: ...


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
async def test_a_lost_answer_is_no_second_run(
    app: App,
    probe: Probe,
    clock: Clock,
    looks_often: None,
    looks: Looks,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
):
    """Whether the slot's commit had come through or not, there is one run."""
    commit, lost = FlowStore.commit, list[Change]()

    async def lossy(store: FlowStore, changes: Sequence[Change]) -> Committed:
        if lost or not any(isinstance(change, ScheduleMoved) for change in changes):
            return await commit(store, changes)
        lost.extend(changes)
        if committed:
            await commit(store, changes)
        raise StoreUnavailable("the connection was lost")

    monkeypatch.setattr(FlowStore, "commit", lossy)

    @app.cron("* * * * *")
    async def tick(): ...

    async with app.worker():
        clock.move_to(NOON)
        await probe.next(RunCompleted)
        await looks.more(2)
    assert len(lost) == 2
    (run,) = await the_runs(app)
    assert run.invoked_by == "cron:tick"


async def test_the_worker_says_that_it_still_declares_its_schedules(
    app: App, clock: Clock, looks_often: None, looks: Looks, monkeypatch: pytest.MonkeyPatch
):
    """So that people see which schedules are alive."""
    monkeypatch.setattr(timetable, "KEEP_EVERY", 0.0)
    app.cron("@yearly", name="tick")(_nothing)
    async with app.worker():
        clock.move_to(NOON + 10 * MINUTE)
        await looks.more(3)
        assert (await app.schedules.get("tick")).state == "active"
    clock.move_to(NOON + 20 * MINUTE)
    assert (await app.schedules.get("tick")).state == "undeclared"
