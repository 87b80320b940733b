"""The probe that all tests of the engine lean on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ostinato.telemetry import Event, QueueAsleep, QueueScanned, Telemetry, WorkerStopped
from ostinato.testing.probe import Probe


async def test_an_event_that_happened_before_is_not_missed():
    """It was remembered."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    telemetry.announce(QueueAsleep(queue="a"))
    assert await probe.next(QueueAsleep) == QueueAsleep(queue="a")


async def test_an_event_that_comes_later_is_waited_for():
    """By as many as wait."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    waiting = [asyncio.create_task(probe.next(QueueAsleep)) for _ in range(2)]
    await asyncio.sleep(0)
    telemetry.announce(QueueAsleep(queue="a"))
    telemetry.announce(QueueAsleep(queue="b"))
    assert {event.queue for event in await asyncio.gather(*waiting)} == {"a", "b"}


async def test_each_event_is_given_once_and_in_order():
    """The next is the next."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    for found in range(3):
        telemetry.announce(QueueScanned(queue="a", found=found))
    assert [(await probe.next(QueueScanned)).found for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TimeoutError):
        await probe.next(QueueScanned, timeout=0.01)


async def test_events_are_chosen_by_their_fields():
    """Others stay for who asks for them."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    telemetry.announce(QueueScanned(queue="a", found=1))
    telemetry.announce(QueueScanned(queue="b", found=2))
    assert (await probe.next(QueueScanned, queue="b")).found == 2
    assert (await probe.next(QueueScanned)).queue == "a"


async def test_any_event_can_be_asked_for():
    """By the kind of all of them, with fields that some have."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    telemetry.announce(QueueAsleep(queue="a"))
    telemetry.announce(WorkerStopped(worker="W"))
    assert await probe.next(Event, worker="W") == WorkerStopped(worker="W")
    assert await probe.next(Event) == QueueAsleep(queue="a")


async def test_what_was_seen_can_be_looked_at_again_and_again():
    """Given or not."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    telemetry.announce(QueueAsleep(queue="a"))
    await probe.next(QueueAsleep)
    telemetry.announce(QueueAsleep(queue="b"))
    assert [event.queue for event in probe.seen(QueueAsleep)] == ["a", "b"]
    assert probe.seen(QueueAsleep, queue="b") == [QueueAsleep(queue="b")]


async def test_what_does_not_come_is_told_with_what_came_instead():
    """So that a failing test explains itself."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    with pytest.raises(TimeoutError, match=r"^no QueueAsleep queue='a' within 0\.01 s; .*: nothing at all$"):
        await probe.next(QueueAsleep, queue="a", timeout=0.01)
    telemetry.announce(WorkerStopped(worker="W"))
    with pytest.raises(TimeoutError, match="the last that happened: WorkerStopped"):
        await probe.next(QueueAsleep, timeout=0.01)


async def test_a_misspelt_field_is_refused():
    """It would be waited for in vain."""
    probe = Probe(Telemetry())
    with pytest.raises(TypeError, match="QueueAsleep has no field 'que'; its fields are queue"):
        await probe.next(QueueAsleep, que="a")
    with pytest.raises(TypeError, match="no field 'que'"):
        probe.seen(QueueAsleep, que="a")


async def test_events_may_come_from_other_threads():
    """As those of a worker in a loop of its own."""
    telemetry = Telemetry()
    probe = Probe(telemetry)

    def announce() -> None:
        for found in range(500):
            telemetry.announce(QueueScanned(queue="a", found=found))

    thread = threading.Thread(target=announce)
    thread.start()
    found = [(await probe.next(QueueScanned)).found for _ in range(500)]
    thread.join()
    assert found == list(range(500))


async def test_who_gives_up_waiting_takes_nothing_away():
    """The event is there for the next."""
    telemetry = Telemetry()
    probe = Probe(telemetry)
    waiting = asyncio.create_task(probe.next(QueueAsleep))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    telemetry.announce(QueueAsleep(queue="a"))
    assert (await probe.next(QueueAsleep)).queue == "a"


def test_a_closed_probe_hears_nothing_more():
    """As a context manager, or by itself; twice is harmless."""
    telemetry = Telemetry()
    with Probe(telemetry) as probe:
        telemetry.announce(QueueAsleep(queue="a"))
    telemetry.announce(QueueAsleep(queue="b"))
    probe.close()
    assert [event.queue for event in probe.seen(QueueAsleep)] == ["a"]
    assert not telemetry.wants(QueueAsleep)
