"""A run that kills its workers ends as failed, and its neighbours lose nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended, states
from tests.system.log import Log
from tests.system.processes import Crew

HEALTHY = 100
STARTS = 3
TOGETHER = {"queues": "default:1000", "lease": "1s"}
"""One worker claims everything in one batch, and the killer takes it down before any neighbour has begun."""


@pytest.mark.parametrize("place", [0, HEALTHY], ids=["first", "last"])
async def test_a_run_that_kills_its_workers_fails_alone(app: App, crew: Crew, database: Database, log: Log, place: int):
    """It starts as often as it may, and two hundred runs around it complete, those with a single attempt too."""
    items = [{"item": n} for n in range(HEALTHY)]
    for function in ("heal", "heal_once"):
        await app.enqueue_many(function, items[:place], queue="default")
    await app.enqueue("kill", {}, queue="default")
    for function in ("heal", "heal_once"):
        await app.enqueue_many(function, items[place:], queue="default")

    for _ in range(2):
        crew.supervise("poison", **TOGETHER)

    await all_ended(database, timeout=30)
    assert states(database, "function = 'kill'") == {"failed": 1}
    assert states(database, "function <> 'kill'") == {"completed": 2 * HEALTHY}
    assert len(log.find("killing")) == STARTS
    assert set(Counter(line["item"] for line in log.find("healing once")).values()) == {1}


async def test_a_run_that_kills_its_workers_does_not_stop_the_flow(app: App, crew: Crew, database: Database, log: Log):
    """Runs that keep coming complete as well, although they may be beside it at each of its starts."""
    for _ in range(2):
        crew.supervise("poison", lease="1s", queues="default:10")
    await log.heard("WorkerStarted")
    await app.enqueue("kill", {})

    for n in range(HEALTHY):
        await app.enqueue("heal", {"item": n})
        await log.heard("healing", item=n)

    await all_ended(database, timeout=30)
    assert states(database, "function = 'kill'") == {"failed": 1}
    assert states(database, "function = 'heal'") == {"completed": HEALTHY}
    assert len(log.find("killing")) == STARTS
