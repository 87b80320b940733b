"""Durable functions that wait: nothing that comes is missed, and nothing is held in the meantime."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ostinato import App
from tests.system.apps.durable import TYPES
from tests.system.databases import Database, all_ended, states, until
from tests.system.durability import steps, stuck, table
from tests.system.log import Line, Log
from tests.system.processes import Crew, WorkerProcess

SLEEPERS = 10_000
MOST_MEGABYTES = 150
RACES = int(os.environ.get("SYSTEM_DURABLE_RACES", "1000"))
SPREAD = 0.02
NUDGE = 0.0005


# --- sleeping -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_ten_thousand_runs_sleep_on_one_worker(app: App, crew: Crew, database: Database):
    """They hold nothing: the worker's memory stays small. By the database's clock each wakes, and none too early."""
    worker = await crew.start("durable")
    await app.enqueue_many("nap", [{"seconds": 8.0}] * SLEEPERS)

    await until(lambda: states(database), {"held": SLEEPERS}, timeout=30)
    asleep = megabytes(worker, "VmRSS")
    await all_ended(database, timeout=60)

    assert states(database) == {"completed": SLEEPERS}
    woken = f"select count(*) from {database.runs} r join {table(database, 'steps')} s on s.run_id = r.id"
    assert database.query(f"{woken} where s.status = 'completed' and s.ended_at >= r.run_at") == [(SLEEPERS,)]
    assert database.query(f"select distinct attempt, lease_no from {database.runs}") == [(1, 2)]
    assert asleep < MOST_MEGABYTES
    assert megabytes(worker, "VmHWM") < MOST_MEGABYTES


def megabytes(worker: WorkerProcess, what: str) -> float:
    """What the kernel says of a process: VmRSS is its memory, VmHWM the most it has had."""
    [line] = [line for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines() if line.startswith(what)]
    return int(line.split()[1]) / 1024


# --- an event and the wait for it -----------------------------------------------------------------------------------


class Answers:
    """Records an event for each run that is about to wait for it, at about the moment at which it begins to: later, the
    more of them find their event by looking back, and earlier, the more are told by the drainer."""

    def __init__(self, app: App, log: Log) -> None:
        self._app, self._chance = app, random.Random(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._offset = 0.0
        self.asked = 0
        log.listeners.append(self._hear)

    def _hear(self, line: Line) -> None:
        if line["what"] == "about to wait":
            self.asked += 1
            self._tasks.add(asyncio.create_task(self._answer(line["n"], line["when"])))
        elif line["what"] == "resumed":
            self._offset += NUDGE if line["lease_no"] == 1 else -NUDGE

    async def _answer(self, n: int, when: float) -> None:
        moment = when + self._offset + self._chance.uniform(-SPREAD, SPREAD)
        await asyncio.sleep(moment - time.monotonic())
        await self._app.record(f"answer.{n % TYPES}", {"n": n})

    async def given(self) -> None:
        await asyncio.gather(*self._tasks)


async def race(app: App, crew: Crew, database: Database, log: Log, *, races: int, faults: Sequence[str] = ()) -> None:
    """Runs that wait for an event which is recorded by another process at about the same time."""
    await crew.start("durable", queues="default:50", faults=["hesitates_to_hold", *faults])
    answers = Answers(app, log)
    await app.enqueue_many("expect", [{"n": n} for n in range(races)])
    await until(lambda: answers.asked, races, timeout=120)
    await answers.given()


@pytest.mark.timeout(180)
async def test_a_wait_and_its_event_never_miss_each_other(app: App, crew: Crew, database: Database, log: Log):
    """Whichever comes first, each run goes on with its own event, once."""
    await race(app, crew, database, log, races=RACES)
    await until(lambda: states(database), {"completed": RACES}, timeout=15)

    wrong = "output is null or input is null or "
    wrong += "output::text <> input->>'n'" if database.dialect == "postgresql" else "output <> input ->> 'n'"
    assert database.query(f"select id, input, output from {database.runs} where {wrong}") == []
    resumed = log.find("resumed")
    assert sorted(line["n"] for line in resumed) == list(range(RACES))
    assert steps(database, "count(*), count(distinct event_id)", "status = 'completed'") == [(RACES, RACES)]
    either = Counter(line["lease_no"] for line in resumed)
    assert min(either[1], either[2]) > RACES // 100, "too few came from looking back, or too few from the drainer"


@pytest.mark.parametrize("fault", ["never_looks_back", "wakes_only_the_held"])
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_waits_and_events_that_do_miss_each_other_are_noticed(
    app: App, crew: Crew, database: Database, log: Log, fault: str
):
    """The proof that the test above can fail: without looking back some runs never get their event, and without being
    woken on the way to being held some do not go on with it."""
    await race(app, crew, database, log, races=RACES // 2, faults=[fault])
    drained = f"select count(*) from {table(database, 'drainers')} where processed >= {RACES // 2}"
    await until(lambda: database.query(drained), [(1,)])

    await until(lambda: set(states(database)) <= {"completed", "held"}, True)

    assert (waiting(database) if fault == "never_looks_back" else stuck(database)) > 0


def waiting(database: Database) -> int:
    count: int = steps(database, "count(*)", "status = 'pending'")[0][0]
    return count
