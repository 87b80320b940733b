"""Schedules in the database: declared, moved once per slot together with their runs, paused and resumed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw, structs

from ostinato.errors import QueueFull, UnknownFunction
from ostinato.ids import new_id
from ostinato.model.change import Committed
from ostinato.model.schedule import Firing, Missed, Planned, Schedule, fire, micros, moment
from ostinato.model.view import ScheduleView
from ostinato.store import flows
from ostinato.store.ports import DeclaredQueue, SchedulesChanged, Store
from tests.store.databases import Database
from tests.store.samples import FUNCTION, QUEUE, a_claimed_run, completed, view

MINUTE = timedelta(minutes=1)
DAY = 86400.0


def a_schedule(name: str = "nightly", **fields: Any) -> Schedule:
    return Schedule(**{"name": name, "function": FUNCTION, "expression": "* * * * *", "origin": "radio:mix", **fields})


async def declared(store: Store, *schedules: Schedule) -> None:
    await store.declare_schedules(schedules or [a_schedule()])


async def now_of(store: Store) -> datetime:
    return moment(await store.views.moment())


async def a_look(store: Store, name: str = "nightly") -> Planned:
    """The schedule as a worker sees it."""
    (planned,) = await store.planned([name], 10)
    return planned


async def a_due_schedule(database: Database, **fields: Any) -> Planned:
    """One whose slot has just come."""
    await declared(database.store, a_schedule(**fields))
    await database.advance(60)
    planned = await a_look(database.store)
    assert planned.is_due
    return planned


async def fired(store: Store, planned: Planned) -> tuple[Firing, Committed]:
    firing = fire(planned, new_id)
    return firing, await store.commit(firing.changes)


async def seen(store: Store, name: str = "nightly") -> ScheduleView:
    (found,) = await store.views.schedules(name)
    return found


# --- declaring ------------------------------------------------------------------------------------------------------


async def test_a_declared_schedule_waits_for_its_next_slot(store: Store):
    """By the database's clock."""
    before = await now_of(store)
    await declared(store, a_schedule(expression="*/5 * * * *", tz="Europe/Paris"))
    planned = await a_look(store)
    assert before < planned.next_at <= before + 6 * MINUTE
    assert (planned.next_at.minute % 5, planned.next_at.second, planned.next_at.microsecond) == (0, 0, 0)
    assert before <= planned.now <= await now_of(store)


async def test_everything_declared_comes_back(store: Store):
    """To whoever fires it, and to people."""
    schedule = a_schedule(
        "Nächtlich 🌙",
        expression="0 3 * * mon-fri",
        tz="America/New_York",
        missed=Missed.ALL,
        catch_up=7.5,
        jitter=2.5,
        priority=-7,
        input=Raw(b'{"n":[1,2.5,"x"]}'),
        gives_slot=True,
    )
    await declared(store, schedule)

    planned = await a_look(store, schedule.name)
    shown = await seen(store, schedule.name)

    found, given = planned.schedule, schedule
    for name in Schedule.__struct_fields__:
        if name != "input":
            assert getattr(given, name) == getattr(found, name) == getattr(shown, name), name
    assert bytes(found.input).replace(b" ", b"") == b'{"n":[1,2.5,"x"]}'
    assert shown.input == {"n": [1, 2.5, "x"]}
    assert (shown.queue, shown.paused, shown.declared, shown.state) == (QUEUE, False, True, "active")
    assert (shown.next_at, shown.last_slot, shown.last_run_id, shown.last_state) == (planned.next_at, None, None, None)


async def test_declaring_again_leaves_a_missed_slot_to_the_rule(database: Database):
    """A worker that starts after an outage does not forget what came meanwhile."""
    planned = await a_due_schedule(database)
    await declared(database.store)
    assert (await a_look(database.store)).next_at == planned.next_at


async def test_a_changed_expression_begins_anew(database: Database):
    """From now, also when a slot of the old one is due."""
    await a_due_schedule(database)
    await declared(database.store, a_schedule(expression="0 0 1 1 *"))
    planned = await a_look(database.store)
    assert (planned.next_at.month, planned.next_at.day) == (1, 1)
    assert planned.next_at > planned.now


async def test_other_changes_keep_the_slot(database: Database):
    """Of input or rule: the slot that is due stays due, and gets what is declared now."""
    planned = await a_due_schedule(database)
    await declared(database.store, a_schedule(input=Raw(b'{"n":2}'), missed=Missed.SKIP))
    again = await a_look(database.store)
    assert (again.next_at, again.schedule.missed, bytes(again.schedule.input).replace(b" ", b"")) == (
        planned.next_at,
        Missed.SKIP,
        b'{"n":2}',
    )


async def test_no_slot_comes_again_by_declaring(database: Database):
    """A worker that declares a schedule with an old idea of the time does not bring back a slot that has fired."""
    planned = await a_due_schedule(database)
    await fired(database.store, planned)
    moved = await a_look(database.store)
    await database.advance(-60)

    await declared(database.store, a_schedule(expression="*/1 * * * *"))

    assert (await a_look(database.store)).next_at >= moved.next_at


async def test_whoever_declares_late_does_not_bring_a_slot_back(database: Database):
    """It worked out what comes next, was paused for a while, and another worker has declared and fired it meanwhile."""
    planned = await a_due_schedule(database)
    await fired(database.store, planned)
    moved = await a_look(database.store)
    stale = {**structs.asdict(a_schedule()), "next_at": micros(planned.next_at)}

    await database.store.write(flows.reading("declare_schedules", schedules=flows.encoded([stale])))  # type: ignore[attr-defined]

    assert (await a_look(database.store)).next_at == moved.next_at


async def test_several_are_declared_at_once_by_everybody(database: Database):
    """Workers that start together agree."""
    stores = [await database.another() for _ in range(4)]
    schedules = [a_schedule(f"schedule {n}", expression="@yearly") for n in range(20)]
    await asyncio.gather(*(store.declare_schedules(schedules[:: 1 - 2 * (n % 2)]) for n, store in enumerate(stores)))
    planned = await database.store.planned([each.name for each in schedules], 100)
    assert [each.name for each in schedules] == sorted((each.schedule.name for each in planned), key=_number)
    assert len({each.next_at for each in planned}) == 1


def _number(name: str) -> int:
    return int(name.split()[1])


# --- looking --------------------------------------------------------------------------------------------------------


async def test_only_those_asked_for_are_planned_the_next_first(store: Store):
    """A worker fires what it declares."""
    await declared(
        store,
        a_schedule("a", expression="0 0 1 1 *"),
        a_schedule("b"),
        a_schedule("c"),
        a_schedule("d", tz="Asia/Tokyo"),
    )
    assert [each.schedule.name for each in await store.planned(["a", "b", "d"], 10)] == ["b", "d", "a"]
    assert [each.schedule.name for each in await store.planned(["a", "b", "d"], 1)] == ["b"]
    assert await store.planned([], 10) == []


# --- firing ---------------------------------------------------------------------------------------------------------


async def test_a_slot_starts_a_run_and_moves_the_schedule(database: Database):
    """In one commit."""
    planned = await a_due_schedule(database, priority=3, input=Raw(b'{"n":1}'), gives_slot=True, tz="Europe/Paris")
    firing, committed = await fired(database.store, planned)
    ((slot, started),) = firing.runs

    assert committed == Committed()
    run = await view(database.store, started.id)
    assert (run.function, run.queue, run.priority, run.invoked_by) == (FUNCTION, QUEUE, 3, "cron:nightly")
    assert (run.run_at, run.state) == (slot, "ready")
    assert run.input["n"] == 1
    assert datetime.fromisoformat(run.input["scheduled_at"]) == slot
    assert run.input["scheduled_at"].endswith(("+01:00", "+02:00"))
    shown = await seen(database.store)
    assert (shown.next_at, shown.last_slot, shown.last_run_id, shown.last_state) == (
        slot + MINUTE,
        slot,
        run.id,
        "ready",
    )


async def test_a_run_with_jitter_is_held_until_its_moment(database: Database):
    """The slot is the slot; the run waits."""
    planned = await a_due_schedule(database, jitter=1e6)
    firing, _ = await fired(database.store, planned)
    run = await view(database.store, firing.runs[0][1].id)
    assert (run.state, run.reason) == ("held", "not_due")


async def test_of_those_who_fire_a_slot_one_does(database: Database):
    """Whoever comes second is refused, and nothing of theirs is written."""
    planned = await a_due_schedule(database)
    first, accepted = await fired(database.store, planned)
    second, refused = await fired(await database.another(), planned)

    assert accepted.unmoved == frozenset()
    assert refused.unmoved == {"nightly"}
    assert await database.count("runs") == 1
    assert (await seen(database.store)).last_run_id == first.runs[0][1].id
    assert second.runs[0][1].id not in await database.store.views.existing([second.runs[0][1].id])


async def test_many_who_fire_at_the_same_moment_start_one_run_per_slot(database: Database):
    """Of any number of workers, over many slots, whichever way they meet."""
    stores = [await database.another() for _ in range(5)]
    planned = await a_due_schedule(database, missed=Missed.ALL)
    slots = []
    for _ in range(25):
        answers = await asyncio.gather(*(fired(store, planned) for store in stores))
        winners = [firing for firing, committed in answers if not committed.unmoved]
        assert len(winners) == 1
        slots += [slot for slot, _ in winners[0].runs]
        await database.advance(60)
        planned = await a_look(database.store)
    assert slots == [slots[0] + n * MINUTE for n in range(len(slots))]
    assert await database.count("runs") == len(slots) >= 25


@pytest.mark.parametrize(
    "between",
    [
        lambda database: database.store.pause_schedule("nightly"),
        lambda database: database.store.declare_schedules([a_schedule(expression="*/2 * * * *")]),
        lambda database: database.query("update ostinato_schedules set expression = '*/2 * * * *'"),
        lambda database: database.query("update ostinato_schedules set tz = 'Asia/Tokyo'"),
    ],
    ids=["paused", "declared otherwise", "another expression", "another zone"],
)
async def test_what_changed_since_it_was_looked_at_does_not_fire(database: Database, between: Any):
    """The fence is all that the slot was worked out from."""
    planned = await a_due_schedule(database)
    await between(database)
    _, refused = await fired(database.store, planned)
    assert refused.unmoved == {"nightly"}
    assert await database.count("runs") == 0


async def test_a_run_that_cannot_be_inserted_leaves_the_schedule(database: Database):
    """The slot is not lost: it stays due."""
    await database.store.declare([], [DeclaredQueue(QUEUE, 1)])
    planned = await a_due_schedule(database)
    await fired(database.store, planned)
    await database.advance(60)
    again = await a_look(database.store)

    with pytest.raises(QueueFull):
        await fired(database.store, again)

    assert (await a_look(database.store)).next_at == again.next_at
    assert await database.count("runs") == 1


async def test_a_function_that_nobody_declared_starts_nothing(database: Database):
    """And the slot stays due."""
    planned = await a_due_schedule(database, function="nobody")
    with pytest.raises(UnknownFunction):
        await fired(database.store, planned)
    assert (await a_look(database.store)).next_at == planned.next_at


async def test_slots_without_a_run_are_moved_past(database: Database):
    """Skipping is a move like any other, and fenced."""
    await declared(database.store, a_schedule(missed=Missed.SKIP, expression="@yearly"))
    await database.advance(366 * DAY)
    planned = await a_look(database.store)
    firing, committed = await fired(database.store, planned)
    assert (firing.runs, committed.unmoved) == ([], frozenset())
    assert (await a_look(database.store)).next_at > planned.now
    assert (await fired(database.store, planned))[1].unmoved == {"nightly"}
    assert await database.count("runs") == 0


async def test_each_schedule_of_a_commit_is_fenced_by_itself(database: Database):
    """One that somebody else has moved keeps no other from going on, nor a settlement beside it."""
    await declared(database.store, a_schedule("a"), a_schedule("b"))
    await database.advance(60)
    a, b = sorted(await database.store.planned(["a", "b"], 10), key=lambda each: each.schedule.name)
    run = await a_claimed_run(database.store)
    await fired(database.store, a)
    mine, theirs = fire(a, new_id), fire(b, new_id)

    committed = await database.store.commit([*mine.changes, completed(run), *theirs.changes])

    assert committed.unmoved == {"a"}
    assert committed.refused == frozenset()
    assert (await view(database.store, run)).state == "completed"
    ids = [each.runs[0][1].id for each in (mine, theirs)]
    assert await database.store.views.existing(ids) == {ids[1]}


# --- pausing --------------------------------------------------------------------------------------------------------


async def test_a_paused_schedule_is_not_planned(database: Database):
    """Not even after a worker has declared it again."""
    await a_due_schedule(database)
    assert await database.store.pause_schedule("nightly")
    assert await database.store.pause_schedule("nightly")
    await declared(database.store, a_schedule(expression="*/2 * * * *"))
    assert await database.store.planned(["nightly"], 10) == []
    shown = await seen(database.store)
    assert (shown.state, shown.paused, shown.upcoming(3)) == ("paused", True, [])


async def test_a_resumed_schedule_goes_on_from_its_next_slot(database: Database):
    """What came while it was paused is over."""
    await declared(database.store)
    await database.store.pause_schedule("nightly")
    await database.advance(DAY)
    now = await now_of(database.store)

    assert await database.store.resume_schedule("nightly")

    planned = await a_look(database.store)
    assert now < planned.next_at <= now + 2 * MINUTE


async def test_resuming_what_is_not_paused_changes_nothing(database: Database):
    """A slot that is due stays due."""
    planned = await a_due_schedule(database)
    assert await database.store.resume_schedule("nightly")
    assert (await a_look(database.store)).next_at == planned.next_at


async def test_what_is_not_there_cannot_be_paused(store: Store):
    """And it is said."""
    assert not await store.pause_schedule("nobody")
    assert not await store.resume_schedule("nobody")
    assert await store.views.schedules("nobody") == []


async def test_who_listens_is_told(database: Database):
    """Of declaring, pausing and resuming, by anybody on PostgreSQL, and by this process on SQLite."""
    store, told = database.store, asyncio.Queue[object]()
    listener = store.listener(told.put_nowait)
    await listener.start()
    try:
        async with asyncio.timeout(10):
            while not listener.working:
                await told.get()
            for change in (
                store.declare_schedules([a_schedule()]),
                store.pause_schedule("nightly"),
                store.resume_schedule("nightly"),
            ):
                await change
                while not isinstance(await told.get(), SchedulesChanged):
                    pass
    finally:
        await listener.stop()


# --- people ---------------------------------------------------------------------------------------------------------


async def test_the_next_slots_are_told_in_the_schedules_time(store: Store):
    """Beginning with the one it waits for."""
    await declared(store, a_schedule(expression="0 3 * * *", tz="Europe/Paris"))
    shown = await seen(store)
    slots = shown.upcoming(3)
    assert slots[0] == shown.next_at
    assert [(slot.hour, slot.minute) for slot in slots] == [(3, 0)] * 3
    assert slots[0] < slots[1] < slots[2]
    assert {str(slot.tzinfo) for slot in slots} == {"Europe/Paris"}


async def test_schedules_are_listed_by_name(store: Store):
    """All of them."""
    await declared(store, a_schedule("b"), a_schedule("a"))
    assert [each.name for each in await store.views.schedules()] == ["a", "b"]


async def test_a_schedule_that_no_worker_declares_any_more_says_so(database: Database):
    """Three minutes after the last one was there; and comes back with the next."""
    await declared(database.store, a_schedule("kept"), a_schedule("left"))
    for _ in range(4):
        await database.advance(59)
        await database.store.keep_schedules(["kept"])
    assert [each.state for each in await database.store.views.schedules()] == ["active", "undeclared"]
    assert (await seen(database.store, "left")).upcoming(1) == []
    await declared(database.store, a_schedule("left"))
    assert (await seen(database.store, "left")).state == "active"


async def test_keeping_writes_once_a_minute(database: Database):
    """However many workers there are."""
    await declared(database.store)
    first = (await seen(database.store)).seen_at
    await database.store.keep_schedules(["nightly"])
    assert (await seen(database.store)).seen_at == first
    await database.advance(60)
    await database.store.keep_schedules(["nightly"])
    assert (await seen(database.store)).seen_at > first


async def test_what_nobody_has_declared_for_a_month_is_forgotten(database: Database):
    """Except what an operator has paused."""
    await declared(database.store, a_schedule("kept"), a_schedule("left"), a_schedule("paused"))
    await database.store.pause_schedule("paused")
    await database.advance(29 * DAY)
    await database.store.tidy()
    assert len(await database.store.views.schedules()) == 3
    await database.store.keep_schedules(["kept"])
    await database.advance(2 * DAY)
    await database.store.tidy()
    assert [each.name for each in await database.store.views.schedules()] == ["kept", "paused"]


def test_utc_is_what_slots_are_kept_in():
    """Whatever the machine's zone is."""
    assert moment(0) == datetime(1970, 1, 1, tzinfo=UTC)
