"""The worker: claims runs, has them executed and settled, and keeps everything around that going."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from ..config import Settings
from ..errors import StoreError
from ..model.change import RunSettled
from ..model.outcome import Stop
from ..model.run import Claimed, State
from ..store.ports import Caller, DeclaredQueue, Store
from ..telemetry import LeaseLost, LeaseRenewed, Telemetry, WorkerStarted, WorkerStopped, WorkerStopping
from . import floor
from .canceller import Canceller
from .door import Door
from .floor import Floor
from .intake import Intake
from .keeper import Keeper
from .ledger.catching_up import Latecomers
from .ledger.consumers import declare, drainings
from .ledger.dispatching import Dispatcher
from .ledger.drainer import Drainer, Sleepers
from .ledger.subscribing import declare_subscriptions
from .overdue import Overdue
from .pruner import Pruner
from .registry import Registry
from .rescuer import Rescuer
from .scheduler import Scheduler
from .service import Service
from .timetable import Timetable
from .tools import Tools
from .wakeups import Wakeups

FORCED_PATIENCE = 2.0


class Worker:
    """One per process and app, inside any event loop.

    `run()` works until `stop()` is called, then drains for the grace period, gives back what is left, and returns.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        telemetry: Telemetry,
        *,
        door: Door,
        adapt: Callable[[object], Caller],
    ) -> None:
        self._store, self._registry, self._settings, self._telemetry = store, registry, settings, telemetry
        self._door, self._adapt = door, adapt
        self._concurrency = {name: queue.concurrency for name, queue in settings.queues.items()}
        self.id: str | None = None
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.versions: str | None = None
        self.started = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._forced = asyncio.Event()
        self._held_until: Callable[[], float | None] = lambda: None

    # --- life

    async def run(self) -> None:
        """Works until it is stopped."""
        async with AsyncExitStack() as stack:
            resources = await self._open_resources(stack)
            self._build(resources)
            await self._prepare()
            try:
                await self._start()
                await self._stop_asked.wait()
            finally:
                await self._shut_down()

    def stop(self, *, force: bool = False) -> None:
        """Asks the worker to stop; asking again, or with `force`, gives everything back at once."""
        if force or self._stop_asked.is_set():
            self._forced.set()
        self._stop_asked.set()

    @property
    def stopping(self) -> bool:
        return self._stop_asked.is_set()

    @property
    def has_lease(self) -> bool:
        """Whether what it claims is its own. For any thread, also while the event loop is blocked."""
        until = self._held_until()
        return until is not None and time.monotonic() < until

    async def settled(self) -> None:
        """Until nothing runs here and everything that ended is committed."""
        await self._floor.empty.wait()
        await self._floor.committer.settled()

    def _build(self, resources: Mapping[str, Any]) -> None:
        settings, store, telemetry = self._settings, self._store, self._telemetry
        self._wakeups = Wakeups(store, telemetry, enabled=settings.notify)
        self._floor = Floor(
            store,
            self._registry,
            self._tools(resources),
            telemetry,
            on_left=lambda run: self._intakes[run.queue].ended(run.id),
            on_committed=self._room_may_be,
            on_ready_again=self._look_again,
        )
        self._intakes = {name: self._intake(name, slots) for name, slots in self._concurrency.items()}
        self._rescuer = Rescuer(store=store, telemetry=telemetry, lease=settings.lease, on_rescued=self._rescued)
        self._scheduler = Scheduler(
            list(self._concurrency), store=store, telemetry=telemetry, on_released=self._wakeups.ring
        )
        self._overdue = Overdue(store=store, telemetry=telemetry)
        self._pruner = Pruner(settings.retention, store=store, telemetry=telemetry)
        self._canceller = Canceller(self._floor, worker=lambda: self.id, store=store, telemetry=telemetry)
        self._wakeups.on_cancel_asked(self._canceller.wake)
        self._timetable = Timetable(list(self._registry.schedules), store=store, telemetry=telemetry)
        self._wakeups.on_schedules_changed(self._timetable.wake)
        self._build_ledger()
        self._keeper = Keeper(
            store,
            self,
            name=self.name,
            queues=self._concurrency,
            lease=settings.lease,
            overdue=lambda: self._floor.deadlines.earliest,
            grace=floor.UNRESPONSIVE_GRACE,
        )
        self._held_until = lambda: self._keeper.holds_until

    def _build_ledger(self) -> None:
        """Those who read the ledger."""
        store, telemetry = self._store, self._telemetry
        dispatcher = Dispatcher(store, self._door, self._registry.functions)
        self._latecomers = Latecomers(dispatcher, store=store, telemetry=telemetry)
        self._drainings = drainings(store, self._registry, self._door, telemetry, ring=self._wakeups.ring)
        sleepers = Sleepers(self._wakeups)
        self._drainers = [
            Drainer(draining, store=store, sleepers=sleepers, telemetry=telemetry, poll=self._settings.poll)
            for draining in self._drainings
        ]

    def _tools(self, resources: Mapping[str, Any]) -> Tools:
        """What handlers get."""
        settings = self._settings
        return Tools(
            self._store,
            self._door,
            self._adapt,
            self._telemetry,
            output_limit=settings.input_limit,
            step_limit=settings.step_limit,
            steps_limit=settings.steps_limit,
            resources=resources,
        )

    def _intake(self, queue: str, slots: int) -> Intake:
        return Intake(
            queue,
            slots,
            owner=self,
            store=self._store,
            wakeups=self._wakeups,
            telemetry=self._telemetry,
            poll=self._settings.poll,
        )

    @property
    def _services(self) -> Sequence[Service]:
        timetable = [self._timetable] if self._registry.schedules else []
        steady = [self._scheduler, self._overdue, self._rescuer, self._pruner, self._canceller, self._latecomers]
        return [*self._intakes.values(), *steady, *timetable, *self._drainers]

    async def _prepare(self) -> None:
        """Declares, while connections are opened for the runs."""
        warming = asyncio.create_task(self._store.warm_up())
        try:
            await self._declare()
            await warming
        finally:  # not cancelled: a connection that is just being opened would be left to the garbage collector
            await asyncio.gather(warming, return_exceptions=True)

    async def _declare(self) -> None:
        """Writes down what this process knows, for SQL, other processes and people."""
        if any(spec.on_failure for spec in self._registry):
            self._registry.check_failures(await self._store.views.function_names())
        self.versions = self._registry.versions
        functions = [spec.declared() for spec in self._registry]
        queues = [DeclaredQueue(name, queue.max_waiting) for name, queue in self._settings.queues.items()]
        await self._store.declare(functions, queues)
        if schedules := list(self._registry.schedules.values()):
            await self._store.declare_schedules(schedules)
        await declare_subscriptions(self._store, self._registry)
        await declare(self._store, self._registry.drainers.values())

    async def _open_resources(self, stack: AsyncExitStack) -> Mapping[str, Any]:
        resources: dict[str, Any] = {}
        for lifespan in self._registry.lifespans:
            resources.update(await stack.enter_async_context(lifespan()) or {})
        return resources

    async def _start(self) -> None:
        await self._keeper.start()
        await self._wakeups.start()
        self._floor.open()
        for service in self._services:
            service.start()
        self.started.set()

    async def _shut_down(self) -> None:
        """Drains for the grace period, then gives everything back."""
        floor = self._floor
        self._telemetry.announce(
            WorkerStopping(worker=self.id or "", running=len(floor.running), forced=self._forced.is_set())
        )
        self._keeper.announce_stopping()
        await asyncio.gather(*(service.stop() for service in self._services))
        await first_of(floor.empty, self._forced, timeout=self._settings.shutdown_grace)
        floor.stop_all(Stop.SHUTDOWN)
        await first_of(floor.empty, timeout=FORCED_PATIENCE)
        floor.give_back_the_stubborn()
        await self._settle_the_rest()
        await self._keeper.stop()
        await self._wakeups.stop()
        await floor.close()
        self._telemetry.announce(WorkerStopped(worker=self.id or "", given_back=floor.given_back))

    async def _settle_the_rest(self) -> None:
        await first_of(self._floor.committer.idle, timeout=self._settings.lease)
        await first_of(self._floor.stragglers.idle, timeout=FORCED_PATIENCE)
        for queue in self._intakes if self._floor.given_back else ():
            try:
                await self._store.ring(queue)
            except StoreError:
                return  # others find the runs by polling

    # --- what the intakes ask

    def begin(self, claimed: Sequence[Claimed], owner: str) -> bool:
        """Starts runs claimed under this identity; those claimed under one that was lost meanwhile get rescued."""
        if owner != self.id:
            return False
        self._floor.begin(claimed, owner)
        return True

    def unsettled(self) -> int:
        return self._floor.committer.backlog

    async def give_back_unknown(self, queue: str, owner: str) -> None:
        """Gives back what a claim took whose answer was lost: the database says it is here, and nobody here knows."""
        owned = await self._store.owned(queue, worker=owner)
        known = self._floor.known
        unknown = [held for held in owned if held not in known]
        if unknown:
            await self._store.commit([RunSettled(*held, State.READY, refund=1) for held in unknown])

    # --- what the floor tells

    def _room_may_be(self) -> None:
        for intake in self._intakes.values():
            intake.room_may_be()

    def _look_again(self, queue: str) -> None:
        """A run of the queue will be retried, perhaps at once."""
        self._scheduler.wake()
        self._wakeups.ring(queue)

    def _rescued(self, queue: str) -> None:
        if (intake := self._intakes.get(queue)) is not None:
            intake.suspects_may_be()

    # --- the lease

    def lease_begun(self, worker: str) -> None:
        self.id = worker
        for intake in self._intakes.values():
            intake.room_may_be()
            if self.started.is_set():
                intake.wake()  # under the name before, it may have looked in vain
        self._telemetry.announce(WorkerStarted(worker=worker, queues=self._concurrency))

    def lease_renewed(self, worker: str) -> None:
        if self._telemetry.wants(LeaseRenewed):
            self._telemetry.announce(LeaseRenewed(worker=worker))
        self._canceller.wake()

    def lease_lost(self, worker: str, why: str) -> None:
        """Others take over: nothing of what runs here may go on."""
        self.id = None
        self._rescuer.outage_seen()
        self._telemetry.announce(LeaseLost(worker=worker, why=why))
        self._floor.stop_all(Stop.LEASE_LOST)


async def first_of(*events: asyncio.Event, timeout: float) -> None:
    """Until one of the events is set, or the time is over."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
