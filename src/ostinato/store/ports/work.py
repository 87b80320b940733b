"""What workers ask: claims, leases, and when schedules are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...model.run import Claimed, Mark, Orphan
from ...model.schedule import Planned, Schedule


class Claims(Protocol):
    @property
    def works_aside(self) -> bool:
        """Whether the database works while Python does: then claiming in halves keeps both busy, else in wholes."""

    async def claim(
        self, queue: str, limit: int, *, worker: str, mark: Mark, versions: str | None = None
    ) -> list[Claimed]:
        """Takes at most `limit` ready runs, in order, for a live worker. `versions`: function → version, as JSON, for
        those that have one."""

    async def claim_suspect(self, queue: str, *, worker: str, versions: str | None = None) -> Claimed | None:
        """Takes one run whose last worker died."""

    async def owned(self, queue: str, *, worker: str) -> list[tuple[str, int]]:
        """The running runs of a worker in a queue, by id and lease: also those of a claim whose answer was lost."""

    async def release_due(self, queue: str, limit: int) -> int:
        """Makes held runs ready whose time has come; answers how many."""

    async def next_due(self, queue: str) -> float | None:
        """Seconds until the next held run of the queue is due."""

    async def ring(self, queue: str) -> None:
        """Wakes the workers that sleep on a queue."""


class Leases(Protocol):
    async def register(self, worker: str, *, name: str, queues: Mapping[str, int], lease: float) -> None: ...

    async def renew(self, worker: str, *, stopping: bool) -> bool:
        """Whether the worker is still the owner of what it claimed."""

    async def retire(self, worker: str) -> None: ...

    async def expired(self) -> dict[str, str]:
        """Workers whose lease has run out → their last renewal, to be given to `bury`."""

    async def bury(self, worker: str, renewed: str) -> bool:
        """Declares a worker dead, unless it has renewed its lease since."""

    async def rescue(self, limit: int) -> list[Orphan]:
        """Takes runs away from workers declared dead."""

    async def cancelled_of(self, worker: str) -> dict[str, str]:
        """The worker's running runs that somebody wants stopped, and why."""


class Schedules(Protocol):
    """When functions are to be started. That they are is a commit like any other."""

    async def declare_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Writes down what a starting worker declares. What an operator paused stays so."""

    async def keep_schedules(self, names: Sequence[str]) -> None:
        """Says that a worker still declares them."""

    async def planned(self, names: Sequence[str], limit: int) -> list[Planned]:
        """Those of these schedules that are not paused, the next due first, with the database's time."""

    async def pause_schedule(self, name: str) -> bool:
        """Stops a schedule from firing; False when there is none of the name."""

    async def resume_schedule(self, name: str) -> bool:
        """Lets a paused schedule go on from its next slot; False when there is none of the name."""
