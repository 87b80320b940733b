"""Workers that are killed at any moment: nothing is lost and nothing happens twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended, assert_one_effect_each, effects, states, until
from tests.system.processes import Crew

WORKERS = 3
SETTINGS = {"lease": "1s", "queues": "default:8"}
RUNS_PER_KILL = 100


async def kill_often(app: App, crew: Crew, database: Database, *, kills: int, faults: Sequence[str] = ()) -> None:
    """Enqueues a hundred runs for each kill, and kills a worker when some of what there is to do is done."""
    chance = random.Random(kills)
    workers = [await crew.start("items", faults=faults, **SETTINGS) for _ in range(WORKERS)]
    for kill in range(kills):
        items = range(kill * RUNS_PER_KILL, (kill + 1) * RUNS_PER_KILL)
        await app.enqueue_many("write", [{"item": item} for item in items])
        await progress(database, chance.randint(5, 60))
        workers.pop(chance.randrange(WORKERS)).kill()
        workers.append(crew.launch("items", faults=faults, **SETTINGS))
    await all_ended(database, timeout=25)


async def progress(database: Database, runs: int) -> None:
    """Until so many more runs are completed, or all that were enqueued."""
    before = states(database).get("completed", 0)
    await until(
        lambda: states(database).get("completed", 0) >= before + runs or set(states(database)) == {"completed"}, True
    )


@pytest.mark.timeout(120)
async def test_every_run_leaves_exactly_one_row_however_often_its_workers_are_killed(
    app: App, crew: Crew, database: Database
):
    """Twenty SIGKILLs at random moments of 2,000 runs; each run's row commits with its completion, or neither."""
    await kill_often(app, crew, database, kills=20)

    assert states(database) == {"completed": 2000}
    assert_one_effect_each(database, range(2000))


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_rows_that_commit_apart_from_their_run_are_noticed(app: App, crew: Crew, database: Database):
    """The proof that the test above can fail: in two transactions, some runs leave two rows."""
    await kill_often(app, crew, database, kills=8, faults=["commits_effects_apart"])

    assert len(effects(database)) > 800
