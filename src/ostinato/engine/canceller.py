"""Stops running runs that somebody cancelled."""

from __future__ import annotations

from collections.abc import Callable

from ..store.ports import Store
from ..telemetry import Telemetry
from .floor import Floor
from .service import Service

IDLE = 3600.0


class Canceller(Service):
    """Asks the database which, when it is told that there may be some: by a wake-up, or at a renewal of the lease."""

    first_after = IDLE

    def __init__(self, floor: Floor, *, worker: Callable[[], str | None], store: Store, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._floor, self._worker, self._store = floor, worker, store

    async def tick(self) -> float:
        if (worker := self._worker()) is not None:
            self._floor.cancel(await self._store.cancelled_of(worker))
        return IDLE
