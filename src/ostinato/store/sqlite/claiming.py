"""Claiming, saving steps and completing, in statements that answer with one row each (see runs.sql)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter

from msgspec import json, structs

from ...model.change import RunCompleted, StepSaved
from ...model.run import Claimed, Mark
from ..flows import Call, Flow, encoded

_decode = json.Decoder(list[Claimed]).decode
_order = attrgetter("due", "id")
_NONE = "[]"


def claiming(
    queue: str, limit: int, *, worker: str, mark: Mark, suspect: bool, versions: str | None = None
) -> Flow[list[Claimed]]:
    wanted = {"queue": queue, "limit": limit, "worker": worker, "suspect": suspect}
    ((rows,),) = yield Call("claimable", {**wanted, "mark_due": mark.due, "mark_id": mark.id})
    if rows == _NONE:
        return []
    yield Call("claim", {"rows": rows, "worker": worker, "alone": suspect or limit == 1})
    if versions is not None:
        yield Call("stamp_versions", {"rows": rows, "versions": versions})
    ((found,),) = yield Call("claimed", {"rows": rows})
    claimed = _decode(found)
    claimed.sort(key=_order)
    return [structs.replace(run, suspect=True) for run in claimed] if suspect else claimed


def saving(steps: Sequence[StepSaved]) -> Flow[Collection[str]]:
    given = encoded(steps)
    ((found,),) = yield Call("fenced_runs", {"steps": given})
    fenced = dict(json.decode(found, type=list[tuple[str, int]]))
    refused = {step.run_id for step in steps if fenced.get(step.run_id) != step.lease_no}
    if refused:
        given = encoded([step for step in steps if step.run_id not in refused])
    if fenced.keys() - refused:
        yield Call("save_steps", {"steps": given})
    return fenced.keys() - refused


def completing(settlements: Sequence[RunCompleted]) -> Flow[Collection[str]]:
    ((rows, count, ids),) = yield Call("completable", {"settlements": encoded(settlements)})
    if count:
        yield Call("complete_runs", {"rows": rows})
    return [each.run_id for each in settlements] if ids is None else json.decode(ids, type=list[str])
