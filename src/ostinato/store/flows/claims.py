"""What there is to claim, and when there will be."""

from __future__ import annotations

from .calls import Call, Flow


def owned(queue: str, worker: str) -> Flow[list[tuple[str, int]]]:
    return [(row[0], row[1]) for row in (yield Call("owned_runs", {"queue": queue, "worker": worker}))]


def releasing(queue: str, limit: int) -> Flow[int]:
    return len((yield Call("release_due", {"queue": queue, "limit": limit})))


def looking_ahead(queue: str) -> Flow[float | None]:
    rows = yield Call("next_due", {"queue": queue})
    return max(0.0, rows[0][0]) if rows else None
