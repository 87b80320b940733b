"""A drainer at work: it sleeps until events are recorded, and deals with them a page at a time."""

from __future__ import annotations

import random
import time

from ...errors import StoreError
from ...store.ports import LEDGER, Store
from ...telemetry import DrainerAsleep, Telemetry
from ..service import AT_ONCE, Service
from ..wakeups import Wakeups
from .draining import Draining, Halted

FIRST = 0.2
BRISK_POLL = 0.003
SLOWEST_BRISK_POLL = 0.25
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

    When an event cannot be dealt with, or the database cannot be asked, the drainer halts there, says so in its row,
    and tries again after a while, and after a longer one.
    """

    first_after = FIRST

    def __init__(
        self, draining: Draining, *, store: Store, sleepers: Sleepers, telemetry: Telemetry, poll: float
    ) -> None:
        super().__init__(telemetry)
        self._draining, self._store = draining, store
        self._sleepers, self._poll = sleepers, poll
        self._failures = 0
        self._impatience = 0
        self._skipped = 0
        """How often in a row another had it."""
        self._lying = False
        """Whether it asks to be woken. It looks once after that, and once after each wake-up."""
        self._served = False
        """Whether it has dealt with a page since. One is what a wake-up is for; when there is more, it gets up, so that
        under load nobody is to ring."""
        sleepers.wakeups.on_events_recorded(self.wake)

    @property
    def name(self) -> str:
        return f"drainer {self._draining.name}"

    async def tick(self) -> float:
        name = self._draining.name
        quiet = self._lying and await self._sleepers.lie_down(name)
        if not await self._store.undrained(name):
            return await self._sleep(quiet) if self._lying else self._lie_down()
        if self._lying and self._served:
            self._lying = False
            await self._sleepers.get_up(name)
        self._served = True
        try:
            drained = await self._draining.step()
        except Halted as halted:
            return await self._halt(halted.event_id, str(halted))
        except StoreError as error:
            return await self._halt(None, str(error))
        if drained.skipped_due_to_lock:
            return self._until_the_other_is_done()
        self._failures = self._skipped = 0
        return AT_ONCE

    def _until_the_other_is_done(self) -> float:
        self._skipped += 1
        return random.uniform(1, 3) * min(BRISK_POLL * 1.5**self._skipped, SLOWEST_BRISK_POLL)

    async def _halt(self, event_id: str | None, error: str) -> float:
        """Raises if the database cannot be told: then the service's own loop goes on trying."""
        self._failures += 1
        delay = random.uniform(0.5, 1.0) * min(SHORTEST_HALT * 2**self._failures, LONGEST_HALT)
        await self._draining.say_halted(event_id, error, delay=delay)
        await self._wait(delay)
        return AT_ONCE

    async def _wait(self, delay: float) -> None:
        """New events do not shorten the pause."""
        until = time.monotonic() + delay
        while not self.stopping and (left := until - time.monotonic()) > 0:
            await self.pause(left)

    def _lie_down(self) -> float:
        self._lying, self._served = True, False
        return AT_ONCE

    async def _sleep(self, quiet: bool) -> float:
        """Until events are recorded. What began before it asked to be woken may come without a word, so until all that
        has ended, it looks again soon."""
        if self._sleepers.wakeups.working and not quiet:
            self._impatience = min(self._impatience + 1, LEAST_PATIENCE)
            return BRISK_POLL * self._impatience
        self._impatience = 0
        if self.telemetry.wants(DrainerAsleep):
            self.telemetry.announce(DrainerAsleep(drainer=self._draining.name))
        self._served = False
        await self.pause(self._sleepers.wakeups.poll_interval(self._poll))
        return AT_ONCE
