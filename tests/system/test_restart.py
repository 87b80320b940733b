"""PostgreSQL is restarted without warning, while producers enqueue and workers work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from ostinato import App, StoreUnavailable
from ostinato.testing.postgres import PostgresServer
from tests.system.conftest import PREFERRED, prepare
from tests.system.databases import Database, PostgresDatabase, all_ended, effects, states, until
from tests.system.processes import Crew

RESTARTS = 3
WORKERS = 2
PRODUCERS = 4


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, whose commits are on the disk when they are acknowledged."""
    with PostgresServer(PREFERRED, fsync=True) as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Database:
    database = PostgresDatabase(server.create_database("radio"))
    prepare(database)
    return database


class Producers:
    """Enqueue one run after the other and remember which were acknowledged, whatever becomes of the database."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._items = count()
        self.acknowledged: list[str] = []
        self.refused = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Producers:
        self._tasks = [asyncio.create_task(self._produce()) for _ in range(PRODUCERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _produce(self) -> None:
        while True:
            try:
                handle = await self._app.enqueue("write", {"item": next(self._items)}, queue="default")
            except StoreUnavailable:
                self.refused += 1
                await asyncio.sleep(0.05)
            else:
                self.acknowledged.append(handle.id)

    async def progress(self, more: int) -> None:
        """Until so many more runs are acknowledged."""
        target = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= target, True, timeout=20)


@pytest.fixture
async def producers(app: App) -> AsyncIterator[Producers]:
    async with Producers(app) as producers:
        yield producers


@pytest.mark.timeout(120)
async def test_nothing_acknowledged_is_lost_and_everything_recovers(
    crew: Crew, database: Database, producers: Producers, server: PostgresServer
):
    """Three immediate restarts under load: each run is completed, with one row each, by the workers that were there."""
    workers = [await crew.start("items", lease="2s", queues="default:20") for _ in range(WORKERS)]
    for _ in range(RESTARTS):
        await producers.progress(50)
        await asyncio.to_thread(server.restart, "immediate")
    await producers.progress(50)
    await producers.__aexit__()

    await all_ended(database, timeout=30)
    assert all(worker.is_alive for worker in workers)
    assert set(states(database)) == {"completed"}
    runs = {run_id for (run_id,) in database.query(f"select id from {database.runs}")}
    assert set(producers.acknowledged) <= runs
    assert sorted(run_id for run_id, _, _ in effects(database)) == sorted(runs)
