"""Wake-ups. They may be lost, but where nothing is wrong they arrive, and long before anybody would poll."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator

import pytest

from ostinato.ids import new_id
from ostinato.integrations.connections import caller_of
from ostinato.store.ports import RESULTS, CancelAsked, Listener, ListenerChanged, Rung, RunsEnded, Signal, queue_topic
from tests.store.databases import Database
from tests.store.samples import QUEUE, a_claimed_run, a_run, accepted, completed, enqueue, failed

TOPIC = queue_topic(QUEUE)
SOON = 10.0


class Ear:
    """A listener, and what it has heard."""

    def __init__(self, database: Database) -> None:
        self._heard: asyncio.Queue[Signal] = asyncio.Queue()
        self.listener: Listener = database.store.listener(self._heard.put_nowait)

    async def next(self, kind: type[Signal]) -> Signal:
        """The next signal of a kind."""
        async with asyncio.timeout(SOON):
            while not isinstance(signal := await self._heard.get(), kind):
                pass
        return signal

    async def working(self) -> None:
        while not self.listener.working:
            await self.next(ListenerChanged)

    async def armed(self, topic: str) -> None:
        """Arms a topic, and waits until everything that was open at that moment has ended."""
        deadline = time.monotonic() + SOON
        while not await self.listener.arm(topic):
            assert time.monotonic() < deadline

    def forget(self) -> None:
        while not self._heard.empty():
            self._heard.get_nowait()

    def heard(self, kind: type[Signal]) -> bool:
        return any(isinstance(signal, kind) for signal in list(self._heard._queue))  # type: ignore[attr-defined]


@pytest.fixture
async def ear(database: Database) -> AsyncIterator[Ear]:
    ear = Ear(database)
    await ear.listener.start()
    await ear.working()
    yield ear
    await ear.listener.stop()


async def test_an_enqueue_elsewhere_wakes_who_sleeps(database: Database, ear: Ear):
    """A commit through other connections rings for an armed queue."""
    other = await database.another()
    await ear.armed(TOPIC)
    ear.forget()

    await enqueue(other)

    assert await ear.next(Rung) in (Rung(QUEUE), Rung(None))


async def test_an_enqueue_here_wakes_who_sleeps(database: Database, ear: Ear):
    """A commit of the listener's own store rings as well."""
    await ear.armed(TOPIC)
    ear.forget()

    await enqueue(database.store)

    await ear.next(Rung)


async def test_every_enqueue_rings(database: Database, ear: Ear):
    """Not only the first: a bell stays armed."""
    await ear.armed(TOPIC)
    for _ in range(3):
        ear.forget()
        await enqueue(database.store)
        await ear.next(Rung)


async def test_a_callers_commit_wakes_who_sleeps(database: Database, ear: Ear):
    """What was enqueued through the caller's own connection rings when the caller commits."""
    await ear.armed(TOPIC)
    ear.forget()

    async with database.connection() as connection, database.transaction(connection):
        await database.store.apply_on(caller_of(connection), [a_run()])

    await ear.next(Rung)


async def test_a_transaction_of_ours_wakes_who_sleeps(database: Database, ear: Ear):
    """So does a transaction of ours."""
    await ear.armed(TOPIC)
    ear.forget()

    async with database.store.begin() as tx:
        await tx.apply([a_run()])
        await tx.commit()

    await ear.next(Rung)


async def test_another_process_wakes_who_sleeps(database: Database, ear: Ear):
    """A process that enqueues and ends rings for the sleepers of this one."""
    script = """
import asyncio, sys
from msgspec import Raw
from ostinato.model.change import RunInserted
from ostinato.store.postgres import PostgresStore
from ostinato.store.sqlite import SqliteStore

async def main(url, run_id):
    store = (SqliteStore if url.startswith("sqlite") else PostgresStore)(url)
    await store.open()
    await store.commit([RunInserted(run_id, "mix", Raw(b"{}"))])
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""
    await ear.armed(TOPIC)
    ear.forget()
    run_id = new_id()

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, database.url, run_id)

    await ear.next(Rung)
    assert await process.wait() == 0
    assert {run_id} == await database.store.views.existing([run_id])


async def test_a_retry_wakes_who_sleeps(database: Database, ear: Ear):
    """A run that a person sends again rings."""
    run = await a_claimed_run(database.store)
    await accepted(database.store, failed(run))
    await ear.armed(TOPIC)
    ear.forget()

    await database.store.retry([run.id])

    await ear.next(Rung)


async def test_an_end_wakes_who_waits_for_results(database: Database, ear: Ear):
    """A completion elsewhere is told to those who armed for results."""
    other = await database.another()
    run = await a_claimed_run(other)
    await ear.armed(RESULTS)
    ear.forget()

    await accepted(other, completed(run))

    signal = await ear.next(RunsEnded)
    assert isinstance(signal, RunsEnded)
    assert signal.ids is None or run.id in signal.ids


async def test_cancelling_wakes_the_worker(database: Database, ear: Ear):
    """A worker learns that somebody wants a run stopped, armed or not."""
    other = await database.another()
    run = await a_claimed_run(database.store)
    ear.forget()

    await other.cancel([run.id], "not wanted")

    await ear.next(CancelAsked)


async def test_who_has_disarmed_is_left_alone(database: Database, ear: Ear):
    """After disarming, an enqueue rings nobody."""
    await ear.armed(TOPIC)
    await ear.listener.disarm(TOPIC)
    await ear.armed(RESULTS)
    ear.forget()

    run = await a_claimed_run(database.store)
    await accepted(database.store, completed(run))
    await ear.next(RunsEnded)  # came after any ringing for the enqueue

    assert not ear.heard(Rung)


async def test_arming_again_is_harmless(database: Database, ear: Ear):
    """A topic may be armed and disarmed as often as one likes."""
    for _ in range(3):
        await ear.armed(TOPIC)
    await ear.listener.disarm(TOPIC)
    await ear.listener.disarm(TOPIC)
    await ear.armed(TOPIC)
    ear.forget()

    await enqueue(database.store)

    await ear.next(Rung)


async def test_two_listeners_hear_both(database: Database, ear: Ear):
    """A store may have several listeners, each with its topics."""
    second = Ear(database)
    await second.listener.start()
    await second.working()
    await ear.armed(TOPIC)
    await second.armed(TOPIC)

    await enqueue(database.store)

    await ear.next(Rung)
    await second.next(Rung)
    await second.listener.stop()


async def test_a_stopped_listener_cannot_be_armed(database: Database):
    """Before its start a listener does not work, and says so."""
    ear = Ear(database)

    assert not ear.listener.working
    assert not await ear.listener.arm(TOPIC)
