"""The worker: claims runs, executes them, settles them, and keeps everything around that going."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from msgspec import json

from .. import telemetry as happened
from ..config import Settings
from ..errors import StoreError
from ..model.change import Committed
from ..model.outcome import (
    Cancelled,
    Done,
    Failed,
    GivenBack,
    Interrupted,
    Lost,
    Settled,
    Stop,
    Unknown,
    next_delay,
    settle,
)
from ..model.run import Claimed
from ..store.ports import Caller, DeclaredQueue, Store
from ..telemetry import Telemetry
from .active import Active
from .committer import Committer, Settlement
from .context import Tools
from .deadlines import Deadlines
from .door import Door
from .executor import Executor, timed_out
from .intake import Intake
from .keeper import Keeper
from .marks import StartMarks
from .pruner import Pruner
from .registry import Registry
from .rescuer import Rescuer
from .scheduler import Scheduler
from .service import Service
from .wakeups import Wakeups

UNRESPONSIVE_GRACE = 10.0
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
        self.id: str | None = None
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._running: dict[str, Active] = {}
        self._zombies: set[Active] = set()
        self._given_back = 0
        self._stop_asked = asyncio.Event()
        self._forced = asyncio.Event()
        self._nothing_running = asyncio.Event()
        self.started = asyncio.Event()

    # --- life

    async def run(self) -> None:
        """Works until it is stopped."""
        async with AsyncExitStack() as stack:
            resources = await self._open_resources(stack)
            self._build(resources)
            await self._declare()
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

    def _build(self, resources: Mapping[str, Any]) -> None:
        settings, store, telemetry = self._settings, self._store, self._telemetry
        self._wakeups = Wakeups(store, telemetry, enabled=settings.notify)
        self._deadlines = Deadlines(self._running, telemetry=telemetry, on_expired=self._timed_out)
        self._committer = Committer(store, telemetry, on_committed=self._committed)
        tools = Tools(store, self._door, self._adapt, output_limit=settings.input_limit, resources=resources)
        self._executor = Executor(
            self._registry,
            tools,
            marks=StartMarks(store),
            on_concluded=self._concluded,
        )
        self._intakes = {
            name: Intake(
                name,
                queue.concurrency,
                owner=self,
                store=store,
                wakeups=self._wakeups,
                telemetry=telemetry,
                poll=settings.poll,
            )
            for name, queue in settings.queues.items()
        }
        self._rescuer = Rescuer(store=store, telemetry=telemetry, lease=settings.lease, on_rescued=self._rescued)
        self._scheduler = Scheduler(
            list(settings.queues), store=store, telemetry=telemetry, on_released=self._wakeups.ring
        )
        self._pruner = Pruner(settings.retention, store=store, telemetry=telemetry)
        self._canceller = Canceller(self, store=store, telemetry=telemetry)
        self._wakeups.on_cancel_asked(self._canceller.wake)
        self._keeper = Keeper(
            store,
            self,
            name=self.name,
            queues={name: queue.concurrency for name, queue in settings.queues.items()},
            lease=settings.lease,
            overdue=lambda: self._deadlines.earliest,
            grace=UNRESPONSIVE_GRACE,
        )

    @property
    def _services(self) -> Sequence[Service]:
        return [*self._intakes.values(), self._scheduler, self._rescuer, self._pruner, self._canceller]

    async def _declare(self) -> None:
        """Writes down what this process knows, for SQL, other processes and people."""
        functions = [spec.declared() for spec in self._registry]
        queues = [DeclaredQueue(name, queue.max_waiting) for name, queue in self._settings.queues.items()]
        await self._store.declare(functions, queues)

    async def _open_resources(self, stack: AsyncExitStack) -> Mapping[str, Any]:
        resources: dict[str, Any] = {}
        for lifespan in self._registry.lifespans:
            resources.update(await stack.enter_async_context(lifespan()) or {})
        return resources

    async def _start(self) -> None:
        await self._keeper.start()
        await self._wakeups.start()
        self._committer.start()
        self._deadlines.start()
        for service in self._services:
            service.start()
        self.started.set()

    async def _shut_down(self) -> None:
        """Drains for the grace period, then gives everything back."""
        self._telemetry.announce(
            happened.WorkerStopping(worker=self.id or "", running=len(self._running), forced=self._forced.is_set())
        )
        self._keeper.announce_stopping()
        await asyncio.gather(*(service.stop() for service in self._services))
        await self._drain(self._settings.shutdown_grace)
        for active in list(self._running.values()):
            active.ask_to_stop(Stop.SHUTDOWN)
        if self._running:
            await self._patiently(self._nothing_running, FORCED_PATIENCE)
        self._give_back_the_stubborn()
        await self._settle_the_rest()
        await self._keeper.stop()
        await self._wakeups.stop()
        await self._deadlines.stop()
        self._executor.close()
        self._telemetry.announce(happened.WorkerStopped(worker=self.id or "", given_back=self._given_back))

    async def _drain(self, grace: float) -> None:
        if not self._running:
            return
        done = asyncio.create_task(self._nothing_running.wait())
        forced = asyncio.create_task(self._forced.wait())
        await asyncio.wait([done, forced], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
        forced.cancel()

    def _give_back_the_stubborn(self) -> None:
        """Handlers that do not stop lose their runs; whatever they write from now on is refused."""
        for active in list(self._running.values()):
            self._abandon(active, GivenBack())

    async def _settle_the_rest(self) -> None:
        settled = asyncio.create_task(self._committer.settled())
        await asyncio.wait([settled], timeout=self._settings.lease)
        settled.cancel()
        await self._committer.abandon()
        for queue in self._intakes if self._given_back else ():
            try:
                await self._store.ring(queue)
            except StoreError:
                return  # others find the runs by polling

    @staticmethod
    async def _patiently(event: asyncio.Event, timeout: float) -> None:
        task = asyncio.create_task(event.wait())
        await asyncio.wait([task], timeout=timeout)
        task.cancel()

    # --- runs

    def begin(self, claimed: Claimed) -> None:
        """Starts a run that an intake has claimed."""
        assert self.id is not None
        if not self._running:
            self._nothing_running.clear()
            self._deadlines.wake()
        self._running[claimed.id] = self._executor.start(claimed, self.id)
        if self._telemetry.wants(happened.RunClaimed):
            self._telemetry.announce(_claimed_event(claimed, self.id))

    def unsettled(self) -> int:
        return self._committer.backlog

    def _concluded(self, active: Active) -> None:
        """An attempt is over: its slot is free, and its settlement goes into the next commit."""
        outcome, claimed = active.outcome, active.claimed
        self._leave(active)
        assert outcome is not None
        changes = settle(claimed, outcome, active.retry, worker=active.worker, duration=active.duration)
        if changes:
            self._committer.add(Settlement(active, changes))
        else:
            self._announce(active)

    def _leave(self, active: Active) -> None:
        self._running.pop(active.claimed.id, None)
        self._intakes[active.claimed.queue].ended(active.claimed.id)
        if not self._running:
            self._nothing_running.set()

    async def _committed(self, batch: Sequence[Settlement], committed: Committed) -> None:
        for intake in self._intakes.values():
            intake.room_may_be()  # it may have waited for the settlements to catch up
        refused = [settlement for settlement in batch if settlement.active.claimed.id in committed.refused]
        if refused:
            await self._explain(refused)
        if committed.refused or self._telemetry.wants(happened.RunCompleted) or any(_notable(s.active) for s in batch):
            for settlement in batch:
                if settlement.active.claimed.id not in committed.refused:
                    self._announce(settlement.active)

    async def _explain(self, refused: Sequence[Settlement]) -> None:
        """Why settlements were refused. A run that somebody cancelled first is settled as cancelled; what was settled
        by a commit of ours that seemed to fail is fine; the rest belongs to somebody else."""
        fences = await self._store.fences([settlement.active.claimed.id for settlement in refused])
        for active, _ in refused:
            fence = fences.get(active.claimed.id)
            if fence is None or fence.lease_no != active.claimed.lease_no:
                active.outcome = Lost()
                self._announce(active)
            elif fence.cancel_requested and fence.state == "running":
                active.outcome = Cancelled(fence.message or "cancelled")
                changes = settle(
                    active.claimed, active.outcome, active.retry, worker=active.worker, duration=active.duration
                )
                self._committer.add(Settlement(active, changes))
            else:
                self._announce(active)

    def _announce(self, active: Active) -> None:
        event = _outcome_event(active)
        if isinstance(active.outcome, GivenBack):
            self._given_back += 1
        elif isinstance(active.outcome, Failed | Unknown | Interrupted):
            self._scheduler.wake()
            self._wakeups.ring(active.claimed.queue)
        if event is not None:
            self._telemetry.announce(event)

    # --- stopping handlers

    def _timed_out(self, active: Active) -> None:
        if active.ask_to_stop(Stop.TIMEOUT) and active.spec is not None and active.spec.is_async:
            asyncio.get_running_loop().call_later(UNRESPONSIVE_GRACE, self._give_up_on, active)

    def _give_up_on(self, active: Active) -> None:
        """A handler that swallows its cancellation: the run is settled without it, and its slot stays taken until it
        returns."""
        if active.claimed.id in self._running and not active.finishing:
            self._abandon(active, timed_out(active))

    def _abandon(self, active: Active, outcome: Failed | GivenBack) -> None:
        active.abandoned, active.outcome = True, outcome
        self._running.pop(active.claimed.id, None)
        if not self._running:
            self._nothing_running.set()
        self._zombies.add(active)
        assert active.task is not None
        active.task.add_done_callback(lambda _: self._zombie_ended(active))
        changes = settle(active.claimed, outcome, active.retry, worker=active.worker, duration=active.duration)
        self._committer.add(Settlement(active, changes))

    def _zombie_ended(self, active: Active) -> None:
        self._zombies.discard(active)
        self._intakes[active.claimed.queue].ended(active.claimed.id)

    def cancel(self, run_ids: Sequence[str]) -> None:
        """Stops handlers of runs that somebody cancelled."""
        for run_id in run_ids:
            if (active := self._running.get(run_id)) is not None:
                active.reason = "cancelled"
                active.ask_to_stop(Stop.CANCEL)

    # --- the lease

    def lease_begun(self, worker: str) -> None:
        self.id = worker
        for intake in self._intakes.values():
            intake.room_may_be()
            intake.wake()  # under the name before, it may have looked in vain
        self._telemetry.announce(
            happened.WorkerStarted(
                worker=worker, queues={name: queue.concurrency for name, queue in self._settings.queues.items()}
            )
        )

    def lease_renewed(self, worker: str) -> None:
        if self._telemetry.wants(happened.LeaseRenewed):
            self._telemetry.announce(happened.LeaseRenewed(worker=worker))
        self._canceller.wake()

    def lease_lost(self, worker: str, why: str) -> None:
        """Others take over: nothing of what runs here may go on."""
        self.id = None
        self._rescuer.outage_seen()
        self._telemetry.announce(happened.LeaseLost(worker=worker, why=why))
        for active in list(self._running.values()):
            active.ask_to_stop(Stop.LEASE_LOST)

    def _rescued(self, queue: str) -> None:
        if (intake := self._intakes.get(queue)) is not None:
            intake.suspects_may_be()


class Canceller(Service):
    """Looks for running runs that somebody cancelled, when told that there may be some."""

    def __init__(self, worker: Worker, *, store: Store, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._worker, self._store = worker, store

    async def tick(self) -> float:
        if self._worker.id is not None:
            self._worker.cancel(await self._store.cancelled_of(self._worker.id))
        return 3600.0


def _notable(active: Active) -> bool:
    return not isinstance(active.outcome, Done)


def _metadata(claimed: Claimed) -> dict[str, Any] | None:
    return json.decode(claimed.metadata) if claimed.metadata else None


def _claimed_event(claimed: Claimed, worker: str) -> happened.RunClaimed:
    return happened.RunClaimed(
        run_id=claimed.id,
        function=claimed.function,
        queue=claimed.queue,
        attempt=claimed.attempt,
        worker=worker,
        waited=claimed.waited,
        metadata=_metadata(claimed),
    )


def _outcome_event(active: Active) -> happened.Event | None:
    """What an attempt's end is announced as."""
    claimed = active.claimed
    common: dict[str, Any] = {
        "run_id": claimed.id,
        "function": claimed.function,
        "queue": claimed.queue,
        "worker": active.worker,
    }
    ended = {**common, "attempt": claimed.attempt, "duration": active.duration, "metadata": _metadata(claimed)}
    match active.outcome:
        case Done() | Settled():
            return happened.RunCompleted(**ended)
        case Cancelled(reason):
            return happened.RunCancelled(**ended, reason=reason)
        case Failed() as failed:
            delay = next_delay(claimed, failed, active.retry)
            return happened.RunFailed(
                **ended, error_code=failed.code, message=failed.message, will_retry=delay is not None, retry_in=delay
            )
        case Interrupted(message):
            return happened.RunFailed(**ended, error_code="store_unavailable", message=message, will_retry=True)
        case Unknown():
            message = f"no function is named {claimed.function!r} here"
            return happened.RunFailed(**ended, error_code="unknown_function", message=message, will_retry=True)
        case GivenBack():
            return happened.RunGivenBack(**common)
        case _:
            return happened.StaleWriteRefused(
                run_id=claimed.id, function=claimed.function, lease_no=claimed.lease_no, worker=active.worker
            )
