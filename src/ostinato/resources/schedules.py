"""`app.schedules`: which functions are started when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Raw, json

from ..engine.door import invoked_by
from ..errors import UnknownFunction, UnknownSchedule
from ..ids import new_id
from ..model.schedule import Schedule, moment
from ..model.view import ScheduleView
from ..store.ports import Store
from ..telemetry import ScheduleFired
from .runs import Handle, Runs

if TYPE_CHECKING:
    from ..engine.site import Site


class Schedules:
    """Schedules that workers have declared, by name."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site, self._runs = site, runs

    async def list(self) -> Sequence[ScheduleView]:
        """All schedules, those too that no worker declares any more."""
        async with self._site.store() as store:
            return await store.views.schedules()

    async def get(self, name: str) -> ScheduleView:
        async with self._site.store() as store:
            return await _find(store, name)

    async def pause(self, name: str) -> ScheduleView:
        """Stops a schedule from firing until it is resumed, whatever workers start meanwhile."""
        async with self._site.store() as store:
            await store.pause_schedule(name)
            return await _find(store, name)

    async def resume(self, name: str) -> ScheduleView:
        """Lets a paused schedule go on, from its next slot."""
        async with self._site.store() as store:
            await store.resume_schedule(name)
            return await _find(store, name)

    async def fire(self, name: str) -> Handle:
        """Starts a run now, as the schedule would, and leaves the schedule as it is. A paused one can be fired too."""
        async with self._site.store() as store:
            view = await _find(store, name)
            now = moment(await store.views.moment())
            run = _schedule(view).run(now, run_id=new_id(), invoked_by=invoked_by(f"fire:{name}"))
            try:
                await store.commit([run])
            except UnknownFunction as error:
                raise await self._site.door.unknown(view.function, store.views) from error
        self._site.telemetry.announce(
            ScheduleFired(schedule=name, function=view.function, run_id=run.id, slot=now, late=0.0, by_hand=True)
        )
        return Handle(self._runs, run.id, created=True)


async def _find(store: Store, name: str) -> ScheduleView:
    if found := await store.views.schedules(name):
        return found[0]
    raise UnknownSchedule.named(name, [schedule.name for schedule in await store.views.schedules()])


def _schedule(view: ScheduleView) -> Schedule:
    """What a run by hand needs to know: there is no crowd to be spread, so no jitter."""
    return Schedule(
        name=view.name,
        function=view.function,
        expression=view.expression,
        tz=view.tz,
        priority=view.priority,
        input=Raw(json.encode(view.input)),
        gives_slot=view.gives_slot,
    )
