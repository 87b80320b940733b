"""Where steps are read and saved: those of many runs share statements and commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from ...errors import StoreError
from ...model.change import Change, StepSaved
from ...model.step import Memo, Status
from ...store.ports import Store
from ...telemetry import StoreTroubled, Telemetry

LARGEST_COMMIT = 1000
MOST_RUNS_READ = 200
LONGEST_PAUSE = 5.0


class _Save(Struct, eq=False, frozen=True, gc=False):
    step: StepSaved
    others: Sequence[Change]
    """What is committed with it, or not at all."""
    accepted: asyncio.Future[bool]


class _Read(NamedTuple):
    run_id: str
    memos: asyncio.Future[list[Memo]]


class StepDesk:
    """Saves what has come in as soon as the commit before has returned, and reads in the same way."""

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store, self._telemetry = store, telemetry
        self._loop = asyncio.get_running_loop()
        self._saves: list[_Save] = []
        self._reads: list[_Read] = []
        self._saving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def save(self, step: StepSaved, others: Sequence[Change] = ()) -> asyncio.Future[bool]:
        """Resolves when it is committed: to whether the run is still ours."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self._saves.append(_Save(step, others, future))
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_all(), name="ostinato steps")
        return future

    def memos(self, run_id: str) -> asyncio.Future[list[Memo]]:
        """What is remembered of a run."""
        future: asyncio.Future[list[Memo]] = self._loop.create_future()
        self._reads.append(_Read(run_id, future))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all(), name="ostinato memos")
        return future

    async def close(self) -> None:
        """Abandons what nobody waits for any more."""
        tasks = [task for task in (self._saving, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- saving

    async def _save_all(self) -> None:
        while self._saves:
            batch, self._saves = _together(self._saves)
            await self._commit(batch)

    async def _commit(self, batch: Sequence[_Save]) -> None:
        """Tries until the database answers: what was done is known here, and nowhere else. So it is for steps of
        handlers that were stopped meanwhile, whose futures are cancelled."""
        failures = 0
        while batch:
            try:
                committed = await self._store.commit(_changes(batch))
            except StoreError as error:
                failures += 1
                await self._pause(failures, error)
                batch = await self._unsaved(batch)
            except Exception as error:
                await self._isolate(batch, error)
                return
            else:
                for save in batch:
                    _resolve(save.accepted, save.step.run_id not in committed.refused)
                return

    async def _pause(self, failures: int, error: StoreError) -> None:
        delay = min(0.05 * 2**failures, LONGEST_PAUSE)
        self._telemetry.announce(StoreTroubled(service="steps", error=str(error), retry_in=delay))
        await asyncio.sleep(delay)

    async def _unsaved(self, batch: Sequence[_Save]) -> Sequence[_Save]:
        """A failed commit may have committed. Steps can be saved again; what came with them must not come twice."""
        runs = sorted({save.step.run_id for save in batch if save.others})
        known = {(memo.run_id, memo.id) for memos in [await self.memos(run_id) for run_id in runs] for memo in memos}
        unsaved: list[_Save] = []
        for save in batch:
            if save.others and (save.step.run_id, save.step.id) in known:
                _resolve(save.accepted, True)
            else:
                unsaved.append(save)
        return unsaved

    async def _isolate(self, batch: Sequence[_Save], error: Exception) -> None:
        """A step that the database cannot take must not take the others with it."""
        if len(batch) == 1:
            if not batch[0].accepted.done():
                batch[0].accepted.set_exception(error)
            return
        for save in batch:
            await self._commit([save])

    # --- reading

    async def _read_all(self) -> None:
        failures = 0
        while self._reads:
            batch, self._reads = self._reads[:MOST_RUNS_READ], self._reads[MOST_RUNS_READ:]
            try:
                memos = await self._store.memos([read.run_id for read in batch])
            except StoreError as error:
                failures += 1
                self._reads = [read for read in [*batch, *self._reads] if not read.memos.done()]
                await self._pause(failures, error)
                continue
            except Exception as error:
                for read in batch:
                    if not read.memos.done():
                        read.memos.set_exception(error)
                continue
            failures = 0
            found: dict[str, list[Memo]] = {read.run_id: [] for read in batch}
            for memo in memos:
                found[memo.run_id].append(memo)
            for read in batch:
                if not read.memos.done():
                    read.memos.set_result(found[read.run_id])


def _together(saves: list[_Save]) -> tuple[list[_Save], list[_Save]]:
    """What is committed now, and what later: never a run under two leases, since a commit answers for runs."""
    leases: dict[str, int] = {}
    for place, save in enumerate(saves[:LARGEST_COMMIT]):
        if leases.setdefault(save.step.run_id, save.step.lease_no) != save.step.lease_no:
            return saves[:place], saves[place:]
    return saves[:LARGEST_COMMIT], saves[LARGEST_COMMIT:]


def _changes(batch: Sequence[_Save]) -> list[Change]:
    """A step that is in the batch twice is saved as it was last, except that what became of it is never replaced by
    that it runs."""
    steps: dict[tuple[str, str], StepSaved] = {}
    for save in batch:
        which = save.step.run_id, save.step.id
        if save.step.status != Status.RUNNING or which not in steps:
            steps[which] = save.step
    return [*steps.values(), *(change for save in batch for change in save.others)]


def _resolve(future: asyncio.Future[bool], accepted: bool) -> None:
    if not future.done():
        future.set_result(accepted)
