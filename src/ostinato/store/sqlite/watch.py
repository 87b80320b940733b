"""What listeners are told: what this store commits, as it does, and what others commit, by looking at the file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from ..ports import CancelAsked, EventsRecorded, Rung, RunsEnded, SchedulesChanged, Signal

FASTEST = 0.002
SLOWEST = 0.050
FAST_FOR = 10.0

ANYTHING: tuple[Signal, ...] = (Rung(None), RunsEnded(None), CancelAsked(), EventsRecorded())

_TELLING: dict[str, tuple[Signal, ...]] = {
    "insert_runs": (Rung(None),),
    "release_due": (Rung(None),),
    "retry_runs": (Rung(None),),
    "resume_queue": (Rung(None),),
    "wake_runs": (Rung(None),),
    "copy_run": (Rung(None),),
    "settle_runs": (Rung(None), RunsEnded(None)),
    "complete_runs": (RunsEnded(None),),
    "cancel_runs": (RunsEnded(None), CancelAsked()),
    "insert_events": (EventsRecorded(),),
    "reset_drainer": (EventsRecorded(),),
    "declare_schedules": (SchedulesChanged(),),
    "pause_schedule": (SchedulesChanged(),),
    "resume_schedule": (SchedulesChanged(),),
}
"""What follows for others from a block that this store has executed. Claims and leases concern nobody."""


class Ear(Protocol):
    """A listener, as the writer's thread sees it."""

    @property
    def armed(self) -> bool: ...

    def hear(self, signals: Iterable[Signal]) -> None:
        """Called on the writer's thread."""


class Watch:
    """Lives on the writer's thread, whose `PRAGMA data_version` changes when others have committed, and only then.

    Every commit of others is a signal, even the renewal of a lease. So looking is fast for a while after this store has
    changed something or somebody has begun to wait, not after a signal: the leases alone would keep everybody awake.
    """

    def __init__(self) -> None:
        self._ears: tuple[Ear, ...] = ()
        self._version: int | None = None
        self._looked = self._active = float("-inf")
        self.executed: set[str] = set()
        """The blocks executed since the last commit."""

    # --- on any thread

    @property
    def listened_to(self) -> bool:
        return bool(self._ears)

    def add(self, ear: Ear) -> None:
        self._ears = (*self._ears, ear)

    def remove(self, ear: Ear) -> None:
        self._ears = tuple(other for other in self._ears if other is not ear)

    @property
    def drowsy(self) -> bool:
        """Whether the next look may be a while off."""
        return (self.pause() or SLOWEST) > FASTEST

    def stir(self) -> None:
        """Somebody waits from now on."""
        self._active = time.monotonic()

    # --- on the writer's thread

    def pause(self) -> float | None:
        """Seconds until the next look; None when nobody listens."""
        if not self._ears:
            return None
        return pause_after(time.monotonic() - self._active) if any(ear.armed for ear in self._ears) else SLOWEST

    def look(self, connection: sqlite3.Connection) -> None:
        """Tells what others have committed, if there is anything and it is time."""
        now = time.monotonic()
        if not self._ears or now - self._looked < FASTEST:
            return
        self._looked = now
        with suppress(sqlite3.Error):  # in the way of a checkpoint: the next look will tell
            version, before = _data_version(connection), self._version
            self._version = version
            if version != before:
                self._tell(ANYTHING)

    def committed(self, *, changed: bool) -> None:
        """Tells what this store itself has just committed."""
        executed, self.executed = self.executed, set()
        if changed and self._ears:
            self._active = time.monotonic()
            self._tell({signal for block in executed for signal in _TELLING.get(block, ())})

    def _tell(self, signals: Iterable[Signal]) -> None:
        if signals:
            for ear in self._ears:
                ear.hear(signals)


def pause_after(idle: float) -> float:
    """How long to pause between looks when nothing has happened for a while.

    >>> [pause_after(idle) for idle in (0, 10, 20, 60)]
    [0.002, 0.002, 0.008, 0.05]
    """
    return min(SLOWEST, FASTEST * max(1.0, idle / FAST_FOR) ** 2)


def _data_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("pragma data_version").fetchone()
    return int(version)
