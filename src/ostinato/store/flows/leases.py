"""The leases of workers, and the runs of those that lost theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...model.change import KeyFreed
from ...model.outcome import rescue
from ...model.run import Orphan
from .calls import Call, Flow, encoded
from .dialect import Dialect
from .ends import telling, telling_parents
from .settlements import areas_of, settling

_orphan: Callable[..., Orphan] = Orphan


def registering(worker: str, *, name: str, queues: Mapping[str, int], lease: float) -> Flow[None]:
    yield Call("register_worker", {"worker": worker, "name": name, "queues": encoded(queues), "lease": lease})


def renewing(worker: str, *, stopping: bool) -> Flow[bool]:
    return bool((yield Call("renew_worker", {"worker": worker, "stopping": stopping})))


def retiring(worker: str) -> Flow[None]:
    yield Call("retire_worker", {"worker": worker})


def expired() -> Flow[dict[str, str]]:
    """Workers whose lease has run out → when they last renewed it."""
    return {row[0]: row[1] for row in (yield Call("expired_workers", {}))}


def burying(worker: str, renewed: str) -> Flow[bool]:
    """Declares a worker dead, unless it has renewed its lease since."""
    return bool((yield Call("bury_worker", {"worker": worker, "renewed": renewed})))


def rescuing(limit: int, dialect: Dialect) -> Flow[list[Orphan]]:
    rows = yield Call("lock_orphans", {"limit": limit})
    orphans = [_orphan(*row[:6], bool(row[6]), bool(row[7]), *row[8:]) for row in rows]  # SQLite has no booleans
    if orphans:
        changes = [change for orphan in orphans for change in rescue(orphan)]
        yield from settling(areas_of(changes))
        if ended := [change.run_id for change in changes if isinstance(change, KeyFreed)]:
            yield from telling_parents(ended)
            yield from telling(ended, dialect)
    return orphans


def cancelled_of(worker: str) -> Flow[dict[str, str]]:
    return {row[0]: row[1] or "cancelled" for row in (yield Call("cancelled_of", {"worker": worker}))}
