"""Wake-ups: what they say, and who hears them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Rung(Struct, frozen=True):
    """Runs may be ready in this queue; in any queue, when it is None."""

    queue: str | None


class RunsEnded(Struct, frozen=True):
    """These runs have ended; any may have, when it is None."""

    ids: tuple[str, ...] | None


class CancelAsked(Struct, frozen=True):
    """Somebody wants a running run stopped."""


class SchedulesChanged(Struct, frozen=True):
    """Somebody declared, paused or resumed schedules."""


class EventsRecorded(Struct, frozen=True):
    """There may be new events in the ledger."""


class ListenerChanged(Struct, frozen=True):
    """Wake-ups work again (everything armed is to be armed anew, and what was missed is to be looked for), or do
    not."""

    working: bool
    why: str


Signal = Rung | RunsEnded | CancelAsked | SchedulesChanged | EventsRecorded | ListenerChanged


RESULTS = "r"
"""The topic of those who wait for results."""


LEDGER = "e"
"""The topic of those who wait for events."""


def queue_topic(queue: str) -> str:
    return f"q:{queue}"


class Listener(Protocol):
    """A process's ear. Signals are only wake-ups: any of them may be lost, and polling is the truth."""

    @property
    def working(self) -> bool:
        """Whether signals arrive, as far as is known."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def arm(self, topic: str) -> bool:
        """Asks for signals about a topic from now on; asking again is harmless.

        Answers whether everything that began before the arming has ended by now. Until it has, its commits may
        come without a signal, and the caller looks for itself. Look *after* this answered, then wait.
        """

    async def disarm(self, topic: str) -> None: ...
