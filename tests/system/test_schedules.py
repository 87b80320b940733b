"""Schedules and real processes: one run per slot, whoever is there."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.system.databases import Database, until
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew

START = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
"""In the night in which Paris has an hour twice."""
MINUTE = timedelta(minutes=1)
SLOTS = 60


class Clock:
    """The clock of the database, for all processes. It goes on from wherever it is put."""

    def __init__(self, database: Database, gates: Gates) -> None:
        self._database, self._file = database, gates.folder / "clock"

    def put(self, moment: datetime) -> None:
        ahead = (moment.timestamp() - time.time()) * 1_000_000
        if self._database.dialect == "postgresql":
            self._database.query(
                "create or replace function ostinato.clock() returns timestamptz language sql volatile parallel safe "
                f"return clock_timestamp() + {ahead:.0f} * interval '1 microsecond'"
            )
        fresh = Path(f"{self._file}.new")
        fresh.write_text(f"{ahead:.0f}")
        fresh.replace(self._file)


def expected(every: int) -> list[datetime]:
    return [START + n * MINUTE for n in range(1, SLOTS + 1) if (START + n * MINUTE).minute % every == 0]


def started(database: Database, schedule: str) -> list[datetime]:
    """The slots for which there are runs. A run is due at its slot, and stays so unless it is retried."""
    rows = database.query(f"select run_at from {database.runs} where invoked_by = 'cron:{schedule}' order by run_at")
    return [at if isinstance(at, datetime) else datetime.fromtimestamp(at / 1_000_000, UTC) for (at,) in rows]


async def at_least(number: int, schedule: str, database: Database) -> None:
    """Until so many slots of the schedule have runs."""
    await until(lambda: len(started(database, schedule)) >= number, True)


async def test_workers_that_race_for_every_slot_start_one_run_each(
    crew: Crew, database: Database, log: Log, gates: Gates
):
    """Two processes wake at the same moment, sixty times; one is killed at a slot in between, and replaced."""
    clock = Clock(database, gates)
    clock.put(START)
    await crew.start("timetable", lease="10d")
    victim = await crew.start("timetable", lease="10d")
    for n in range(1, SLOTS + 1):
        clock.put(START + n * MINUTE - timedelta(milliseconds=60))
        await at_least(n, "often", database)
        if n == SLOTS // 2:
            victim.kill()
            await crew.start("timetable", lease="10d")

    await at_least(len(expected(5)), "sometimes", database)
    assert expected(1) == started(database, "often")
    assert expected(5) == started(database, "sometimes")
    assert log.find("beaten"), "nobody raced"
    noted = {line["run"]: line["slot"] for line in log.find("noted", schedule="cron:often")}
    assert {datetime.fromisoformat(slot) for slot in noted.values()} <= set(expected(1))
