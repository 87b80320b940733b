"""Gives the runs of dead workers back."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..model.run import Orphan
from ..store.ports import Store
from ..telemetry import RunRescued, Telemetry, WorkerBuried
from .service import AT_ONCE, Service

BATCH = 500
INTERVAL = 0.7


class Rescuer(Service):
    """Declares workers dead whose lease has run out, and takes their runs away.

    A worker is looked at twice before it is declared dead: after a long write lock or an outage of the database all
    leases have run out together, and everybody gets the chance to renew first. After an outage seen by this process,
    a whole lease must pass.
    """

    first_after = 0.1

    def __init__(self, *, store: Store, telemetry: Telemetry, lease: float, on_rescued: Callable[[str], None]) -> None:
        super().__init__(telemetry)
        self._store, self._lease, self._on_rescued = store, lease, on_rescued
        self._seen: dict[str, str] = {}
        self._not_before = 0.0

    def outage_seen(self) -> None:
        """The database was out of reach: others need time to come back."""
        self._not_before = time.monotonic() + self._lease
        self._seen.clear()

    async def tick(self) -> float:
        await self._bury_the_dead()
        orphans = await self._store.rescue(BATCH)
        for orphan in orphans:
            self.telemetry.announce(_rescued(orphan))
        for queue in {orphan.queue for orphan in orphans}:
            self._on_rescued(queue)
            await self._store.ring(queue)
        return AT_ONCE if len(orphans) == BATCH else INTERVAL

    async def _bury_the_dead(self) -> None:
        expired = await self._store.expired()
        for worker, renewed in expired.items():
            seen_before = self._seen.get(worker) == renewed and time.monotonic() >= self._not_before
            if seen_before and await self._store.bury(worker, renewed):
                self.telemetry.announce(WorkerBuried(worker=worker))
        self._seen = expired


def _rescued(orphan: Orphan) -> RunRescued:
    used_up = orphan.certain and orphan.attempt + orphan.uncounted >= orphan.attempts_allowed
    return RunRescued(
        run_id=orphan.id,
        function=orphan.function,
        dead_worker=orphan.worker,
        failed=used_up and not orphan.cancel_requested,
        cancelled=orphan.cancel_requested,
    )
