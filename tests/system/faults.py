"""Bugs planted in a worker process, to prove that a test would notice them; and impatience, to save time."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ostinato.engine import floor, intake, rescuer
from ostinato.engine.active import Active
from ostinato.engine.executor import Executor
from ostinato.engine.service import AT_ONCE
from ostinato.engine.steps import waiting
from ostinato.engine.steps.steps import Step, Steps
from ostinato.errors import StoreUnavailable
from ostinato.model.change import Change, Committed, RunSettled, RunStarted
from ostinato.model.outcome import Done, Outcome
from ostinato.model.run import START, Claimed, Mark
from ostinato.model.step import Memo
from ostinato.store import sql
from ostinato.store.base import FlowStore
from ostinato.store.postgres.listener import PostgresListener
from ostinato.store.postgres.transaction import PostgresTransaction
from ostinato.store.sqlite.listener import SqliteListener
from tests.system.gates import passed
from tests.system.log import tell


def _change(module: ModuleType, **constants: float) -> None:
    for name, value in constants.items():
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, value)


def impatient() -> None:
    """Handlers that do not stop are given up on after half a second."""
    _change(floor, UNRESPONSIVE_GRACE=0.5)


def never_brisk() -> None:
    """Falls asleep after every run, however fast they come."""
    _change(intake, BRISK_SLEEP=0.0)


def without_fence() -> None:
    """Settlements are written whoever holds the run by now."""
    load, changed = sql.load, []

    def load_unfenced(package: str, *, adapt: Callable[[str], str]) -> dict[str, sql.Block]:
        blocks = load(package, adapt=adapt)
        for name, block in blocks.items():
            if block.text != (text := _FENCE.sub("true", block.text)):
                blocks[name] = dataclasses.replace(block, text=text)
                changed.append(name)
        completion = "completable" if "completable" in blocks else "complete_runs"
        saving = "fenced_runs" if "fenced_runs" in blocks else "save_steps"
        assert {completion, "settle_runs", "start_runs", saving} <= set(changed), "the fence looks different now"
        return blocks

    sql.load = load_unfenced


_FENCE = re.compile(
    r"r\.lease_no = (\(c\.e->>(1|'lease_no')\)::integer|[sf]\.lease_no|json_extract\(s\.value, '\$\[1\]'\))"
)


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


def loses_the_answer_to_a_claim() -> None:
    """The first claim that finds something is committed, and its answer lost with the connection."""
    claim = FlowStore.claim
    lost: list[Claimed] = []

    async def claim_in_vain(
        self: FlowStore, queue: str, limit: int, *, worker: str, mark: Mark, versions: str | None = None
    ) -> list[Claimed]:
        claimed = await claim(self, queue, limit, worker=worker, mark=mark, versions=versions)
        if claimed and not lost:
            lost.extend(claimed)
            raise StoreUnavailable("the connection was lost")
        return claimed

    FlowStore.claim = claim_in_vain  # type: ignore[method-assign]


def breaks_ten_commits_together() -> None:
    """As many transactions as there are connections for them are cut off at the same moment, at their commit."""
    commit, waiting, together = PostgresTransaction.commit, [], asyncio.Event()

    async def cut_off(self: PostgresTransaction) -> None:
        if together.is_set():
            return await commit(self)
        waiting.append(self)
        if len(waiting) == 10:
            together.set()
        await together.wait()
        self._connection.terminate()
        raise StoreUnavailable("the connection was lost")

    PostgresTransaction.commit = cut_off  # type: ignore[method-assign]


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


def commits_effects_apart() -> None:
    """What a handler wrote is committed first, and that it has completed after that."""

    async def commit_apart(self: Executor, active: Active, done: Done) -> Outcome:
        assert active.run is not None
        transaction = active.run.open_transaction
        assert transaction is not None
        await transaction.commit()
        return done

    Executor._commit_transaction = commit_apart  # type: ignore[method-assign]


def fails_to_mark_a_start() -> None:
    """The database is out of reach for the first start that has to be written down ahead."""
    commit = FlowStore.commit
    failed: list[Change] = []

    async def commit_in_vain(self: FlowStore, changes: Sequence[Change]) -> Committed:
        if not failed and any(isinstance(change, RunStarted) for change in changes):
            failed.extend(changes)
            raise StoreUnavailable("the connection was lost")
        return await commit(self, changes)

    FlowStore.commit = commit_in_vain  # type: ignore[method-assign]


def commits_steps_apart() -> None:
    """What a step wrote is committed first, and that it is done after that."""

    async def do_apart(
        self: Steps, step: Step, function: Any, args: Any, kwargs: Any, options: Any, result: Any, retried: int
    ) -> Any:
        async with self._tools.step_transaction() as (transaction, tx):
            value = await self._timed(step, options, function, (tx, *args), kwargs)
            await transaction.commit()
        return await self._done(step, value, result, retried)

    Steps._do_in_transaction = do_apart  # type: ignore[method-assign]


def forgets_what_was_done() -> None:
    """Later attempts know nothing of the steps of earlier ones."""

    async def memos(self: FlowStore, runs: Sequence[str]) -> list[Memo]:
        return []

    FlowStore.memos = memos  # type: ignore[method-assign]


def never_looks_back() -> None:
    """An event that is recorded before the wait is registered, and read by the drainer before that, is missed."""

    async def look_back(steps: Steps, step: Step, glob: str, matches: str | None) -> Memo:
        return await steps.reread(step)

    assert hasattr(waiting, "_look_back")
    waiting._look_back = look_back


def wakes_only_the_held() -> None:
    """A run that is woken while it is still on its way to be held does not know."""
    load, changed = sql.load, []

    def load_forgetful(package: str, *, adapt: Callable[[str], str]) -> dict[str, sql.Block]:
        blocks = load(package, adapt=adapt)
        block = blocks["wake_runs"]
        text = re.sub(r"set woken = (true|1),", "set woken = woken,", block.text)
        if text != block.text:
            blocks["wake_runs"] = dataclasses.replace(block, text=text)
            changed.append("wake_runs")
        assert changed, "waking looks different now"
        return blocks

    sql.load = load_forgetful


def hesitates_to_hold() -> None:
    """Some time passes between a run's last look and the commit that holds it."""
    commit, chance = FlowStore.commit, random.Random(1)

    async def commit_hesitantly(self: FlowStore, changes: Sequence[Change]) -> Committed:
        if any(isinstance(change, RunSettled) and change.suspended for change in changes):
            await asyncio.sleep(chance.uniform(0, 0.02))
        return await commit(self, changes)

    FlowStore.commit = commit_hesitantly  # type: ignore[method-assign]
