"""Producers that commit just as a worker falls asleep never wait for the poll."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from ostinato import App
from ostinato.function import Enqueuer
from tests.system.databases import Database, all_ended, states
from tests.system.log import Line, Log
from tests.system.processes import Crew

QUEUES = [f"queue {n}" for n in range(8)]
TRIES = {"postgresql": 10_000, "sqlite": 1_600}
LATEST = 1.0


class Producer:
    """Enqueues again and again to a queue of its own, around the moment at which the worker falls asleep."""

    def __init__(self, app: App, work: Enqueuer, log: Log, item: int) -> None:
        self._app, self._item, self._queue = app, item, QUEUES[item]
        self._work = work.options(queue=self._queue)
        self._chance = random.Random(item)
        self._worked, self._asleep = asyncio.Event(), asyncio.Event()
        log.listeners.append(self._hear)

    def _hear(self, line: Line) -> None:
        if line["what"] == "worked" and line["item"] == self._item:
            self._worked.set()
        elif line["what"] == "QueueAsleep" and line["queue"] == self._queue:
            self._asleep.set()

    async def produce(self, tries: int) -> None:
        for _ in range(tries):
            self._worked.clear()
            self._asleep.clear()
            await (self._enqueue_slowly if self._chance.random() < 0.2 else self._enqueue)()
            await self._picked_up()
            await self._around_falling_asleep()

    async def _enqueue(self) -> None:
        await self._work.enqueue(item=self._item)

    async def _enqueue_slowly(self) -> None:
        """Inserts, and commits when the worker may have fallen asleep since."""
        async with self._app.transaction() as tx:
            await tx.enqueue(self._work, item=self._item)
            await asyncio.sleep(self._chance.uniform(0, 0.004))

    async def _picked_up(self) -> None:
        try:
            async with asyncio.timeout(LATEST):
                await self._worked.wait()
        except TimeoutError:
            raise AssertionError(f"{self._queue} slept through an enqueue") from None

    async def _around_falling_asleep(self) -> None:
        """At once, a little later, as soon as the worker says that it sleeps, or a little after that."""
        if self._chance.random() < 0.25:
            await self._asleep.wait()
        if self._chance.random() < 0.75:
            await asyncio.sleep(self._chance.uniform(0, 0.004))


async def try_often(app: App, crew: Crew, log: Log, *, tries: int, faults: Sequence[str] = ()) -> None:
    """One worker with eight queues of one slot: after each run it takes its name off the bell, and puts it on again."""

    @app.function
    async def work(item: int) -> None:
        """Known here so that it can be enqueued in a transaction; the worker's does the work."""

    slots = ",".join(f"{queue}:1" for queue in QUEUES)
    worker = await crew.start("items", queues=slots, faults=["never_brisk", *faults])
    await worker.asleep()
    async with asyncio.TaskGroup() as producers:
        for item in range(len(QUEUES)):
            producers.create_task(Producer(app, work, log, item).produce(tries // len(QUEUES)))


@pytest.mark.timeout(120)
async def test_no_enqueue_is_slept_through(app: App, crew: Crew, database: Database, log: Log):
    """Ten thousand tries, at every moment of falling asleep; the poll is 30 s, and none takes a second."""
    tries = TRIES[database.dialect]

    await try_often(app, crew, log, tries=tries)

    await all_ended(database)
    assert states(database) == {"completed": tries}


@pytest.mark.parametrize("fault", ["never_armed", "arms_too_late", "forgets_who_is_writing"])
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_broken_bell_is_noticed(app: App, crew: Crew, log: Log, fault: str):
    """The proof that the test above can fail: with a step of the protocol left out it does, and soon."""
    with pytest.raises(ExceptionGroup) as caught:
        await try_often(app, crew, log, tries=TRIES["postgresql"], faults=[fault])

    assert all("slept through" in str(error) for error in caught.value.exceptions)
