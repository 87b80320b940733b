"""Durable functions whose workers are killed: what was done is not done again, and what is remembered stands."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from msgspec import json

from ostinato import App
from tests.system.databases import Database, all_ended, run_row, states, until
from tests.system.durability import TABLE, check, completed_steps, steps
from tests.system.log import Log
from tests.system.points import POINTS, queue_of
from tests.system.processes import ROOT, Crew

WORKERS = 3
RUNS = 1000
KILLS = int(os.environ.get("SYSTEM_DURABLE_KILLS", "10"))
RUNS_PER_POINT = 3
ITEMS = 500


@pytest.fixture(autouse=True)
def rows(database: Database) -> None:
    database.query(TABLE)


@pytest.mark.timeout(120)
async def test_at_whatever_point_a_worker_dies_each_effect_is_accounted_for(
    app: App, crew: Crew, database: Database, log: Log
):
    """One worker dies at each point, with three runs begun; another finishes what they left."""
    await die_at_points(app, crew, database, log, [queue_of(point) for point in POINTS])

    assert states(database) == {"completed": RUNS_PER_POINT * len(POINTS)}
    effects = check(database, log)
    repeated = {line["step"] for lines in effects.of.values() for line in lines[1:]}
    assert repeated == {"fetch", "parse"}, "a worker that dies between the effect and the commit repeats it"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "point", "noticed"),
    [
        ("commits_steps_apart", "before step commit of store", "I2"),
        ("forgets_what_was_done", "before completion", "I8|I4|I2"),
    ],
)
async def test_effects_that_are_not_accounted_for_are_noticed(
    app: App, crew: Crew, database: Database, log: Log, fault: str, point: str, noticed: str
):
    """The proof that the test above can fail: rows that commit apart from their memos, and memos that are forgotten."""
    await die_at_points(app, crew, database, log, [point], faults=[fault])

    with pytest.raises(AssertionError, match=noticed):
        check(database, log)


async def die_at_points(
    app: App, crew: Crew, database: Database, log: Log, queues: Sequence[str], *, faults: Sequence[str] = ()
) -> None:
    """One worker dies at each of these points; another one finishes what they left."""
    for queue in queues:
        await app.enqueue_many("five", [{"item": n} for n in range(RUNS_PER_POINT)], queue=queue)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.system.points", ",".join(queues), *faults],
        cwd=ROOT,
        env=crew.environment(lease="1s"),
        stdin=subprocess.DEVNULL,
        pass_fds=[log.writable],
    ) as victims:
        ended = await log.heard("ended", count=len(queues), timeout=60)
        victims.wait()
    assert {line["point"]: line["killed"] for line in ended} == dict.fromkeys(queues, True)
    await crew.start("durable", queues=",".join(f"{queue}:10" for queue in queues), lease="1s", faults=faults)
    await all_ended(database, timeout=40)


async def kill_often(app: App, crew: Crew, database: Database) -> None:
    """Enqueues some of the runs for each kill, and kills a worker when a part of their steps is done."""
    chance = random.Random(KILLS)
    settings = {"lease": "1s", "queues": "default:20"}
    workers = [await crew.start("durable", **settings) for _ in range(WORKERS)]
    for kill in range(KILLS):
        items = range(kill * RUNS // KILLS, (kill + 1) * RUNS // KILLS)
        wanted = completed_steps(database) + chance.randint(1, 2 * len(items))
        await app.enqueue_many("five", [{"item": item} for item in items])
        await until(lambda: completed_steps(database) >= wanted, True, timeout=30)  # noqa: B023
        workers.pop(chance.randrange(WORKERS)).kill()
        workers.append(crew.launch("durable", **settings))
    await all_ended(database, timeout=60)


@pytest.mark.timeout(240)
async def test_a_thousand_runs_of_five_steps_survive_the_deaths_of_their_workers(
    app: App, crew: Crew, database: Database, log: Log
):
    """Workers are killed again and again: all runs complete, and the steps on record are the effects that happened."""
    await kill_often(app, crew, database)

    assert states(database) == {"completed": RUNS}
    check(database, log)
    recorded = steps(database, "name, count(*), min(status), max(status)", "true group by name")
    assert sorted(recorded) == [
        (name, RUNS, "completed", "completed") for name in ("announce", "fetch", "file", "parse", "store")
    ]
    assert len(log.find("RunRescued")) >= KILLS, "hardly anybody died with a run in its hands"


@pytest.mark.timeout(120)
async def test_five_hundred_items_at_once_never_get_each_others_results(
    app: App, crew: Crew, database: Database, log: Log
):
    """One run fetches and saves them together, each after a random time, and loses its worker several times."""
    handle = await app.enqueue("catalogue", {"items": ITEMS, "longest": 0.1}, queue="default")

    await kill_whoever_has_it(crew, database, log, kills=4)

    assert states(database) == {"completed": 1}
    (output,) = run_row(database, handle.id, "output")
    saved = output if isinstance(output, list) else json.decode(output)
    assert [(item, item) for item in range(ITEMS)] == [(found, fetched[0]) for found, fetched, _ in saved]
    for name, given, found in steps(database, "name, input, output"):
        assert json.decode(given)[0][0] == json.decode(found)[0], f"{name} has another's result"
    assert steps(database, "count(*)") == [(2 * ITEMS,)]
    effects = check(database, log)
    assert len(effects.began[handle.id]) == 5


async def kill_whoever_has_it(crew: Crew, database: Database, log: Log, *, kills: int) -> None:
    """Kills the worker of the only run whenever a part of its steps more is done."""
    for kill in range(1, kills + 1):
        worker = await crew.start("durable", lease="1s")
        await log.heard("began", pid=worker.pid)
        wanted = kill * 2 * ITEMS // (kills + 1)
        await until(lambda: completed_steps(database) >= wanted, True)  # noqa: B023
        worker.kill()
    await crew.start("durable", lease="1s")
    await all_ended(database, timeout=30)
