"""The points at which a worker is killed: `python -m tests.system.points <point>,… [fault …]`, a process for each.

Each works on a queue of its own, named after its point, and dies the first time that it comes there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ostinato.engine.steps.steps import Steps
from ostinato.model.change import Change, RunCompleted, StepSaved
from ostinato.store.base import FlowStore
from ostinato.store.postgres.transaction import PostgresTransaction
from ostinato.store.sqlite.transaction import SqliteTransaction
from tests.system import faults
from tests.system.log import tell

PLACES = [
    ("claim", ""),
    *((place, step) for place in ("step start", "effect", "step commit") for step in ("fetch", "store")),
    ("step start", "parse"),
    ("effect", "parse"),
    ("step commit", "parse"),
    ("step commit", "announce"),
    ("completion", ""),
]
POINTS = [(f"{when} {place}", step) for place, step in PLACES for when in ("before", "after")]

_chosen: list[tuple[str, str]] = []
"""The point of this process."""


def queue_of(point: tuple[str, str]) -> str:
    return " of ".join(filter(None, point))


def reach(point: str, step: str = "") -> None:
    """Dies here, if this is the point."""
    if (point, step) in _chosen:
        os.kill(os.getpid(), signal.SIGKILL)


# --- where the points are -------------------------------------------------------------------------------------------


def plant() -> None:
    """Has the engine come by the points."""
    _plant_claims()
    _plant_starts()
    _plant_commits()
    for kind in (PostgresTransaction, SqliteTransaction):
        _plant_transactions(kind)


def _plant_claims() -> None:
    claim = FlowStore.claim

    async def claim_or_die(self: FlowStore, *arguments: Any, **options: Any) -> Any:
        reach("before claim")
        if claimed := await claim(self, *arguments, **options):
            reach("after claim")
        return claimed

    FlowStore.claim = claim_or_die  # type: ignore[method-assign]


def _plant_starts() -> None:
    engine: Any = Steps
    do, timed = engine._do, engine._timed

    async def do_or_die(self: Steps, step: Any, *arguments: Any) -> Any:
        reach("before step start", step.name)
        return await do(self, step, *arguments)

    async def time_or_die(self: Steps, step: Any, *arguments: Any) -> Any:
        reach("after step start", step.name)
        return await timed(self, step, *arguments)

    engine._do, engine._timed = do_or_die, time_or_die


def _plant_commits() -> None:
    commit = FlowStore.commit

    async def commit_or_die(self: FlowStore, changes: Sequence[Change]) -> Any:
        _pass("before", changes)
        committed = await commit(self, changes)
        _pass("after", changes)
        return committed

    FlowStore.commit = commit_or_die  # type: ignore[method-assign]


def _plant_transactions(kind: Any) -> None:
    apply, commit, applied = kind.apply, kind.commit, {}

    async def apply_and_note(self: Any, changes: Sequence[Change]) -> Any:
        applied[id(self)] = changes
        return await apply(self, changes)

    async def commit_or_die(self: Any) -> None:
        _pass("before", applied.get(id(self), ()))
        await commit(self)
        _pass("after", applied.pop(id(self), ()))

    kind.apply, kind.commit = apply_and_note, commit_or_die


def _pass(when: str, changes: Sequence[Change]) -> None:
    for change in changes:
        if isinstance(change, StepSaved) and change.status == "completed":
            reach(f"{when} step commit", change.name)
        elif isinstance(change, RunCompleted):
            reach(f"{when} completion")


# --- the processes --------------------------------------------------------------------------------------------------


def _work(point: tuple[str, str]) -> None:
    _chosen.append(point)
    plant()
    os.environ["OSTINATO_QUEUES"] = f"{queue_of(point)}:10"
    from tests.system.apps.durable import app

    asyncio.run(app.run_worker())


def main() -> None:
    """All at once, forked, since starting one takes longer than what it does."""
    wanted, *broken = sys.argv[1:]
    for fault in broken:
        getattr(faults, fault)()
    children = {}
    for point in [point for point in POINTS if queue_of(point) in wanted.split(",")]:
        if (child := os.fork()) == 0:
            _work(point)
            os._exit(0)
        children[child] = point
    while children:
        child, status = os.wait()
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        tell("ended", point=queue_of(children.pop(child)), killed=killed)


if __name__ == "__main__":
    import_module("tests.system.points").main()  # the one that the app asks, and not this one
