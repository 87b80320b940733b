"""Schedules that several processes declare. Their clock is put by the test, and they look at it often."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ostinato import App, Run
from ostinato.engine import timetable
from ostinato.model.change import Change, Committed
from ostinato.store.base import FlowStore
from ostinato.store.sqlite import SqliteStore
from ostinato.store.sqlite.connecting import wall_clock
from ostinato.telemetry import ScheduleFired
from tests.system import gates
from tests.system.log import tell

app = App()
app.telemetry.subscribe(ScheduleFired, lambda event: tell("fired", schedule=event.schedule, slot=event.slot))


@app.cron("*/5 * * * *", name="sometimes", tz="America/New_York", missed="all")
@app.cron("* * * * *", name="often", tz="Europe/Paris", missed="all")
@app.function
async def note(run: Run, scheduled_at: datetime) -> None:
    """Logs the slot."""
    tell("noted", schedule=run.invoked_by, slot=scheduled_at.isoformat(), run=run.id)


# --- the test's hand ------------------------------------------------------------------------------------------------

timetable.LONGEST_LOOK_AHEAD = 0.02


def _put_by_the_test(self: SqliteStore) -> int:
    file = Path(os.environ[gates.VARIABLE], "clock")
    return wall_clock() + int(file.read_text())


SqliteStore._now = _put_by_the_test  # type: ignore[method-assign]

_commit = FlowStore.commit


async def _tell_of_races(self: FlowStore, changes: Sequence[Change]) -> Committed:
    committed = await _commit(self, changes)
    for name in committed.unmoved:
        tell("beaten", schedule=name)
    return committed


FlowStore.commit = _tell_of_races  # type: ignore[method-assign]
