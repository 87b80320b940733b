"""Who wants to be woken by what. Signals are hints: every sleeper also polls."""

from __future__ import annotations

from collections.abc import Callable

from ..store.ports import (
    CancelAsked,
    EventsRecorded,
    Listener,
    ListenerChanged,
    Rung,
    RunsEnded,
    SchedulesChanged,
    Signal,
    Store,
)
from ..telemetry import ListeningChanged, NotificationReceived, Telemetry
from .alarm import Alarm

POLL_WITHOUT_SIGNALS = 1.0


class Wakeups:
    """The process's listener and those who listen through it."""

    def __init__(self, store: Store, telemetry: Telemetry, *, enabled: bool) -> None:
        self._telemetry = telemetry
        self._listener: Listener | None = store.listener(self._on_signal) if enabled else None
        self._bells: dict[str, set[Alarm]] = {}
        self._on_ended: list[Callable[[], None]] = []
        self._on_cancel: list[Callable[[], None]] = []
        self._on_schedules: list[Callable[[], None]] = []
        self._on_events: list[Callable[[], None]] = []

    async def start(self) -> None:
        if self._listener is not None:
            await self._listener.start()

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()

    @property
    def working(self) -> bool:
        return self._listener is not None and self._listener.working

    def poll_interval(self, wanted: float) -> float:
        """How long to sleep without a signal: as configured while signals work, faster when they do not."""
        return wanted if self.working else min(wanted, POLL_WITHOUT_SIGNALS)

    def bell(self, queue: str) -> Alarm:
        """An alarm that is set when runs may be ready in the queue."""
        bell = Alarm()
        self._bells.setdefault(queue, set()).add(bell)
        return bell

    def on_runs_ended(self, listener: Callable[[], None]) -> None:
        self._on_ended.append(listener)

    def on_cancel_asked(self, listener: Callable[[], None]) -> None:
        self._on_cancel.append(listener)

    def on_schedules_changed(self, listener: Callable[[], None]) -> None:
        self._on_schedules.append(listener)

    def on_events_recorded(self, listener: Callable[[], None]) -> None:
        self._on_events.append(listener)

    async def arm(self, topic: str) -> bool:
        return await self._listener.arm(topic) if self._listener is not None else False

    async def disarm(self, topic: str) -> None:
        if self._listener is not None:
            await self._listener.disarm(topic)

    def ring(self, queue: str | None = None) -> None:
        """Wakes those who sleep on the queue, or on any, in this process."""
        for bells in self._bells.values() if queue is None else (self._bells.get(queue, set()),):
            for bell in bells:
                bell.set()

    def _on_signal(self, signal: Signal) -> None:
        match signal:
            case Rung(queue):
                self._received("queue")
                self.ring(queue)
            case RunsEnded():
                self._received("results")
                self._call(self._on_ended)
            case CancelAsked():
                self._received("cancel")
                self._call(self._on_cancel)
            case EventsRecorded():
                self._received("ledger")
                self._call(self._on_events)
            case SchedulesChanged():
                self._received("schedules")
                self._call(self._on_schedules)
            case ListenerChanged(working, why):
                self._telemetry.announce(ListeningChanged(working=working, why=why))
                self.ring()
                self._call(self._on_ended)
                self._call(self._on_cancel)
                self._call(self._on_schedules)
                self._call(self._on_events)

    def _received(self, channel: str) -> None:
        if self._telemetry.wants(NotificationReceived):
            self._telemetry.announce(NotificationReceived(channel=channel))

    @staticmethod
    def _call(listeners: list[Callable[[], None]]) -> None:
        for listener in listeners:
            listener()
