"""What one measured process does: a role prepares, waits for the word `go`, does its work and returns its figures.

Clocks are read inside these processes, so that starting an interpreter is never part of a figure. They are
`time.monotonic_ns`, which on Linux is one clock for all processes: a producer's and a worker's readings compare.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from bench.claims import measure_claims
from bench.contenders import Contender, Handler, StoreName, Target, contender
from bench.ledger import LEDGER_ROLES
from bench.sleepers import SleepingContender
from bench.workflows import STEPS, WorkflowContender

Result = dict[str, Any]

LOOK_SECONDS = 0.2
WARM_UPS = 10  # before the clock starts: connecting and preparing are not what is measured


@dataclass(frozen=True, slots=True)
class Task:
    """What a child process is told at its start."""

    contender: str
    store: StoreName
    target: Target
    role: str
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Contender:
        return contender(self.contender, self.store)(self.target)


class Control(Protocol):
    """The line to the parent process."""

    async def ready(self) -> None:
        """Say that everything is prepared and wait for the parent's word to go on."""


Role = Callable[[Task, Control], Awaitable[Result]]


async def migrate(task: Task, control: Control) -> Result:
    await control.ready()
    await task.make().migrate()
    return {}


async def enqueue_singly(task: Task, control: Control) -> Result:
    """One job per call and commit, each awaited before the next."""
    count: int = task.options["count"]
    async with task.make() as queue:
        await _enqueue_range(queue, WARM_UPS)
        await control.ready()
        started = time.monotonic_ns()
        await _enqueue_range(queue, count)
        return {"seconds": seconds_since(started), "waiting": await queue.waiting()}


async def enqueue_in_bulk(task: Task, control: Control) -> Result:
    """Whole batches per call and commit; encoding the inputs is part of the figure."""
    count, batch = task.options["count"], task.options["batch"]
    async with task.make() as queue:
        await queue.enqueue_many(range(task.options["warm_up"]))
        await control.ready()
        started = time.monotonic_ns()
        for first in range(0, count, batch):
            await queue.enqueue_many(range(first, min(count, first + batch)))
        return {"seconds": seconds_since(started), "waiting": await queue.waiting()}


async def produce(task: Task, control: Control) -> Result:
    """Several producers, each with connections of its own, enqueueing singly at the same time."""
    count: int = task.options["count"]
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(task.make()) for _ in range(task.options["producers"])]
        await asyncio.gather(*(_enqueue_range(queue, WARM_UPS) for queue in queues))
        await control.ready()
        started = time.monotonic_ns()
        await asyncio.gather(*(_enqueue_range(queue, count) for queue in queues))
        return {"started_ns": started, "ended_ns": time.monotonic_ns()}


async def _enqueue_range(queue: Contender, count: int) -> None:
    for n in range(count):
        await queue.enqueue(n)


async def drain(task: Task, control: Control) -> Result:
    """The backlog is there; the clock runs from the entry into the first handler to the last durable completion."""
    async with task.make() as queue:
        return await _drain(queue, control, task.options["count"], calls=1)


async def drain_workflows(task: Task, control: Control) -> Result:
    """The same with workflows, which call the handler in each of their steps."""
    async with cast(WorkflowContender, task.make()) as queue:
        result = await _drain(queue, control, task.options["count"], calls=len(STEPS))
        return result | {"steps": await queue.steps_completed()}


async def _drain(queue: Contender, control: Control, count: int, *, calls: int) -> Result:
    tally = _Tally(count * calls)
    await control.ready()
    called = time.monotonic_ns()
    async with _working(queue, tally.handle):
        await tally.all_handled.wait()
        await queue.settled(count)
        ended = time.monotonic_ns()
        result = {
            "seconds": (ended - tally.first_ns) / 1e9,
            "startup_seconds": (tally.first_ns - called) / 1e9,
            **memory(),
        }
        return result | {"completed": await queue.completed(), "handled": tally.handled}


class _Tally:
    """The no-op handler. It counts, and notes when the first job reached it."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.handled = 0
        self.first_ns = 0
        self.all_handled = asyncio.Event()

    async def handle(self, n: int) -> None:
        if not self.handled:
            self.first_ns = time.monotonic_ns()
        self.handled += 1
        if self.handled == self.expected:
            self.all_handled.set()


async def pick_up(task: Task, control: Control) -> Result:
    """An idle worker that notes when each job reaches its handler, until told that all have been sent."""
    entered: dict[int, int] = {}
    handled = 0
    all_entered = asyncio.Event()

    async def note(n: int) -> None:
        nonlocal handled
        entered[n] = time.monotonic_ns()
        handled += 1
        if len(entered) == task.options["count"]:
            all_entered.set()

    async with task.make() as queue, _working(queue, note):
        await control.ready()
        await control.ready()
        await all_entered.wait()
        await queue.settled(task.options["count"])
        return {"entered_ns": entered, "handled": handled, "completed": await queue.completed()}


async def send_now_and_then(task: Task, control: Control) -> Result:
    """One job at a time with pauses in between, irregular so as not to fall into step with anyone's polling."""
    gap: float = task.options["gap"]
    sent, acknowledged = {}, {}
    async with task.make() as queue:
        await control.ready()
        for n in range(task.options["count"]):
            await asyncio.sleep(gap * random.uniform(0.5, 1.5))
            sent[n] = time.monotonic_ns()
            await queue.enqueue(n)
            acknowledged[n] = time.monotonic_ns()
        return {"sent_ns": sent, "acknowledged_ns": acknowledged}


async def wake_sleepers(task: Task, control: Control) -> Result:
    """Everybody sleeps before the first is due; the process and the database go by the same machine's clock."""
    count, lead, spread = (task.options[name] for name in ("count", "lead", "spread"))
    woken: dict[int, float] = {}
    all_woken = asyncio.Event()

    async def wake(n: int) -> None:
        woken[n] = time.time()
        if len(woken) == count:
            all_woken.set()

    async with cast(SleepingContender, task.make()) as queue, _working(queue, wake):
        await control.ready()
        first = time.time() + lead
        due = {n: first + spread * n / count for n in range(count)}
        await queue.put_to_sleep(due)
        while (asleep := await queue.asleep()) < count and time.time() < first:  # noqa: ASYNC110 - it knows
            await asyncio.sleep(LOOK_SECONDS)
        sleeping = memory()
        await all_woken.wait()
        await queue.settled(count)
        late = [1000 * (woken[n] - due[n]) for n in due]
        memories = {"rss_mb": sleeping["rss_mb"], "peak_mb": memory()["peak_mb"]}
        return {"asleep": asleep, "late_ms": late, "completed": await queue.completed(), **memories}


async def work(task: Task, control: Control) -> Result:
    """A worker in the background of another measure, until told to stop."""

    async def ignore(n: int) -> None:
        pass

    async with task.make() as queue, _working(queue, ignore):
        await control.ready()
        await control.ready()
        return {"completed": await queue.completed()}


@asynccontextmanager
async def _working(queue: Contender, handle: Handler) -> AsyncIterator[None]:
    """Run the worker beside the block, and fail the block at once if the worker ends by itself."""
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(_work_until(stopping, queue.work(handle)))
        yield
        stopping.set()
        worker.cancel()


async def _work_until(stopping: asyncio.Event, work: Awaitable[None]) -> None:
    await work
    if not stopping.is_set():
        raise RuntimeError("the worker ended by itself in the middle of a measure")


def seconds_since(started_ns: int) -> float:
    return (time.monotonic_ns() - started_ns) / 1e9


def memory() -> dict[str, float]:
    """Resident memory of this process, now and at its peak, in MB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
        "peak_mb": int(status["VmHWM"].split()[0]) / 1024,
    }


ROLES: dict[str, Role] = {
    role.__name__: role
    for role in (
        migrate, enqueue_singly, enqueue_in_bulk, produce, drain, drain_workflows, pick_up, send_now_and_then, work,
        wake_sleepers, measure_claims, *LEDGER_ROLES,
    )
}  # fmt: skip
