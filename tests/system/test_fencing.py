"""A worker that was stopped past its lease and goes on writes nothing."""

from __future__ import annotations

from ostinato import App
from tests.system.apps.stubborn import WAYS
from tests.system.databases import Database, all_ended, effects, states, until
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew, WorkerProcess

RUNS = 100
QUEUES = ",".join(f"queue {n}:1" for n in range(RUNS))
"""A queue for each run, since a worker takes over one suspect of a queue at a time."""


async def hold_and_freeze(app: App, crew: Crew, log: Log, *, faults: list[str]) -> WorkerProcess:
    """A worker that stands still in the middle of a hundred runs."""
    frozen = await crew.start("stubborn", queues=QUEUES, lease="1s", faults=faults)
    for n in range(RUNS):
        await app.enqueue("finish", {"item": n}, queue=f"queue {n}")
    await log.heard("holding", count=RUNS, lease_no=1)
    frozen.freeze()
    return frozen


async def take_over(crew: Crew, log: Log) -> None:
    """Another worker has all of them, and holds them."""
    await crew.start("stubborn", queues=QUEUES, lease="1s")
    await log.heard("holding", count=RUNS, lease_no=2)


async def test_a_frozen_worker_writes_nothing_after_its_lease(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """A hundred runs that return, raise or commit a transaction too late: all hundred are refused."""
    frozen = await hold_and_freeze(app, crew, log, faults=[])
    await take_over(crew, log)

    frozen.thaw()

    await log.heard("StaleWriteRefused", count=RUNS, pid=frozen.pid)
    assert states(database, "lease_no = 2") == {"running": RUNS}
    assert effects(database) == []

    gates.open("go")
    await all_ended(database)
    assert states(database) == {"completed": RUNS}
    items = [n for n in range(RUNS) if WAYS[n % len(WAYS)] == "transaction"]
    assert [(item, lease_no) for _, item, lease_no in effects(database)] == [(n, 2) for n in items]


async def test_without_the_fence_a_frozen_worker_does_write(app: App, crew: Crew, database: Database, log: Log):
    """The proof that the test above can fail: the same with the fence taken out of the frozen worker's statements."""
    frozen = await hold_and_freeze(app, crew, log, faults=["without_fence"])
    await take_over(crew, log)

    frozen.thaw()

    await until(lambda: states(database, "state = 'running' and lease_no = 2"), {})
    assert log.find("StaleWriteRefused", pid=frozen.pid) == []
    assert {lease_no for _, _, lease_no in effects(database)} == {1}
