"""Workers that are killed at any moment: nothing is lost and nothing happens twice."""

from __future__ import annotations

import random

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended, assert_one_effect_each, states, until
from tests.system.processes import Crew, WorkerProcess

RUNS = 2000
KILLS = 20
WORKERS = 3


def completed(database: Database) -> int:
    return states(database).get("completed", 0)


async def progress(database: Database, runs: int) -> None:
    """Until so many more runs are completed, or all."""
    target = min(completed(database) + runs, RUNS)
    await until(lambda: completed(database) >= target, True)


@pytest.mark.timeout(120)
async def test_every_run_leaves_exactly_one_row_however_often_its_workers_are_killed(
    app: App, crew: Crew, database: Database
):
    """Twenty SIGKILLs at random moments of 2,000 runs; each run's row commits with its completion, or neither."""
    chance = random.Random(20)
    settings = {"lease": "1s", "queues": "default:8"}
    workers: list[WorkerProcess] = [await crew.start("items", **settings) for _ in range(WORKERS)]

    for kill in range(KILLS):
        batch = range(kill * RUNS // KILLS, (kill + 1) * RUNS // KILLS)
        await app.enqueue_many("write", [{"item": n} for n in batch])
        await progress(database, chance.randint(5, 60))
        workers.pop(chance.randrange(WORKERS)).kill()
        workers.append(crew.launch("items", **settings))

    await all_ended(database, timeout=60)
    assert states(database) == {"completed": RUNS}
    assert_one_effect_each(database, range(RUNS))
