"""Claiming, saving steps and completing, in one statement each (see runs.sql)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from ...model.change import RunCompleted, StepSaved
from ...model.run import Claimed, Mark
from ..flows import Call, Flow, encoded

_claimed: Callable[..., Claimed] = Claimed
_order = attrgetter("due", "id")


def claiming(
    queue: str, limit: int, *, worker: str, mark: Mark, suspect: bool, versions: str | None = None
) -> Flow[list[Claimed]]:
    rows = yield Call(
        "claim",
        {
            "queue": queue,
            "limit": limit,
            "worker": worker,
            "mark_due": mark.due,
            "mark_id": mark.id,
            "suspect": suspect,
            "alone": suspect or limit == 1,
            "versions": versions,
        },
    )
    claimed = [_claimed(*row, suspect) for row in rows]
    claimed.sort(key=_order)
    return claimed


def saving(steps: Sequence[StepSaved]) -> Flow[Collection[str]]:
    return [row[0] for row in (yield Call("save_steps", {"steps": encoded(steps)}))]


def completing(settlements: Sequence[RunCompleted]) -> Flow[Collection[str]]:
    ((held, _),) = yield Call("complete_runs", {"settlements": encoded(settlements)})
    return held or ()
