"""Schedules: when an expression comes true in a time zone, and what is due by now. Now is always an argument.

A slot is a moment at which a schedule is to start a run. What a change of the clocks does to slots is cronsim's way,
which is that of Debian's cron:

- An expression with a fixed minute and hour, like `30 2 * * *`, comes true once on every day that it names. A time that
  the day has twice counts the first time; a time that the day does not have comes true when the clocks jump.
- One whose minute or hour begins with `*`, like `*/15 * * * *`, follows the time that passes: it also comes true in an
  hour that is repeated, and not in one that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple
from zlib import crc32
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Raw, Struct, json

from ..errors import ConfigError
from .change import Change, RunInserted, ScheduleMoved

SLOT = "scheduled_at"
"""The parameter by which a handler asks for the slot."""

ON_TIME = 60.0
"""Seconds that a slot may be late without being missed: workers are restarted, and clocks are not exact."""

LONGEST_EXPRESSION = 200
MOST_AT_ONCE = 500

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_GLANCES = tuple(timedelta(hours=hours) for hours in (0.05, 2, 48, 62 * 24, 800 * 24))


def micros(moment: datetime) -> int:
    """Microseconds since 1970, as the databases keep moments."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(number: int) -> datetime:
    return _EPOCH + number * _MICROSECOND


# --- expressions ----------------------------------------------------------------------------------------------------


class Cron:
    """An expression in a time zone. Slots are given in UTC.

    >>> Cron("0 3 * * *", "Europe/Paris").after(datetime(2026, 11, 16, 12, tzinfo=UTC)).isoformat()
    '2026-11-17T02:00:00+00:00'
    """

    __slots__ = ("_fields", "_what", "expression", "zone")

    def __init__(self, expression: str, tz: str = "UTC", *, what: str = "schedule") -> None:
        self.expression, self._what = expression, what
        self.zone = _zone(tz, what)
        self._fields = _fields(expression, what)
        try:
            self.after(_EPOCH)
        except CronSimError as error:
            raise _refused(expression, what, str(error).lower()) from None

    def following(self, moment: datetime) -> Iterator[datetime]:
        """The slots after a moment, in order.

        In an hour that is repeated, cronsim may begin with a slot of the first time, which is over by then.
        """
        last = moment
        for slot in CronSim(self._fields, moment.astimezone(self.zone)):
            if (found := slot.astimezone(UTC)) > last:
                last = found
                yield found

    def after(self, moment: datetime) -> datetime:
        """The first slot after a moment."""
        if (found := next(self.following(moment), None)) is None:
            raise _refused(self.expression, self._what, f"it does not come true within 50 years of {moment:%Y}")
        return found

    def between(self, first: datetime, last: datetime) -> Iterator[datetime]:
        """The slots from one moment to another, both included."""
        return takewhile(lambda slot: slot <= last, self.following(first - _MICROSECOND))

    def latest(self, first: datetime, last: datetime) -> datetime | None:
        """The last slot from one moment to another, both included. The longer it is ago, the more slots are walked."""
        for glance in (*_GLANCES, last - first):
            start = max(first, last - glance)
            *_, found = (None, *self.between(start, last))
            if found is not None or start == first:
                return found
        return None

    def explained(self) -> str:
        """The expression in words."""
        return CronSim(self._fields, _EPOCH).explain()


@lru_cache(maxsize=1000)
def cron_of(name: str, expression: str, tz: str) -> Cron:
    """The expression of a schedule, read once."""
    return Cron(expression, tz, what=f"schedule {name!r}")


def _fields(expression: object, what: str) -> str:
    """The five fields that cronsim reads."""
    if not isinstance(expression, str) or len(expression) > LONGEST_EXPRESSION:
        raise _refused(expression, what, f"it must be text of at most {LONGEST_EXPRESSION} characters")
    fields = NICKNAMES.get(expression.strip().lower(), expression)
    if fields.startswith("@"):
        raise _refused(expression, what, f"the nicknames are {', '.join(NICKNAMES)}")
    if (count := len(fields.split())) != 5:
        raise _refused(expression, what, f"it has {count} {'field' if count == 1 else 'fields'} and needs 5")
    return fields


def _refused(expression: object, what: str, why: str) -> ConfigError:
    return ConfigError(
        f"{what}: {expression!r} is not a cron expression: {why}; "
        "write minute, hour, day, month and weekday, like '0 3 * * *' or '*/15 9-17 * * mon-fri', or '@daily'"
    )


def _zone(tz: str, what: str) -> tzinfo:
    if tz == "UTC":  # known without a database of time zones
        return UTC
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError):
        raise ConfigError(f"{what}: no time zone is named {tz!r}; {_zone_remedy(tz)}") from None


def _zone_remedy(tz: object) -> str:
    known = available_timezones()
    if not known:
        return "this machine knows none: install its tzdata, or `pip install tzdata`"
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(str(tz).lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}?" if close else "use a name of the IANA database, like 'Europe/Paris'"


# --- schedules ------------------------------------------------------------------------------------------------------


class Missed(StrEnum):
    """What becomes of slots at which nobody was there to start a run."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule as an app declares it."""

    name: str
    function: str
    expression: str
    tz: str = "UTC"
    missed: Missed = Missed.ONCE
    catch_up: float = 86400.0
    """Seconds for which a missed slot is made up for."""
    jitter: float = 0.0
    priority: int = 0
    input: Raw = Raw(b"{}")
    gives_slot: bool = False
    """Whether the input gets the slot, as `scheduled_at`."""
    origin: str = ""

    @property
    def cron(self) -> Cron:
        return cron_of(self.name, self.expression, self.tz)

    def input_at(self, slot: datetime) -> Raw:
        """The input of the run that stands for a slot, which is told in the schedule's own time."""
        if not self.gives_slot:
            return self.input
        fields = json.decode(self.input, type=dict[str, Raw])
        return Raw(json.encode({**fields, SLOT: slot.astimezone(self.cron.zone)}))

    def run_at(self, slot: datetime) -> datetime:
        """When the slot's run may start. The jitter follows from the slot, so everybody comes to the same."""
        share = crc32(f"{self.name} {micros(slot)}".encode()) / 2**32
        return slot + timedelta(seconds=self.jitter * share)

    def run(self, slot: datetime, *, run_id: str, invoked_by: str) -> RunInserted:
        """The run that stands for a slot. Its queue is its function's."""
        return RunInserted(
            run_id,
            self.function,
            self.input_at(slot),
            run_at=self.run_at(slot).isoformat(),
            priority=self.priority,
            invoked_by=invoked_by,
        )


class Known(NamedTuple):
    """What the database has of a schedule that a worker declares again."""

    expression: str
    tz: str
    next_at: datetime
    last_slot: datetime | None


def first_slot(declared: Schedule, now: datetime, known: Known | None) -> datetime:
    """The slot that comes next for a schedule that a starting worker declares.

    A slot that is due, of a schedule that has not changed, is left: it may have been missed. Everything else is worked
    out anew, since the rules of a time zone may have changed too; and no slot comes twice.
    """
    if known is None:
        return declared.cron.after(now)
    if known.next_at <= now and (known.expression, known.tz) == (declared.expression, declared.tz):
        return known.next_at
    return declared.cron.after(max(now, known.last_slot or now))


# --- firing ---------------------------------------------------------------------------------------------------------


class Planned(NamedTuple):
    """A schedule that waits for its next slot, and the database's time."""

    schedule: Schedule
    next_at: datetime
    now: datetime

    @property
    def is_due(self) -> bool:
        return self.next_at <= self.now

    @property
    def wait(self) -> float:
        """Seconds until the slot."""
        return (self.next_at - self.now).total_seconds()


class Due(NamedTuple):
    """What is to be done about a schedule whose slot has come."""

    slots: Sequence[datetime]
    """The slots that get a run."""
    next_at: datetime
    missed_since: datetime | None = None
    """The first of the slots that get none, if there are such."""


class Firing(NamedTuple):
    """The runs that a schedule starts by now, by their slots, and the commit that does so."""

    runs: Sequence[tuple[datetime, RunInserted]]
    changes: Sequence[Change]
    missed_since: datetime | None
    missed_until: datetime


def due(planned: Planned, *, most: int = MOST_AT_ONCE) -> Due:
    """Which slots from `next_at` to now get a run, by the schedule's rule for missed ones."""
    schedule, next_at, now = planned
    cron = schedule.cron
    patience = ON_TIME if schedule.missed is Missed.SKIP else max(ON_TIME, schedule.catch_up)
    first = max(next_at, now - timedelta(seconds=patience))
    if schedule.missed is Missed.ONCE:
        latest = cron.latest(first, now)
        slots = [] if latest is None else [latest]
    else:
        slots = list(islice(cron.between(first, now), most))
    has_more = len(slots) == most and schedule.missed is not Missed.ONCE
    missed = next_at if next(cron.between(next_at, slots[0] - _MICROSECOND if slots else now), None) else None
    return Due(slots, cron.after(slots[-1] if has_more else now), missed)


def fire(planned: Planned, new_id: Callable[[], str], *, most: int = MOST_AT_ONCE) -> Firing:
    """The commit that starts what is due and moves the schedule on. Nothing of it is done if somebody else was
    first."""
    schedule, next_at, now = planned
    decided = due(planned, most=most)
    source = f"cron:{schedule.name}"
    runs = [(slot, schedule.run(slot, run_id=new_id(), invoked_by=source)) for slot in decided.slots]
    moved = ScheduleMoved(
        name=schedule.name,
        expression=schedule.expression,
        tz=schedule.tz,
        expected=micros(next_at),
        next_at=micros(decided.next_at),
        last_slot=micros(runs[-1][0]) if runs else None,
        last_run_id=runs[-1][1].id if runs else None,
        runs=tuple(run.id for _, run in runs),
    )
    until = runs[0][0] if runs else now
    return Firing(runs, [moved, *(run for _, run in runs)], decided.missed_since, until)
