"""A drainer at work: it sleeps until events are recorded, and deals with them a page at a time."""

from __future__ import annotations

import random
import time

from ..store.ports import LEDGER, Store
from ..telemetry import DrainerAsleep, DrainerHalted, EventsDrained, Telemetry
from .draining import PAGE, Consumer, Drained, Halted, drain_page
from .service import AT_ONCE, Service
from .wakeups import Wakeups

BRISK_POLL = 0.003
LEAST_PATIENCE = 10
SHORTEST_HALT = 0.5
LONGEST_HALT = 60.0


class Sleepers:
    """Who of this process sleeps on the ledger. The bell is armed while somebody does."""

    def __init__(self, wakeups: Wakeups) -> None:
        self.wakeups = wakeups
        self._asleep: set[str] = set()

    async def lie_down(self, name: str) -> bool:
        """Asks to be woken; answers whether all that began before has ended."""
        self._asleep.add(name)
        return await self.wakeups.arm(LEDGER)

    async def get_up(self, name: str) -> None:
        self._asleep.discard(name)
        if not self._asleep:
            await self.wakeups.disarm(LEDGER)


class Drainer(Service):
    """Any number of processes have the same drainer; whoever holds its row drains, and the others find nothing to do.

    When dealing with a page fails, its events are tried one by one, so that those before the culprit are dealt with.
    Then the drainer halts there, says so in its row, and tries again after a while, and after a longer one.
    """

    def __init__(
        self, name: str, consumer: Consumer, *, store: Store, sleepers: Sleepers, telemetry: Telemetry, poll: float
    ) -> None:
        super().__init__(telemetry)
        self._name, self._consumer, self._store = name, consumer, store
        self._sleepers, self._poll = sleepers, poll
        self._one_by_one = 0
        """How many events are still to be tried alone."""
        self._failures = 0
        self._impatience = 0
        sleepers.wakeups.on_events_recorded(self.wake)

    @property
    def name(self) -> str:
        return f"drainer {self._name}"

    async def tick(self) -> float:
        if not await self._store.undrained(self._name):
            return await self._fall_asleep()
        await self._sleepers.get_up(self._name)
        try:
            drained = await drain_page(self._store, self._name, self._consumer, limit=1 if self._one_by_one else PAGE)
        except Halted as halted:
            return await self._halted(halted)
        return self._went_on(drained)

    def _went_on(self, drained: Drained) -> float:
        if drained.skipped_due_to_lock:
            return BRISK_POLL * random.uniform(1, 3)
        self._failures = 0
        self._one_by_one = max(0, self._one_by_one - drained.processed)
        if drained.processed and self.telemetry.wants(EventsDrained):
            self.telemetry.announce(
                EventsDrained(
                    drainer=self._name,
                    processed=drained.processed,
                    triggered=len(drained.triggered),
                    parked=drained.parked,
                )
            )
        return AT_ONCE

    async def _halted(self, halted: Halted) -> float:
        if not self._one_by_one:
            self._one_by_one = PAGE
            return AT_ONCE
        self._failures += 1
        delay = random.uniform(0.5, 1.0) * min(SHORTEST_HALT * 2**self._failures, LONGEST_HALT)
        await self._store.halt(self._name, event=halted.event_id, error=str(halted), delay=delay)
        self.telemetry.announce(
            DrainerHalted(drainer=self._name, event_id=halted.event_id, error=str(halted), retry_in=delay)
        )
        await self._wait(delay)
        return AT_ONCE

    async def _wait(self, delay: float) -> None:
        """New events do not shorten the pause."""
        until = time.monotonic() + delay
        while not self.stopping and (left := until - time.monotonic()) > 0:
            await self.pause(left)

    async def _fall_asleep(self) -> float:
        quiet = await self._sleepers.lie_down(self._name)
        if await self._store.undrained(self._name):
            return AT_ONCE
        if self._sleepers.wakeups.working and not quiet:
            self._impatience = min(self._impatience + 1, LEAST_PATIENCE)
            return BRISK_POLL * self._impatience
        self._impatience = 0
        if self.telemetry.wants(DrainerAsleep):
            self.telemetry.announce(DrainerAsleep(drainer=self._name))
        await self.pause(self._sleepers.wakeups.poll_interval(self._poll))
        return AT_ONCE
