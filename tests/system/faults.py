"""Bugs planted in a worker process, to prove that a test would notice them; and impatience, to save time."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from ostinato.engine import intake, rescuer, worker
from ostinato.engine.service import AT_ONCE
from ostinato.model.run import START
from ostinato.store import sql
from ostinato.store.postgres.listener import PostgresListener
from ostinato.store.sqlite.listener import SqliteListener
from tests.system.gates import passed
from tests.system.log import tell


def impatient() -> None:
    """Handlers that do not stop are given up on after half a second."""
    worker.UNRESPONSIVE_GRACE = 0.5


def never_brisk() -> None:
    """Falls asleep after every run, however fast they come."""
    intake.BRISK_SLEEP = 0.0


def without_fence() -> None:
    """Settlements are written whoever holds the run by now."""
    load, changed = sql.load, []

    def load_unfenced(package: str, *, adapt: Callable[[str], str]) -> dict[str, sql.Block]:
        blocks = load(package, adapt=adapt)
        for name, block in blocks.items():
            if block.text != (text := _FENCE.sub("true", block.text)):
                blocks[name] = dataclasses.replace(block, text=text)
                changed.append(name)
        assert {"complete_runs", "settle_runs", "start_runs"} <= set(changed), "the fence looks different now"
        return blocks

    sql.load = load_unfenced


_FENCE = re.compile(r"r\.lease_no = (\(c\.e->>'lease_no'\)::integer|s\.lease_no)")


def never_armed() -> None:
    """Falls asleep without asking to be woken."""

    async def arm(self: object, topic: str) -> bool:
        return True

    PostgresListener.arm = arm  # type: ignore[method-assign]
    SqliteListener.arm = arm  # type: ignore[method-assign]


def arms_too_late() -> None:
    """Looks for the last time before it asks to be woken, and not after."""

    async def fall_asleep(self: intake.Intake, owner: str) -> float:
        if await self._claim(1, owner, START):
            return AT_ONCE
        await self._wakeups.arm(self._topic)
        await self._sleep()
        return AT_ONCE

    intake.Intake._fall_asleep = fall_asleep  # type: ignore[method-assign]


def forgets_who_is_writing() -> None:
    """Does not wait for those who looked for sleepers before it had said that it sleeps, and will commit after."""
    arm = PostgresListener.arm

    async def arm_hastily(self: PostgresListener, topic: str) -> bool:
        await arm(self, topic)
        return True

    PostgresListener.arm = arm_hastily  # type: ignore[method-assign]


def never_rescues() -> None:
    """Leaves the runs of dead workers to others."""

    async def tick(self: rescuer.Rescuer) -> float:
        return 3600.0

    rescuer.Rescuer.tick = tick  # type: ignore[method-assign]


def hesitates_to_sleep() -> None:
    """Waits at a gate before it asks to be woken for the first time."""
    arm = PostgresListener.arm

    async def arm_hesitantly(self: PostgresListener, topic: str) -> bool:
        if self.working:
            tell("hesitating", topic=topic)
            await passed("sleep")
        return await arm(self, topic)

    PostgresListener.arm = arm_hesitantly  # type: ignore[method-assign]
