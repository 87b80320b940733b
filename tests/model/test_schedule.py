"""Slots: when expressions come true, across changes of the clocks; and what becomes of those that were missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Raw, json

from ostinato.errors import ConfigError
from ostinato.model.change import RunInserted, ScheduleMoved
from ostinato.model.schedule import (
    NICKNAMES,
    Cron,
    Known,
    Missed,
    Planned,
    Schedule,
    due,
    fire,
    first_slot,
    micros,
    moment,
)

MINUTE = timedelta(minutes=1)
ZONES = ["Europe/Paris", "America/New_York", "UTC"]


def at(text: str) -> datetime:
    """An instant, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def local(slots: list[datetime], tz: str) -> list[str]:
    """Slots as the clock on the wall shows them."""
    return [f"{slot.astimezone(ZoneInfo(tz)):%d %H:%M %z}" for slot in slots]


def some(expression: str, tz: str, after: str, number: int = 4) -> list[str]:
    """The next slots of an expression, on the wall."""
    return local(list(islice(Cron(expression, tz).following(at(after)), number)), tz)


# --- expressions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nickname", NICKNAMES)
def test_nicknames_stand_for_expressions(nickname: str):
    """In any case, and with the same slots."""
    start = at("2026-11-16T12:34Z")
    assert Cron(NICKNAMES[nickname]).after(start) == Cron(nickname).after(start) == Cron(nickname.upper()).after(start)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("0 25 * * *", "bad hour"),
        ("60 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("0 3 * *", "it has 4 fields and needs 5"),
        ("* 0 3 * * *", "it has 6 fields and needs 5"),
        ("", "it has 0 fields"),
        ("hourly", "it has 1 field and needs 5"),
        ("@reboot", "the nicknames are @yearly,"),
        ("0 0 * 2 1#5,2#9", "bad day-of-week"),
        ("9" * 5000 + " * * * *", "at most 200 characters"),
        (None, "it must be text"),
    ],
)
def test_bad_expressions_are_refused(expression: Any, why: str):
    """With what is wrong, and how it is written."""
    with pytest.raises(ConfigError) as refused:
        Cron(expression, what="schedule 'nightly'")
    assert str(refused.value).startswith("schedule 'nightly': ")
    assert why in str(refused.value)
    assert "like '0 3 * * *'" in str(refused.value)


@pytest.mark.parametrize(
    ("tz", "remedy"),
    [
        ("Europe/Pariss", "did you mean 'Europe/Paris'?"),
        ("europe/paris", "did you mean 'Europe/Paris'?"),
        ("../../etc/passwd", "like 'Europe/Paris'"),
        ("/etc/passwd", "like 'Europe/Paris'"),
        ("", "like 'Europe/Paris'"),
        ("Europe", "did you mean"),
        (None, "like 'Europe/Paris'"),
        (7, "like 'Europe/Paris'"),
    ],
)
def test_bad_zones_are_refused(tz: Any, remedy: str):
    """With the one that may be meant."""
    with pytest.raises(ConfigError, match="schedule 'nightly': no time zone is named") as refused:
        Cron("@daily", tz, what="schedule 'nightly'")
    assert remedy in str(refused.value)


def test_an_expression_in_words():
    """For people."""
    assert Cron("30 2 * * mon-fri", "Europe/Paris").explained() == "At 02:30 on Monday through Friday"


# --- changes of the clocks ------------------------------------------------------------------------------------------


def test_a_time_that_the_day_has_twice_counts_once():
    """In Paris 02:30 comes twice on 25 October 2026: the first is the slot."""
    assert some("30 2 * * *", "Europe/Paris", "2026-10-24T12:00Z", 2) == ["25 02:30 +0200", "26 02:30 +0100"]


def test_in_the_repeated_hour_the_slot_is_over():
    """Whoever asks between the first and the second 02:30 is not sent back to the first."""
    assert some("30 2 * * *", "Europe/Paris", "2026-10-25T01:10Z", 1) == ["26 02:30 +0100"]


def test_a_time_that_the_day_does_not_have_comes_at_the_jump():
    """In New York the clocks go from 02:00 to 03:00 on 8 March 2026."""
    assert some("30 2 * * *", "America/New_York", "2026-03-07T12:00Z", 2) == ["08 03:00 -0400", "09 02:30 -0400"]


def test_what_is_left_out_and_what_comes_after_are_one():
    """A jump is one slot, however many of the expression's times lie in it."""
    assert some("0,30 2,3 * * *", "Europe/Paris", "2026-03-29T00:00Z", 3) == [
        "29 03:00 +0200",
        "29 03:30 +0200",
        "30 02:00 +0200",
    ]


def test_every_hour_is_every_hour_that_passes():
    """With a `*` the repeated hour counts, and the one left out does not."""
    assert some("30 * * * *", "Europe/Paris", "2026-10-24T23:59Z", 3) == [
        "25 02:30 +0200",
        "25 02:30 +0100",
        "25 03:30 +0100",
    ]
    assert some("30 * * * *", "Europe/Paris", "2026-03-29T00:00Z", 2) == ["29 01:30 +0100", "29 03:30 +0200"]
    assert some("*/30 2 * * *", "Europe/Paris", "2026-03-29T00:00Z", 1) == ["30 02:00 +0200"]


# --- against brute force --------------------------------------------------------------------------------------------

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Looking at every minute takes its time, on a busy machine even more."""

FIELDS = {"minute": range(60), "hour": range(24), "day": range(1, 32), "month": range(1, 13), "weekday": range(7)}

Field = tuple[str, frozenset[int]]
"""How a field is written, and the numbers it stands for."""


@st.composite
def a_field(draw: st.DrawFn, name: str, stars: float) -> Field:
    numbers = FIELDS[name]
    match draw(st.sampled_from(["*", "*/n", "list", "range", "range/n"] if stars else ["list", "range", "range/n"])):
        case "*":
            return "*", frozenset(numbers)
        case "*/n":
            step = draw(st.integers(1, len(numbers)))
            return f"*/{step}", frozenset(numbers[::step])
        case "list":
            chosen = draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=4, unique=True))
            return ",".join(map(str, chosen)), frozenset(chosen)
    first, last = sorted(draw(st.tuples(st.sampled_from(numbers), st.sampled_from(numbers))))
    step = draw(st.integers(1, 5))
    if first == last:
        return str(first), frozenset([first])
    text = f"{first}-{last}" if step == 1 else f"{first}-{last}/{step}"
    return text, frozenset(range(first, last + 1, step))


def expressions() -> st.SearchStrategy[list[Field]]:
    anything = st.tuples(a_field("minute", 1), a_field("hour", 1))
    fixed = st.tuples(a_field("minute", 0), a_field("hour", 0))
    days = st.tuples(a_field("day", 1), st.just(("*", frozenset(FIELDS["month"]))), a_field("weekday", 1))
    every_day = st.just(tuple(("*", frozenset(FIELDS[name])) for name in ("day", "month", "weekday")))
    return st.tuples(anything | fixed, every_day | days).map(lambda parts: [*parts[0], *parts[1]])


def comes_true(fields: list[Field], wall: datetime) -> bool:
    (_, minutes), (_, hours), (day_text, days), (_, months), (weekday_text, weekdays) = fields
    on_day, on_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
    both = day_text.startswith("*") or weekday_text.startswith("*")
    on_date = (on_day and on_weekday) if both else (on_day or on_weekday)
    return wall.minute in minutes and wall.hour in hours and wall.month in months and on_date


def brute_force(fields: list[Field], tz: str, first: datetime, last: datetime) -> list[datetime]:
    """Looks at every minute: of the time that passes if there is a `*`, else of every day's calendar."""
    zone = ZoneInfo(tz)
    if any(text.startswith("*") for text, _ in fields[:2]):
        minutes = (first + n * MINUTE for n in range(int((last - first) / MINUTE) + 1))
        return [minute for minute in minutes if comes_true(fields, minute.astimezone(zone))]
    begin = (first.astimezone(zone) - timedelta(hours=3)).replace(tzinfo=None)
    walls = (begin + n * MINUTE for n in range(int((last - first) / MINUTE) + 6 * 60))
    found = {instant(wall, zone) for wall in walls if comes_true(fields, wall)}
    return sorted(slot for slot in found if first <= slot <= last)


def instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the wall shows this for the first time; for a time that it leaves out, the next that it shows."""
    for later in count():
        shown = (wall + later * MINUTE).replace(tzinfo=zone)
        if shown.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == shown.replace(tzinfo=None):
            return shown.astimezone(UTC)
    raise AssertionError("unreachable")


CHANGES = [
    at(text)
    for text in (
        "2026-03-29T01:00Z",  # Paris, to summer
        "2026-10-25T01:00Z",  # Paris, to winter
        "2026-03-08T07:00Z",  # New York, to summer
        "2026-11-01T06:00Z",  # New York, to winter
        "2024-02-29T12:00Z",
    )
]

starts = st.builds(
    lambda change, minutes: change + minutes * MINUTE, st.sampled_from(CHANGES), st.integers(-2 * 1440, 1440)
) | st.datetimes(datetime(2020, 1, 1), datetime(2032, 1, 1)).map(lambda day: day.replace(microsecond=0, tzinfo=UTC))  # noqa: DTZ001


def joined(fields: list[Field]) -> str:
    return " ".join(text for text, _ in fields)


@unhurried
@given(expressions(), st.sampled_from(ZONES), starts)
def test_slots_are_what_brute_force_finds(fields: list[Field], tz: str, start: datetime):
    """All minutes of three days, in every zone."""
    first = start.replace(second=0)
    last = first + timedelta(days=3)
    assert brute_force(fields, tz, first, last) == list(Cron(joined(fields), tz).between(first, last))


@unhurried
@given(expressions(), st.sampled_from(ZONES), starts, st.integers(0, 4000), st.integers(0, 59_999_999))
@example(
    [
        ("30", frozenset([30])),
        ("2", frozenset([2])),
        *[("*", frozenset(FIELDS[n])) for n in ("day", "month", "weekday")],
    ],
    "Europe/Paris",
    at("2026-10-24T23:00Z"),
    130,
    0,
)
def test_slots_do_not_depend_on_where_one_begins(
    fields: list[Field], tz: str, start: datetime, minutes: int, micro: int
):
    """From any moment on, what follows are those of all slots that are later."""
    first, last = start.replace(second=0), start + timedelta(days=4)
    middle = first + minutes * MINUTE + timedelta(microseconds=micro)
    cron = Cron(joined(fields), tz)
    later = [slot for slot in cron.between(first, last) if slot > middle]
    assert later == list(cron.between(middle + timedelta(microseconds=1), last))


@unhurried
@given(expressions(), st.sampled_from(ZONES), starts, st.integers(0, 10 * 1440))
def test_the_latest_slot_is_the_last_of_all(fields: list[Field], tz: str, first: datetime, minutes: int):
    """However far back it is."""
    cron, last = Cron(joined(fields), tz), first + minutes * MINUTE
    *_, expected = (None, *cron.between(first, last))
    assert expected == cron.latest(first, last)


def test_the_latest_slot_of_a_rare_expression():
    """Years back, and none at all."""
    cron = Cron("0 0 29 2 *")
    assert cron.latest(at("2020-01-01T00:00Z"), at("2027-06-01T00:00Z")) == at("2024-02-29T00:00Z")
    assert cron.latest(at("2024-03-01T00:00Z"), at("2027-06-01T00:00Z")) is None


# --- what is due ----------------------------------------------------------------------------------------------------


def a_schedule(**fields: Any) -> Schedule:
    return Schedule(**{"name": "nightly", "function": "clean_up", "expression": "0 * * * *", **fields})


def planned(next_at: str, now: str, **fields: Any) -> Planned:
    return Planned(a_schedule(**fields), at(next_at), at(now))


def hours(slots: Any) -> list[str]:
    return [f"{slot:%d %H:%M}" for slot in slots]


@pytest.mark.parametrize("rule", Missed)
def test_a_slot_that_has_just_come_gets_a_run(rule: Missed):
    """Whatever the rule, up to a minute late."""
    decided = due(planned("2026-11-16T12:00Z", "2026-11-16T12:00:59Z", missed=rule))
    assert (["16 12:00"], at("2026-11-16T13:00Z"), None) == (
        hours(decided.slots),
        decided.next_at,
        decided.missed_since,
    )


@pytest.mark.parametrize(("rule", "slots"), [("skip", []), ("once", ["16 12:00"]), ("all", ["16 12:00"])])
def test_a_slot_that_came_while_nobody_was_there(rule: str, slots: list[str]):
    """Is made up for, unless that is not wanted."""
    decided = due(planned("2026-11-16T12:00Z", "2026-11-16T12:10Z", missed=Missed(rule)))
    assert slots == hours(decided.slots)
    assert (None if slots else at("2026-11-16T12:00Z")) == decided.missed_since


@pytest.mark.parametrize(
    ("rule", "slots", "missed_since"),
    [
        ("skip", [], "2026-11-16T12:00Z"),
        ("once", ["16 15:00"], "2026-11-16T12:00Z"),
        ("all", ["16 12:00", "16 13:00", "16 14:00", "16 15:00"], None),
    ],
)
def test_several_slots_that_came_while_nobody_was_there(rule: str, slots: list[str], missed_since: str | None):
    """None, the latest, or each; and the schedule goes on from now."""
    decided = due(planned("2026-11-16T12:00Z", "2026-11-16T15:30Z", missed=Missed(rule)))
    assert (slots, at("2026-11-16T16:00Z")) == (hours(decided.slots), decided.next_at)
    assert (None if missed_since is None else at(missed_since)) == decided.missed_since


@pytest.mark.parametrize(("rule", "slots"), [("once", []), ("all", [])])
def test_what_is_too_long_ago_is_not_made_up_for(rule: str, slots: list[str]):
    """Beyond `catch_up`."""
    decided = due(
        planned("2026-11-01T00:00Z", "2026-11-03T12:00Z", expression="@monthly", missed=Missed(rule), catch_up=86400.0)
    )
    assert (slots, at("2026-12-01T00:00Z")) == (hours(decided.slots), decided.next_at)
    assert decided.missed_since == at("2026-11-01T00:00Z")


def test_all_is_within_the_window_too():
    """The oldest of a long outage are dropped, and said to be."""
    decided = due(planned("2026-11-16T00:00Z", "2026-11-16T12:30Z", missed=Missed.ALL, catch_up=3 * 3600.0))
    assert hours(decided.slots) == ["16 10:00", "16 11:00", "16 12:00"]
    assert decided.missed_since == at("2026-11-16T00:00Z")


def test_many_slots_come_in_portions():
    """The schedule waits for the first that has not had its turn, and none is left out or repeated."""
    schedule, now, next_at = a_schedule(missed=Missed.ALL), at("2026-11-16T12:30Z"), at("2026-11-16T00:00Z")
    seen: list[datetime] = []
    while next_at <= now:
        decided = due(Planned(schedule, next_at, now), most=5)
        assert decided.missed_since is None
        seen += decided.slots
        next_at = decided.next_at
    assert seen == [at(f"2026-11-16T{hour:02}:00Z") for hour in range(13)]
    assert next_at == at("2026-11-16T13:00Z")


def test_the_rule_is_cheap_after_years():
    """Every minute, and a year without workers: half a million slots are not walked."""
    decided = due(planned("2025-01-01T00:00Z", "2026-01-01T00:00:30Z", expression="* * * * *", catch_up=1e9))
    assert hours(decided.slots) == ["01 00:00"]


def test_a_moment_that_is_no_slot_any_more_starts_nothing():
    """The rules of a zone have changed since it was worked out: it goes on, and nothing was missed."""
    decided = due(planned("2026-11-16T12:17Z", "2026-11-16T12:17:01Z"))
    assert ([], at("2026-11-16T13:00Z"), None) == (decided.slots, decided.next_at, decided.missed_since)


@unhurried
@given(
    expressions(),
    st.sampled_from(ZONES),
    starts,
    st.integers(0, 3 * 1440),
    st.sampled_from(Missed),
    st.sampled_from([0.0, 3600.0, 86400.0]),
)
def test_what_is_due_is_due(fields: list[Field], tz: str, start: datetime, minutes: int, rule: Missed, catch_up: float):
    """Runs are for slots that have come, in order; the next one has not; what has no run is said to be missed."""
    schedule = a_schedule(expression=joined(fields), tz=tz, missed=rule, catch_up=catch_up)
    next_at = schedule.cron.after(start)
    now = next_at + minutes * MINUTE
    decided = due(Planned(schedule, next_at, now), most=10_000)
    came = list(schedule.cron.between(next_at, now))
    assert decided.next_at == schedule.cron.after(now)
    assert decided.slots == [slot for slot in came if slot in set(decided.slots)]
    unfired = [slot for slot in came if slot not in set(decided.slots)]
    assert (decided.missed_since is not None) == bool(unfired)
    if came and (now - came[-1]).total_seconds() <= 60:
        assert decided.slots[-1] == came[-1]
    if rule is Missed.ONCE:
        assert len(decided.slots) <= 1


# --- firing ---------------------------------------------------------------------------------------------------------


def ids() -> Any:
    numbers = count(1)
    return lambda: f"run {next(numbers)}"


def test_firing_is_one_commit():
    """The schedule moves from the slot that was seen, together with the runs that go with it."""
    firing = fire(planned("2026-11-16T12:00Z", "2026-11-16T13:00Z", missed=Missed.ALL, priority=5), ids())
    moved, first, second = firing.changes
    assert isinstance(moved, ScheduleMoved)
    assert (moved.expected, moved.next_at) == (micros(at("2026-11-16T12:00Z")), micros(at("2026-11-16T14:00Z")))
    assert (moved.last_slot, moved.last_run_id, moved.runs) == (
        micros(at("2026-11-16T13:00Z")),
        "run 2",
        ("run 1", "run 2"),
    )
    assert isinstance(first, RunInserted)
    assert isinstance(second, RunInserted)
    assert (first.invoked_by, first.priority, first.run_at) == ("cron:nightly", 5, "2026-11-16T12:00:00+00:00")
    assert bytes(first.input) == b"{}"


def test_skipping_moves_only():
    """And leaves what was last as it is."""
    firing = fire(planned("2026-11-16T12:00Z", "2026-11-16T12:10Z", missed=Missed.SKIP), ids())
    (moved,) = firing.changes
    assert isinstance(moved, ScheduleMoved)
    assert (moved.last_slot, moved.last_run_id, moved.runs) == (None, None, ())
    assert (firing.missed_since, firing.missed_until) == (at("2026-11-16T12:00Z"), at("2026-11-16T12:10Z"))


def test_the_input_tells_the_slot_in_the_schedules_time():
    """And nothing else of the input changes, large numbers included."""
    schedule = a_schedule(
        tz="Europe/Paris", gives_slot=True, input=Raw(b'{"n": 123456789012345678901234567890, "tier": "gold"}')
    )
    fields = json.decode(schedule.input_at(at("2026-11-16T12:00Z")), type=dict[str, Raw])
    assert {name: bytes(value) for name, value in fields.items()} == {
        "n": b"123456789012345678901234567890",
        "tier": b'"gold"',
        "scheduled_at": b'"2026-11-16T13:00:00+01:00"',
    }


def test_jitter_spreads_and_is_the_same_for_everybody():
    """Between the slot and the jitter after it, by slot and schedule."""
    slots = [at("2026-11-16T00:00Z") + timedelta(hours=n) for n in range(200)]
    spread = [(a_schedule(jitter=30.0).run_at(slot) - slot).total_seconds() for slot in slots]
    assert spread == [(a_schedule(jitter=30.0).run_at(slot) - slot).total_seconds() for slot in slots]
    assert 0 <= min(spread) < 2
    assert 28 < max(spread) < 30
    assert a_schedule(jitter=30.0).run_at(slots[0]) != a_schedule(jitter=30.0, name="other").run_at(slots[0])


@given(st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1)))  # noqa: DTZ001
def test_moments_are_kept_exactly(naive: datetime):
    """To the microsecond."""
    when = naive.replace(tzinfo=UTC)
    assert when == moment(micros(when))


# --- declaring ------------------------------------------------------------------------------------------------------

NOW = at("2026-11-16T12:30Z")


def known(next_at: str, *, expression: str = "0 * * * *", tz: str = "UTC", last_slot: str | None = None) -> Known:
    return Known(expression, tz, at(next_at), None if last_slot is None else at(last_slot))


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, "2026-11-16T13:00Z"),
        (known("2026-11-16T13:00Z"), "2026-11-16T13:00Z"),
        (known("2026-11-16T11:00Z"), "2026-11-16T11:00Z"),
        (known("2026-11-16T11:00Z", expression="30 * * * *"), "2026-11-16T13:00Z"),
        (known("2026-11-16T11:00Z", tz="Europe/Paris"), "2026-11-16T13:00Z"),
        (known("2026-11-16T13:30Z", expression="30 * * * *"), "2026-11-16T13:00Z"),
        (known("2026-11-16T14:17Z"), "2026-11-16T13:00Z"),
        (known("2026-11-16T14:00Z", last_slot="2026-11-16T13:00Z"), "2026-11-16T14:00Z"),
        (known("2026-11-16T13:30Z", expression="0,30 * * * *", last_slot="2026-11-16T13:00Z"), "2026-11-16T14:00Z"),
    ],
    ids=[
        "new",
        "unchanged",
        "missed",
        "changed while missed",
        "moved to another zone",
        "changed",
        "worked out by other rules",
        "fired by a clock that was ahead",
        "changed after it fired",
    ],
)
def test_what_comes_next_for_a_schedule_that_is_declared(before: Known | None, expected: str):
    """New and changed ones begin with the next slot, missed ones are left to the rule, and no slot comes twice."""
    assert at(expected) == first_slot(a_schedule(), NOW, before)
