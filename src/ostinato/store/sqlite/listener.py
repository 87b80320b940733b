"""The ear of a process on SQLite: the writer's thread watches the file for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..ports import LEDGER, RESULTS, CancelAsked, EventsRecorded, Rung, RunsEnded, SchedulesChanged, Signal
from .watch import Watch
from .writer import Writer


class SqliteListener:
    """Passes on what the watch tells about armed topics, and any cancelling, on the event loop that started it."""

    def __init__(self, writer: Writer, watch: Watch, on_signal: Callable[[Signal], None]) -> None:
        self._writer, self._watch, self._on_signal = writer, watch, on_signal
        self._topics: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def working(self) -> bool:
        return self._loop is not None

    @property
    def armed(self) -> bool:
        return bool(self._topics)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch.add(self)
        self._writer.nudge()

    async def stop(self) -> None:
        self._watch.remove(self)
        self._topics.clear()
        self._loop = None

    async def arm(self, topic: str) -> bool:
        """Whoever commits later is seen later, so there is nothing to wait for."""
        if not self.working:
            return False
        if topic not in self._topics:
            drowsy = self._watch.drowsy
            self._topics.add(topic)
            self._watch.stir()
            if drowsy:
                self._writer.nudge()
        return True

    async def disarm(self, topic: str) -> None:
        self._topics.discard(topic)

    def hear(self, signals: Iterable[Signal]) -> None:
        """Called on the writer's thread."""
        loop, wanted = self._loop, [signal for signal in signals if self._wants(signal)]
        if loop is not None and wanted:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._pass_on, wanted)

    def _wants(self, signal: Signal) -> bool:
        match signal:
            case Rung():
                return self._topics - {RESULTS, LEDGER} != set()
            case RunsEnded():
                return RESULTS in self._topics
            case EventsRecorded():
                return LEDGER in self._topics
            case _:
                return isinstance(signal, CancelAsked | SchedulesChanged)

    def _pass_on(self, signals: Iterable[Signal]) -> None:
        if self._loop is not None:
            for signal in signals:
                self._on_signal(signal)
