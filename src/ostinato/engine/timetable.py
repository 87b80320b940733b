"""Starts the runs of schedules when their slots come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError, QueueFull, UnknownFunction
from ..ids import new_id
from ..model.schedule import Firing, Planned, fire
from ..store.ports import Store
from ..telemetry import ScheduleBlocked, ScheduleFired, ScheduleMissed, Telemetry
from .service import AT_ONCE, Service

BATCH = 1000
LONGEST_LOOK_AHEAD = 15.0
KEEP_EVERY = 60.0
BLOCKED_PAUSE = 5.0


class Timetable(Service):
    """Sleeps until the next slot of the schedules that this app declares, by the database's clock.

    Others have the same schedules and wake at the same moment. Whoever commits first moves the schedule on, and the
    others find it moved. Each schedule is a commit of its own, so that one that cannot start its run holds up no other.
    """

    def __init__(self, names: Sequence[str], *, store: Store, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._names, self._store = names, store
        self._kept = time.monotonic()

    async def tick(self) -> float:
        await self._say_that_they_are_declared()
        planned = await self._store.planned(self._names, BATCH)
        due = [each for each in planned if each.is_due]
        fired = [await self._fire(each) for each in due]
        if any(fired):
            return AT_ONCE
        waits = [each.wait + 0.001 for each in planned if not each.is_due]
        return min([BLOCKED_PAUSE if due else LONGEST_LOOK_AHEAD, *waits])

    async def _say_that_they_are_declared(self) -> None:
        if time.monotonic() - self._kept >= KEEP_EVERY:
            await self._store.keep_schedules(self._names)
            self._kept = time.monotonic()

    async def _fire(self, planned: Planned) -> bool:
        """Starts what is due, unless another worker was first; answers whether the schedule could go on."""
        try:
            firing = fire(planned, new_id)
            committed = await self._store.commit(firing.changes)
        except (ConfigError, QueueFull, UnknownFunction) as error:
            self._announce_trouble(planned, error)
            return False
        if planned.schedule.name not in committed.unmoved:
            self._announce(planned, firing)
        return True

    def _announce(self, planned: Planned, firing: Firing) -> None:
        schedule, now = planned.schedule, planned.now
        common: dict[str, Any] = {"schedule": schedule.name, "function": schedule.function}
        if firing.missed_since is not None:
            self.telemetry.announce(ScheduleMissed(**common, since=firing.missed_since, until=firing.missed_until))
        for slot, run in firing.runs:
            late = (now - slot).total_seconds()
            self.telemetry.announce(ScheduleFired(**common, run_id=run.id, slot=slot, late=late))

    def _announce_trouble(self, planned: Planned, error: Exception) -> None:
        schedule = planned.schedule
        self.telemetry.announce(
            ScheduleBlocked(
                schedule=schedule.name, function=schedule.function, error=str(error), retry_in=BLOCKED_PAUSE
            )
        )
