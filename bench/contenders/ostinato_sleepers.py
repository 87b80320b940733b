"""Ostinato's sleeping runs through their public surface, with their defaults."""

from collections.abc import Mapping
from datetime import UTC, datetime

from bench.contenders import Target
from bench.contenders.ostinato import Ostinato
from ostinato import Run


class OstinatoSleepers(Ostinato):
    """The same app with one function that sleeps before it calls the handler."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._nap = self._app.function(name="nap")(self._sleep)

    async def _sleep(self, run: Run, n: int, due: float) -> None:
        await run.sleep_until("nap", datetime.fromtimestamp(due, UTC))
        await self._handle(n)

    async def put_to_sleep(self, due: Mapping[int, float]) -> None:
        await self._nap.enqueue_many([{"n": n, "due": moment} for n, moment in due.items()])

    async def asleep(self) -> int:
        return await self._count("held")
