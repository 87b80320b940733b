"""Claiming: one intake per queue fills the queue's slots."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from ..model.run import START, Claimed, Mark
from ..store.ports import Store, queue_topic
from ..telemetry import QueueAsleep, QueueScanned, Telemetry
from .alarm import Alarm
from .service import AT_ONCE, Service
from .wakeups import Wakeups

BRISK_SLEEP = 0.020
BRISK_FOR = 0.100
BRISK_POLL = 0.002
SLOWEST_BRISK_POLL = 0.010
BRISK_SCAN_EVERY = 0.020
FULL_SCAN_EVERY = 1.0
SUSPECTS_AT_LEAST_EVERY = 5.0
LEAST_PATIENCE = 50
SMALLEST_FULL_CLAIM = 50
UNSETTLED_FACTOR = 2


class Owner(Protocol):
    """The worker, as an intake sees it."""

    @property
    def id(self) -> str | None:
        """The identity under which to claim; None while there is no lease."""

    @property
    def versions(self) -> str | None:
        """Those of the functions that have one, as JSON."""

    def begin(self, claimed: Sequence[Claimed], owner: str) -> bool:
        """Starts runs claimed under the identity, unless that is lost by now."""

    def unsettled(self) -> int: ...

    async def give_back_unknown(self, queue: str, owner: str) -> None:
        """Gives back what a claim took whose answer was lost."""


class Intake(Service):
    """Claims when there is room, and sleeps when there is nothing to claim.

    How it falls asleep: it arms the queue's bell, looks once more, and waits. A transaction that was open at the
    arming may commit without ringing, so until all of those have ended it looks again every few milliseconds. When it
    is woken soon after it fell asleep and finds several runs, work comes faster than sleeping pays: for a while it
    looks every few milliseconds instead, and producers ring nobody.
    """

    def __init__(
        self,
        queue: str,
        concurrency: int,
        *,
        owner: Owner,
        store: Store,
        wakeups: Wakeups,
        telemetry: Telemetry,
        poll: float,
    ) -> None:
        super().__init__(telemetry)
        self.queue, self.concurrency = queue, concurrency
        self._owner, self._store, self._wakeups, self._poll = owner, store, wakeups, poll
        share = concurrency // 2 if store.works_aside else concurrency
        self._largest_claim = max(share, SMALLEST_FULL_CLAIM)
        """Where it pays, half of the slots: while one half is executed, the other is being claimed."""
        self._topic = queue_topic(queue)
        self._wake = wakeups.bell(queue)
        self._room = Alarm()
        self._running = 0
        self._mark = START
        self._scanned = 0.0
        self._brisk_until = 0.0
        self._brisk_pause = BRISK_POLL
        self._slept = 0.0
        self._pressed = False
        """Whether the last claim found as much as it asked for: there is probably more."""
        self._in_doubt = False
        """Whether the last claim failed: it may have been committed all the same."""
        self._woken = False
        """Whether the next look was asked for by a wake-up, or goes on with what one has found."""
        self._impatience = 0
        self._suspect: str | None = None
        self._suspects_looked_for = 0.0
        self._put_off = False
        """Whether suspects were not looked for, since they had been a moment before."""

    @property
    def name(self) -> str:
        return f"intake of {self.queue}"

    # --- room

    def ended(self, run_id: str) -> None:
        """A run of this queue has left its slot."""
        self._running -= 1
        self._room.set()
        if run_id == self._suspect:
            self._suspect = None
            self._suspects_looked_for = 0.0
            self.wake()

    def room_may_be(self) -> None:
        self._room.set()

    def suspects_may_be(self) -> None:
        """Runs of dead workers were given back: looking for them is not put off."""
        self._suspects_looked_for = 0.0
        self.wake()

    @property
    def _free(self) -> int:
        if self._owner.unsettled() > UNSETTLED_FACTOR * self.concurrency:
            return 0
        return self.concurrency - self._running

    async def _wait_for_room(self) -> str | None:
        """The identity to claim under, once there is room; None when the intake stops."""
        while not self.stopping:
            if self._free > 0 and (owner := self._owner.id) is not None:
                return owner
            await self._room.wait(1.0)
        return None

    # --- one round

    async def tick(self) -> float:
        if (owner := await self._wait_for_room()) is None:
            return AT_ONCE
        if self._in_doubt:
            await self._owner.give_back_unknown(self.queue, owner)
            self._in_doubt = False
        if self._pressed:
            await self._look_for_a_suspect(owner, patience=SUSPECTS_AT_LEAST_EVERY)
        wanted = min(self._free, self._largest_claim)
        self._pressed = wanted <= 0 or len(await self._claim(wanted, owner, self._claim_from())) == wanted
        if self._pressed:
            await self._wakeups.disarm(self._topic)
            return AT_ONCE
        await self._look_for_a_suspect(owner, patience=FULL_SCAN_EVERY)
        if time.monotonic() < self._brisk_until:
            return await self._look_again_soon()
        return await self._fall_asleep(owner)

    def _claim_from(self) -> Mark:
        """The mark, except that once a second everything is looked at: late commits and priorities land behind it."""
        now = time.monotonic()
        if now - self._scanned >= FULL_SCAN_EVERY:
            self._mark = START
        if self._mark is START:
            self._scanned = now
        return self._mark

    async def _claim(self, limit: int, owner: str, mark: Mark) -> list[Claimed]:
        self._in_doubt = True
        versions = self._owner.versions
        claimed = await self._store.claim(self.queue, limit, worker=owner, mark=mark, versions=versions)
        self._in_doubt = False
        if claimed:
            self._mark = Mark(claimed[-1].due, claimed[-1].id)
            self._begin(claimed, owner)
            if len(claimed) > 1 and self._slept < BRISK_SLEEP:
                self._brisk_until = time.monotonic() + BRISK_FOR
        if self.telemetry.wants(QueueScanned):
            self.telemetry.announce(QueueScanned(queue=self.queue, found=len(claimed), woken=self._woken))
        self._woken = self._woken and len(claimed) == limit
        return claimed

    def _begin(self, claimed: Sequence[Claimed], owner: str) -> None:
        if self._owner.begin(claimed, owner):
            self._running += len(claimed)

    async def _look_for_a_suspect(self, owner: str, *, patience: float) -> None:
        """One at a time: if it takes this worker down again, it takes no other suspect with it."""
        now = time.monotonic()
        self._put_off = now - self._suspects_looked_for < patience
        if self._suspect is not None or self._free <= 0 or self._put_off:
            return
        self._suspects_looked_for = now
        self._in_doubt = True
        suspect = await self._store.claim_suspect(self.queue, worker=owner, versions=self._owner.versions)
        self._in_doubt = False
        if suspect is not None:
            self._suspect = suspect.id
            self._begin([suspect], owner)

    # --- sleeping

    async def pause(self, delay: float) -> bool:
        woken = await super().pause(delay)
        self._woken = self._woken or woken
        return woken

    async def _look_again_soon(self) -> float:
        """While work keeps coming: without being rung for, and the longer it lasts, the more at a time."""
        await self._wakeups.disarm(self._topic)
        if self._mark is not START and time.monotonic() - self._scanned > BRISK_SCAN_EVERY:
            self._mark = START
            return AT_ONCE
        self._brisk_pause = min(self._brisk_pause * 1.2, SLOWEST_BRISK_POLL)
        return self._brisk_pause

    async def _fall_asleep(self, owner: str) -> float:
        quiet = await self._wakeups.arm(self._topic)
        if (free := self._free) <= 0 or await self._claim(free, owner, START):
            return AT_ONCE  # without room it cannot look, and without this last look it must not sleep
        if self._wakeups.working and not quiet:
            self._impatience = min(self._impatience + 1, LEAST_PATIENCE)
            return BRISK_POLL * self._impatience
        self._impatience = 0
        self._brisk_until = 0.0
        await self._sleep()
        return AT_ONCE

    async def _sleep(self) -> None:
        if self.telemetry.wants(QueueAsleep):
            self.telemetry.announce(QueueAsleep(queue=self.queue))
        began = time.monotonic()
        await self.pause(self._longest_sleep())
        self._slept = time.monotonic() - began
        self._brisk_pause = BRISK_POLL

    def _longest_sleep(self) -> float:
        """Until the poll, or until suspects may be looked for again, if that was put off: the bell may be for one."""
        poll = self._wakeups.poll_interval(self._poll)
        if not self._put_off:
            return poll
        return max(0.0, min(poll, self._suspects_looked_for + FULL_SCAN_EVERY - time.monotonic()))

    async def stop(self) -> None:
        self.stopping = True
        self._room.set()
        await super().stop()
        await self._wakeups.disarm(self._topic)
