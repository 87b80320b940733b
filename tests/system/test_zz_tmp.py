"""Producers that commit just as a worker falls asleep never wait for the poll."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from ostinato import App

from tests.system.databases import Database, all_ended, states
from tests.system.log import Line, Log
from tests.system.processes import Crew

QUEUES = [f"queue {n}" for n in range(8)]
TRIES = {"postgresql": 10_000, "sqlite": 2_000}
LATEST = 8.0


class Ears:
    """What each queue's producer hears of its worker, without reading the whole log again and again."""

    def __init__(self, log: Log) -> None:
        self.worked = {queue: asyncio.Event() for queue in QUEUES}
        self.asleep = {queue: asyncio.Event() for queue in QUEUES}
        log.listeners.append(self._hear)

    def _hear(self, line: Line) -> None:
        match line["what"]:
            case "worked":
                self.worked[QUEUES[line["item"]]].set()
            case "QueueAsleep":
                self.asleep[line["queue"]].set()


async def produce(app: App, ears: Ears, queue: str, tries: int) -> None:
    """Enqueues again and again, around the moment at which the worker falls asleep."""
    chance = random.Random(queue)
    for _ in range(tries):
        await around_falling_asleep(ears, queue, chance)
        ears.worked[queue].clear()
        ears.asleep[queue].clear()
        await app.enqueue("work", {"item": QUEUES.index(queue)}, queue=queue)
        await picked_up(ears, queue)


async def around_falling_asleep(ears: Ears, queue: str, chance: random.Random) -> None:
    """At once, a little later, or as soon as the worker says that it sleeps, or a little after that."""
    if chance.random() < 0.25:
        await ears.asleep[queue].wait()
    if chance.random() < 0.75:
        await asyncio.sleep(chance.uniform(0, 0.004))


async def picked_up(ears: Ears, queue: str) -> None:
    enqueued = time.monotonic()
    try:
        async with asyncio.timeout(LATEST):
            await ears.worked[queue].wait()
    except TimeoutError:
        import time as tt; raise AssertionError(f"{queue} slept through an enqueue {tt.time()}") from None
    assert time.monotonic() - enqueued < LATEST


@pytest.mark.timeout(120)
async def test_no_enqueue_is_slept_through(app: App, crew: Crew, database: Database, log: Log):
    """Ten thousand tries, at every moment of falling asleep; the poll is 30 s, and none takes a second."""
    tries = TRIES[database.dialect]
    worker = await crew.start("items", queues=",".join(f"{queue}:1" for queue in QUEUES), faults=["never_brisk"])
    await worker.asleep()
    ears = Ears(log)

    async with asyncio.TaskGroup() as producers:
        for queue in QUEUES:
            producers.create_task(produce(app, ears, queue, tries // len(QUEUES)))

    await all_ended(database)
    assert states(database) == {"completed": tries}
