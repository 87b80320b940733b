"""Cancelling runs: by people, by events, with those that wait for them, or since they are late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import json

from ...model.change import CancelMet, RunSettled
from .calls import Call, Flow, encoded
from .dialect import Dialect
from .ends import telling, telling_parents


class Cancellation(NamedTuple):
    """A run that was cancelled at once, or whose worker was asked to stop it."""

    id: str
    state: str
    worker: str | None


def cancelling(
    ids: Sequence[str],
    reason: str,
    dialect: Dialect,
    *,
    state: str | None = None,
    code: str = "cancelled",
    reasons: Mapping[str, str] | None = None,
) -> Flow[list[Cancellation]]:
    """`state`: only those that are still in it, and that nobody else is changing at the moment. `code`: why, in one
    word; what they wait for is cancelled with them. `reasons`: of those that have their own."""
    if state is not None:
        ids = yield from still(state, ids)
    own = encoded(reasons) if reasons else None
    cancelled: list[Cancellation] = []
    while ids:
        rows = yield Call("cancel_runs", {"ids": encoded(ids), "reason": reason, "code": code, "reasons": own})
        cancelled += [Cancellation(row[0], row[1], row[2]) for row in rows]
        ids = [row[0] for row in (yield Call("children_of", {"ids": encoded(ids)}))] if rows else []
        code = "cancelled"
    if ended := [run.id for run in cancelled if run.state == "cancelled"]:
        freed = [{"run_id": run_id, "state": "cancelled"} for run_id in sorted(ended)]
        yield Call("free_keys", {"freed": encoded(freed)})
        yield from telling_parents(ended)
        yield from telling(ended, dialect)
    return cancelled


def still(state: str, ids: Sequence[str]) -> Flow[list[str]]:
    """Those of the runs that are in the state, locked."""
    return [row[0] for row in (yield Call("lock_runs", {"ids": encoded(ids), "state": state}))]


def cancelling_by_events(cancels: Sequence[CancelMet], dialect: Dialect) -> Flow[None]:
    """Each for its own event, and what they wait for with them."""
    reasons = {cancel.run_id: cancel.reason for cancel in cancels}
    yield from cancelling(sorted(reasons), "cancelled with the run that waited for it", dialect, reasons=reasons)


def cancelling_children(cancelled: Sequence[RunSettled], dialect: Dialect) -> Flow[None]:
    """Cancels what runs wait for that have cancelled themselves."""
    for change in cancelled:
        if children := [row[0] for row in (yield Call("children_of", {"ids": encoded([change.run_id])}))]:
            reason = "cancelled" if change.error is None else json.decode(change.error)["message"]
            yield from cancelling(children, reason, dialect)


OVERDUE = {"start_timeout": "it had not started in time", "finish_timeout": "it had not ended in time"}
"""What is told of runs that are cancelled since they are late."""


def looking_for_overdue() -> Flow[float | None]:
    """Seconds until a run is overdue."""
    wait = (yield Call("next_overdue", {}))[0][0]
    return None if wait is None else max(0.0, wait)


def ending_overdue(limit: int, dialect: Dialect) -> Flow[list[Cancellation]]:
    """Cancels what has not started, or not ended, by its time."""
    late: dict[str, str] = {}
    for run_id, code in (yield Call("overdue", {"limit": limit})):
        late.setdefault(run_id, code)
    cancelled: list[Cancellation] = []
    for code, reason in OVERDUE.items():
        if ids := [run_id for run_id in late if late[run_id] == code]:
            cancelled += yield from cancelling(ids, reason, dialect, code=code)
    return cancelled
