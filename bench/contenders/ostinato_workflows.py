"""Ostinato's durable functions through their public surface, with their defaults."""

from collections.abc import Sequence

from bench.contenders import Target
from bench.contenders.ostinato import Ostinato
from bench.workflows import STEPS
from ostinato import Run

TABLES = {"postgresql": "ostinato.steps", "sqlite": "ostinato_steps"}


class OstinatoWorkflows(Ostinato):
    """The same app with one function that has steps."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._workflow = self._app.function(name="workflow")(self._call_in_steps)

    async def _call_in_steps(self, run: Run, n: int) -> None:
        for step in STEPS:
            await run.step(step, self._handle, n)

    async def enqueue(self, n: int) -> None:
        await self._workflow.enqueue(n=n)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._workflow.enqueue_many([{"n": n} for n in numbers])

    async def steps_completed(self) -> int:
        table = TABLES[self.target.url.partition(":")[0]]
        async with self._app.transaction() as tx:
            (row,) = await tx.fetch(f"select count(*) as completed from {table} where status = 'completed'")
        return int(row["completed"])
