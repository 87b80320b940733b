"""A run from its insert to its result, with the time that each stage took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from ...config import Queue, Retention
from ...engine.door import Door
from ...engine.registry import Registry, specify
from ...engine.results import Results
from ...engine.worker import Worker
from ...errors import OstinatoError
from ...ids import new_id
from ...model.change import RunInserted
from ...store.ports import Store
from ...telemetry import (
    Event,
    ListeningChanged,
    NotificationReceived,
    QueueAsleep,
    QueueScanned,
    RunClaimed,
    RunCompleted,
    Telemetry,
)

if TYPE_CHECKING:
    from ...engine.site import Site

FUNCTION = "ostinato.self_test"
PATIENCE = 30.0

STAGES = ("insert", "wake-up", "claim", "handler", "settlement", "result")


class Stage(Struct, frozen=True):
    name: str
    seconds: float


class SelfTest(Struct, frozen=True):
    """How far a run came, and how long each stage took."""

    passed: bool
    stages: list[Stage]
    seconds: float
    woken_by: str
    """notification, or polling: then the wake-up includes the claim."""
    trouble: str | None = None


class _Moments:
    """When each stage ended, first seen."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.began = 0.0
        self.ends: dict[str, float] = {}
        self.asleep = asyncio.Event()
        self.listening = asyncio.Event()

    def begin(self) -> None:
        self.began = time.perf_counter()
        self.ends.clear()
        self.asleep.clear()

    def ended(self, stage: str) -> None:
        if self.began and stage not in self.ends:
            self.ends[stage] = time.perf_counter()

    def heard(self, event: Event) -> None:
        match event:
            case ListeningChanged():
                self.listening.set()
                self.asleep.clear()
            case QueueScanned():
                self.asleep.clear()
            case QueueAsleep():
                self.asleep.set()
            case NotificationReceived(channel="queue"):
                self.ended("wake-up")
            case RunClaimed():
                self.ended("claim")
            case RunCompleted():
                self.ended("settlement")

    def stages(self) -> list[Stage]:
        """In order; what was seen before the stage ahead of it had ended took no time of its own."""
        ends = dict(self.ends)
        if "claim" in ends and ends["claim"] < ends.get("wake-up", float("inf")):
            ends["wake-up"] = ends["claim"]
        found, before = [], self.began
        for name in STAGES:
            if name in ends:
                found.append(Stage(name, max(0.0, ends[name] - before)))
                before = max(before, ends[name])
        return found

    @property
    def woken_by(self) -> str:
        rung, claimed = self.ends.get("wake-up"), self.ends.get("claim")
        return "notification" if rung is not None and (claimed is None or rung <= claimed) else "polling"


async def run_self_test(site: Site, store: Store, *, announces_listening: bool) -> SelfTest:
    """`announces_listening`: whether the listener says when it begins to hear; the worker sleeps well after that."""
    queue, warm_up, measured = f"{FUNCTION}.{new_id().lower()}", new_id(), new_id()
    moments, telemetry = _Moments(queue), Telemetry()
    telemetry.subscribe(Event, moments.heard)
    results = Results(store, Telemetry(), notify=site.settings.notify)
    trouble: str | None = None
    worker = _worker(site, store, telemetry, moments)
    try:
        async with asyncio.timeout(PATIENCE), _working(worker):
            if announces_listening:
                await moments.listening.wait()
            for run_id in (warm_up, measured):  # the first opens connections and makes plans
                await _send_through(run_id, store, results, moments)
                await worker.settled()
    except TimeoutError:
        trouble = f"the run did not come back within {PATIENCE:g} s"
    except OstinatoError as error:
        trouble = str(error)
    finally:
        await results.close()
    try:
        await store.diagnosis().forget(runs=[warm_up, measured], function=FUNCTION, queue=queue, worker=worker.id)
    except OstinatoError as error:
        trouble = trouble or f"its traces could not be removed: {error}"
    stages = moments.stages()
    return SelfTest(trouble is None, stages, sum(stage.seconds for stage in stages), moments.woken_by, trouble)


def _worker(site: Site, store: Store, telemetry: Telemetry, moments: _Moments) -> Worker:
    """A worker of one queue and one function. It keeps what has ended for ever: the retention of others is not its
    business."""

    async def self_test() -> None:
        moments.ended("handler")

    registry = Registry()
    registry.add(specify(self_test, name=FUNCTION, queue=moments.queue))
    settings = replace(site.settings, queues={moments.queue: Queue(1)}, retention=Retention(None, None, None))
    door = Door(registry, input_limit=settings.input_limit)
    return Worker(store, registry, settings, telemetry, door=door, adapt=site.adapt)


async def _send_through(run_id: str, store: Store, results: Results, moments: _Moments) -> None:
    """Inserts a run once the worker sleeps, and waits for its result, as one who began to wait before."""
    result = asyncio.create_task(results.wait(run_id))
    try:
        await moments.asleep.wait()
        moments.begin()
        await store.commit([RunInserted(run_id, FUNCTION, Raw(b"{}"), queue=moments.queue, invoked_by="doctor")])
        moments.ended("insert")
        await result
        moments.ended("result")
    finally:
        result.cancel()


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run(), name="ostinato self-test")
    try:
        await asyncio.wait(
            [task, started := asyncio.create_task(worker.started.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        started.cancel()
        if task.done():
            await task
        yield
    finally:
        worker.stop(force=True)
        await task
