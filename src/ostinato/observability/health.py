"""Whether a worker is alive and able to work, asked from beside its event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from ..engine.worker import Worker
from ..errors import NotMigrated
from ..store.ports import Store
from .aside import Aside

LOOP_LIMIT = 10.0
BETWEEN_BEATS = 0.5
DATABASE_PATIENCE = 2.0
DATABASE_KEPT_FOR = 1.0

OK = "ok"


class Report(Struct, frozen=True):
    """What was checked, and what was found: `ok`, or what is wrong."""

    checks: Mapping[str, str]

    @property
    def well(self) -> bool:
        return all(found == OK for found in self.checks.values())


class Pulse:
    """Asks an event loop for a sign of life, now and again, and knows for how long it has owed one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._owed_since: float | None = None
        self._next = 0.0

    def beat(self) -> None:
        """Asks, when it is time and the last question was answered. Called often, on a thread of its own."""
        now = time.monotonic()
        if self._owed_since is None and now >= self._next and not self._loop.is_closed():
            self._owed_since, self._next = now, now + BETWEEN_BEATS
            self._loop.call_soon_threadsafe(self._answer)

    @property
    def lag(self) -> float:
        """For how many seconds the loop has not answered."""
        since = self._owed_since
        return 0.0 if since is None else time.monotonic() - since

    def _answer(self) -> None:
        self._owed_since = None


class Health:
    """The checks of one worker."""

    def __init__(self, worker: Worker, aside: Aside, pulse: Pulse, *, loop_limit: float) -> None:
        self._worker, self._aside, self._pulse, self._loop_limit = worker, aside, pulse, loop_limit
        self._asking = threading.Lock()
        self._database: dict[str, str] = {}
        self._keep_until = 0.0

    def alive(self) -> Report:
        return Report({"loop": self._loop()})

    def ready(self) -> Report:
        return Report({"loop": self._loop(), "worker": self._work(), "lease": self._lease(), **self._store()})

    def _loop(self) -> str:
        lag = self._pulse.lag
        return OK if lag < self._loop_limit else f"the event loop has not answered for {lag:.1f} s"

    def _work(self) -> str:
        if self._worker.stopping:
            return "the worker is stopping"
        return OK if self._worker.started.is_set() else "the worker has not started yet"

    def _lease(self) -> str:
        return OK if self._worker.has_lease else "the worker has no lease, so it claims nothing and owns nothing"

    def _store(self) -> dict[str, str]:
        """What the database says, asked once a second at most."""
        with self._asking:
            if time.monotonic() >= self._keep_until:
                self._database = _asked(lambda: self._aside.ask(_touch, timeout=DATABASE_PATIENCE))
                self._keep_until = time.monotonic() + DATABASE_KEPT_FOR
            return self._database


async def _touch(store: Store) -> None:
    """Reads from our tables without reading anything."""
    await store.views.existing([])


def _asked(question: Callable[[], None]) -> dict[str, str]:
    try:
        question()
    except NotMigrated as error:
        return {"database": OK, "schema": str(error)}
    except Exception as error:  # whatever it is, it is what was asked for
        return {"database": str(error) or type(error).__name__, "schema": "unknown: the database gave no answer"}
    return {"database": OK, "schema": OK}
