"""What measured processes do with the ledger: record events, drain them, and start runs from them."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, cast

from bench.contenders import Contender, Handler

if TYPE_CHECKING:
    from bench.roles import Control, Result, Task

WARM_UPS = 10
MATCHING = 100  # one event of so many matches one subscription


class Recorder(Contender, Protocol):
    """A contender that has a ledger: every event carries the payload `{"n": n}` and belongs to an entity."""

    async def record(self, n: int) -> None: ...

    async def record_many(self, numbers: Sequence[int]) -> None: ...

    async def recorded(self) -> int:
        """Count the events in the database: the check after recording."""


class Dispatching(Recorder, Protocol):
    """One that starts functions from events, too."""

    async def subscribe(self, count: int, *, filtered: bool) -> None:
        """Make so many subscriptions, each to types of its own; with filters, which want one event in a hundred."""

    async def fill(self, numbers: Sequence[int], subscriptions: int, *, filtered: bool) -> None:
        """Record events of which one in a hundred matches one of so many subscriptions. Where those have filters, each
        event is of a type that one of them means."""

    async def drain(self) -> int:
        """Drain the ledger, and count the events."""

    async def started(self) -> int:
        """Count the runs that were started."""

    def serving(self, handle: Handler) -> AbstractAsyncContextManager[object]:
        """Start a run for every event that is recorded during the block."""


async def record_singly(task: "Task", control: "Control") -> "Result":
    """One event per call and commit, each awaited before the next."""
    count: int = task.options["count"]
    async with cast(Recorder, task.make()) as ledger:
        for n in range(WARM_UPS):
            await ledger.record(n)
        await control.ready()
        started = time.monotonic_ns()
        for n in range(count):
            await ledger.record(n)
        return {"seconds": _seconds_since(started), "recorded": await ledger.recorded()}


async def record_in_bulk(task: "Task", control: "Control") -> "Result":
    """Whole batches per call and commit; encoding the payloads is part of the figure."""
    count, batch = task.options["count"], task.options["batch"]
    async with cast(Recorder, task.make()) as ledger:
        await ledger.record_many(range(WARM_UPS))
        await control.ready()
        started = time.monotonic_ns()
        for first in range(0, count, batch):
            await ledger.record_many(range(first, min(count, first + batch)))
        return {"seconds": _seconds_since(started), "recorded": await ledger.recorded()}


async def fill_ledger(task: "Task", control: "Control") -> "Result":
    """The backlog, and the subscriptions that part of it matches."""
    count, batch, subscriptions, filtered = (
        task.options[name] for name in ("count", "batch", "subscriptions", "filtered")
    )
    async with cast(Dispatching, task.make()) as ledger:
        await control.ready()
        await ledger.subscribe(subscriptions, filtered=filtered)
        for first in range(0, count, batch):
            await ledger.fill(range(first, min(count, first + batch)), subscriptions, filtered=filtered)
        return {"recorded": await ledger.recorded()}


async def drain_ledger(task: "Task", control: "Control") -> "Result":
    """The clock runs from the call to the last commit: events are read and matched, and runs are inserted."""
    async with cast(Dispatching, task.make()) as ledger:
        await control.ready()
        started = time.monotonic_ns()
        drained = await ledger.drain()
        return {"seconds": _seconds_since(started), "drained": drained, "started": await ledger.started()}


async def serve_events(task: "Task", control: "Control") -> "Result":
    """A worker that notes when the run of each event is entered, until told that all have been sent."""
    entered: dict[int, int] = {}
    all_entered = asyncio.Event()

    async def note(n: int) -> None:
        entered[n] = time.monotonic_ns()
        if len(entered) == task.options["count"]:
            all_entered.set()

    async with cast(Dispatching, task.make()) as ledger, ledger.serving(note):
        await control.ready()
        await control.ready()
        await all_entered.wait()
        return {"entered_ns": entered, "started": await ledger.started()}


async def record_at_a_rate(task: "Task", control: "Control") -> "Result":
    """So many events a second, by the clock, however long each takes."""
    sent, acknowledged = {}, {}
    async with cast(Recorder, task.make()) as ledger:
        await control.ready()
        began = time.monotonic()
        for n in range(task.options["count"]):
            await asyncio.sleep(began + n / task.options["rate"] - time.monotonic())
            sent[n] = time.monotonic_ns()
            await ledger.record(n)
            acknowledged[n] = time.monotonic_ns()
        return {"sent_ns": sent, "acknowledged_ns": acknowledged}


def _seconds_since(started_ns: int) -> float:
    return (time.monotonic_ns() - started_ns) / 1e9


LEDGER_ROLES = (record_singly, record_in_bulk, fill_ledger, drain_ledger, serve_events, record_at_a_rate)
