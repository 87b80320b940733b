"""What else people do to runs, and removing those that nobody needs."""

from __future__ import annotations

from collections.abc import Sequence

from .calls import Call, Flow, encoded
from .cancellations import cancelling, still
from .dialect import Dialect


def retrying(ids: Sequence[str], *, state: str | None = None) -> Flow[dict[str, str]]:
    """Failed and cancelled runs back to ready → their queues."""
    if state is not None:
        ids = yield from still(state, ids)
    yield Call("retake_keys", {"ids": encoded(ids)})
    rows = yield Call("retry_runs", {"ids": encoded(ids)})
    yield Call("forget_unfinished", {"ids": encoded([row[0] for row in rows])})
    return {row[0]: row[1] for row in rows}


def copying(run_id: str, *, copy: str, place: int) -> Flow[bool]:
    """A new run like one that has ended, which remembers what that had completed before a place; False if it has not
    ended."""
    copied = yield Call("copy_run", {"id": run_id, "copy": copy})
    if copied:
        yield Call("copy_steps", {"id": run_id, "copy": copy, "place": place})
    return bool(copied)


def purging(ids: Sequence[str], dialect: Dialect, *, state: str) -> Flow[list[str]]:
    """Deletes runs that are still in the state. The keys of ended ones were freed when they ended, as far as they ever
    are; waiting ones are cancelled first, so that their keys are freed and whoever waits for them is told."""
    if purged := (yield from still(state, ids)):
        if state in ("held", "ready"):
            yield from cancelling(purged, "purged", dialect)
        yield Call("purge_runs", {"ids": encoded(purged)})
        yield Call("prune_attempts", {"ids": encoded(purged)})
        yield Call("prune_steps", {"ids": encoded(purged)})
    return purged


def pruning(state: str, *, keep: float, limit: int) -> Flow[int]:
    ids = [row[0] for row in (yield Call("prune_runs", {"state": state, "keep": keep, "limit": limit}))]
    if ids:
        yield Call("prune_attempts", {"ids": encoded(ids)})
        yield Call("prune_steps", {"ids": encoded(ids)})
    return len(ids)


def tidying() -> Flow[None]:
    yield Call("prune_keys", {"limit": 1000})
    yield Call("forget_workers", {})
    yield Call("forget_schedules", {})
