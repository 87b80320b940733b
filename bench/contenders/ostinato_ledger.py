"""Ostinato's ledger through its public surface, with its defaults."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from bench.contenders import Handler, Target
from bench.contenders.ostinato import Ostinato
from bench.ledger import MATCHING

RUNNER = "workflow_runner"
FILTER = f"event.payload.n % {MATCHING} == 0"


class OstinatoLedger(Ostinato):
    """The same app with one function that events start."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._app.function(name="noted")(self._call_handler)

    async def record(self, n: int) -> None:
        await self._app.record("price.changed", {"n": n}, entity=("product", str(n % 1000)))

    async def record_many(self, numbers: Sequence[int]) -> None:
        await self._record("price.changed", numbers)

    async def recorded(self) -> int:
        table = "ostinato_events" if self._app.settings.url.startswith("sqlite") else "ostinato.events"
        async with self._app.transaction() as tx:
            return int(await tx.fetchval(f"select count(*) from {table}"))

    async def subscribe(self, count: int, *, filtered: bool) -> None:
        async with self._app.worker():  # so that the database knows the function
            pass
        for number in range(count):
            await self._app.subscriptions.add(
                f"topic{number}.*", "noted", name=f"topic {number}", filter=FILTER if filtered else None
            )

    async def fill(self, numbers: Sequence[int], subscriptions: int, *, filtered: bool) -> None:
        """In the order of the types, which is as good as any: what a page costs does not depend on it."""
        meant = numbers if filtered else [n for n in numbers if not n % MATCHING]
        if not filtered:
            await self._record("noise.heard", [n for n in numbers if n % MATCHING])
        for topic in range(min(subscriptions, 10)):
            number = (meant[0] // MATCHING + topic * 97) % subscriptions
            await self._record(f"topic{number}.changed", meant[topic :: min(subscriptions, 10)])

    async def _record(self, type_: str, numbers: Sequence[int]) -> None:
        await self._app.record_many(
            type_, [{"payload": {"n": n}, "entity": ("product", str(n % 1000))} for n in numbers]
        )

    async def drain(self) -> int:
        return (await self._app.drainers.drain(RUNNER)).processed

    async def started(self) -> int:
        return sum(entry.count for entry in await self._app.runs.counts())

    def serving(self, handle: Handler) -> AbstractAsyncContextManager[object]:
        self._handle = handle
        self._app.subscribe("price.*", "noted")
        return self._app.worker()
