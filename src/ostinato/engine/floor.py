"""The floor: the runs that are being executed in this process, from their start to their settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ..model.change import Committed
from ..model.outcome import (
    Cancelled,
    Done,
    Failed,
    GivenBack,
    Interrupted,
    Lost,
    Outcome,
    Stop,
    Suspended,
    Unknown,
    settle,
)
from ..model.run import Claimed
from ..store.ports import Store
from ..telemetry import RunClaimed, RunCompleted, Telemetry
from .active import Active
from .announcing import claimed_event, outcome_event
from .committer import Committer, Settlement
from .deadlines import Deadlines
from .executor import Executor, timed_out
from .marks import StartMarks
from .registry import Registry
from .tools import Tools

UNRESPONSIVE_GRACE = 10.0


class Floor:
    """Starts runs, stops them, and hands what becomes of them to the committer."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        tools: Tools,
        telemetry: Telemetry,
        *,
        on_left: Callable[[Claimed], None],
        on_committed: Callable[[], None],
        on_ready_again: Callable[[str], None],
    ) -> None:
        self._store, self._telemetry = store, telemetry
        self._loop = asyncio.get_running_loop()
        self._on_left, self._on_committed, self._on_ready_again = on_left, on_committed, on_ready_again
        self.running: dict[tuple[str, int], Active] = {}
        self.empty = asyncio.Event()
        self.empty.set()
        self.given_back = 0
        self.deadlines = Deadlines(self.running, telemetry=telemetry, on_expired=self._timed_out)
        self.committer = Committer(store, telemetry, on_committed=self._committed)
        self.stragglers = Committer(store, telemetry, on_committed=self._committed)
        """For runs whose rows a transaction of the user's may still hold locked: nobody else waits for those."""
        self._executor = Executor(registry, tools, marks=StartMarks(store), on_concluded=self._concluded)

    def open(self) -> None:
        self.committer.start()
        self.stragglers.start()
        self.deadlines.start()

    async def close(self) -> None:
        await self.committer.abandon()
        await self.stragglers.abandon()
        await self.deadlines.stop()
        await self._executor.close()

    @property
    def known(self) -> set[tuple[str, int]]:
        """What is running here, or has ended and is not settled yet."""
        unsettled = [*self.committer.unsettled, *self.stragglers.unsettled]
        return self.running.keys() | {settlement.active.identity for settlement in unsettled}

    # --- from the start to the settlement

    def begin(self, batch: Sequence[Claimed], worker: str) -> None:
        """Starts runs that were claimed for the worker."""
        if batch and not self.running:
            self.empty.clear()
            self.deadlines.wake()
        start, running, now = self._executor.start, self.running, self._loop.time()
        for claimed in batch:
            active = start(claimed, worker, now)
            running[active.identity] = active
        if self._telemetry.wants(RunClaimed):
            for claimed in batch:
                self._telemetry.announce(claimed_event(claimed, worker))

    def _concluded(self, active: Active) -> None:
        """An attempt is over: its slot is free, and its settlement goes into the next commit."""
        self._forget(active)
        self._on_left(active.claimed)
        assert active.outcome is not None
        self._settle(active, active.outcome)

    def _settle(self, active: Active, outcome: Outcome) -> None:
        active.outcome = outcome
        told = active.told
        changes = settle(
            active.claimed, outcome, active.retry, worker=active.worker, duration=active.duration, told=told
        )
        if not changes:
            self._announce(active)
        elif active.run is not None and active.run.completed_by_caller:
            self.stragglers.add(Settlement(active, changes))
        else:
            self.committer.add(Settlement(active, changes))

    def _forget(self, active: Active) -> None:
        self.running.pop(active.identity, None)
        if not self.running:
            self.empty.set()

    async def _committed(self, batch: Sequence[Settlement], committed: Committed) -> None:
        self._on_committed()
        if committed.refused:
            await self._explain([each.active for each in batch if each.active.claimed.id in committed.refused])
        wanted = self._telemetry.wants(RunCompleted)
        for active in [each.active for each in batch if wanted or type(each.active.outcome) is not Done]:
            if active.claimed.id not in committed.refused:
                self._announce(active)

    async def _explain(self, refused: Sequence[Active]) -> None:
        """Why settlements were refused. A run that somebody cancelled first is settled as cancelled; what was settled
        by a commit of ours that seemed to fail is fine; the rest belongs to somebody else."""
        fences = await self._store.fences([active.claimed.id for active in refused])
        for active in refused:
            fence = fences.get(active.claimed.id)
            if fence is None or fence.lease_no != active.claimed.lease_no:
                self._settle(active, Lost())
            elif fence.cancel_requested and fence.state == "running":
                self._settle(active, Cancelled(fence.message or "cancelled"))
            else:
                self._announce(active)

    def _announce(self, active: Active) -> None:
        if isinstance(active.outcome, GivenBack):
            self.given_back += 1
        elif isinstance(active.outcome, Failed | Unknown | Interrupted | Suspended):
            self._on_ready_again(active.claimed.queue)
        self._telemetry.announce(outcome_event(active))

    # --- stopping handlers

    def stop_all(self, why: Stop) -> None:
        for active in list(self.running.values()):
            active.ask_to_stop(why)

    def cancel(self, reasons: Mapping[str, str]) -> None:
        """Stops the handlers of runs that somebody cancelled."""
        for active in [active for active in self.running.values() if active.claimed.id in reasons] if reasons else ():
            active.reason = reasons[active.claimed.id]
            active.ask_to_stop(Stop.CANCEL)

    def give_back_the_stubborn(self) -> None:
        """Handlers that do not stop lose their runs; whatever they write from now on is refused."""
        for active in list(self.running.values()):
            self._abandon(active, GivenBack())

    def _timed_out(self, active: Active) -> None:
        if not active.out_of_time:
            active.out_of_time = True
            active.ask_to_stop(Stop.TIMEOUT)
            if active.spec is not None and active.spec.is_async:
                self._loop.call_later(UNRESPONSIVE_GRACE, self._give_up_on, active)

    def _give_up_on(self, active: Active) -> None:
        """A handler that swallows its cancellation: the run is settled without it."""
        if self.running.get(active.identity) is active and not active.finishing:
            self._abandon(active, Cancelled(active.reason or "cancelled") if active.reason else timed_out(active))

    def _abandon(self, active: Active, outcome: Failed | GivenBack | Cancelled) -> None:
        """Settles a run whose handler goes on. The slot stays taken until it returns."""
        active.abandoned = True
        active.ended = self._loop.time()
        self._forget(active)
        assert active.task is not None
        active.task.add_done_callback(lambda _: self._on_left(active.claimed))
        self._settle(active, outcome)
