"""Writing ahead that a run starts, where a second start is not allowed."""

from __future__ import annotations

import asyncio

from ..model.change import RunStarted
from ..model.run import Claimed
from ..store.ports import Store


class StartMarks:
    """Marks of runs that start at the same time share a commit.

    A run with one attempt only must not start twice. Its claim does not say whether it did, since it may have been
    claimed with others and its worker died before its turn; so the start itself is committed first.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[tuple[RunStarted, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None

    async def mark(self, run: Claimed) -> bool:
        """Whether the run is still ours, now that its start is known."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((RunStarted(run.id, run.lease_no), future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush(), name="ostinato start marks")
        return await future

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                committed = await self._store.commit([started for started, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for started, future in batch:
                if not future.done():
                    future.set_result(started.run_id not in committed.refused)
