"""Everything that happens in a process is announced once, as a typed event. Logs, metrics and tests listen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct, json

logger = logging.getLogger("ostinato")


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened here."""


class WorkerStarted(Event, frozen=True):
    worker: str
    queues: dict[str, int]


class WorkerStopping(Event, frozen=True):
    worker: str
    running: int
    forced: bool = False


class WorkerStopped(Event, frozen=True):
    worker: str
    given_back: int = 0


class RunClaimed(Event, frozen=True):
    run_id: str
    function: str
    queue: str
    attempt: int
    worker: str
    waited: float
    metadata: dict[str, Any] | None = None
    trace_id: str | None = None


class RunCompleted(Event, frozen=True):
    run_id: str
    function: str
    queue: str
    attempt: int
    worker: str
    duration: float
    metadata: dict[str, Any] | None = None
    trace_id: str | None = None


class RunFailed(Event, frozen=True):
    """An attempt failed; the run too, unless it will be retried."""

    run_id: str
    function: str
    queue: str
    attempt: int
    worker: str
    duration: float
    error_code: str
    message: str
    will_retry: bool
    retry_in: float | None = None
    metadata: dict[str, Any] | None = None
    trace_id: str | None = None


class RunCancelled(Event, frozen=True):
    run_id: str
    function: str
    queue: str
    attempt: int
    worker: str
    duration: float
    reason: str
    metadata: dict[str, Any] | None = None
    trace_id: str | None = None


class RunGivenBack(Event, frozen=True):
    run_id: str
    function: str
    queue: str
    worker: str
    trace_id: str | None = None


class RunSuspended(Event, frozen=True):
    """A run was left to wait, and holds nothing here any more."""

    run_id: str
    function: str
    queue: str
    worker: str
    reason: str
    trace_id: str | None = None


class StepCompleted(Event, frozen=True):
    """A step was done, and is remembered."""

    run_id: str
    function: str
    step: str
    kind: str
    duration: float


class StepRetried(Event, frozen=True):
    """A step failed, and will be tried again."""

    run_id: str
    function: str
    step: str
    error_code: str
    message: str
    retry_count: int
    retry_in: float


class StepFailed(Event, frozen=True):
    """A step has failed for good."""

    run_id: str
    function: str
    step: str
    error_code: str
    message: str
    retry_count: int


class StaleWriteRefused(Event, frozen=True):
    """A settlement came too late: the run belongs to somebody else by now."""

    run_id: str
    function: str
    lease_no: int
    worker: str
    trace_id: str | None = None


class LeaseRenewed(Event, frozen=True):
    worker: str


class LeaseLost(Event, frozen=True):
    worker: str
    why: str


class WorkerBuried(Event, frozen=True):
    """A worker's lease ran out, and it was declared dead."""

    worker: str


class RunRescued(Event, frozen=True):
    """A run was taken away from a dead worker: it goes again, unless its attempts are used up or somebody had cancelled
    it."""

    run_id: str
    function: str
    dead_worker: str
    failed: bool
    cancelled: bool = False


class NotificationReceived(Event, frozen=True):
    channel: str


class QueueScanned(Event, frozen=True):
    """A look at the queue for runs to claim. `woken`: a wake-up had asked for it, from the database or from this
    process; else it was the scan at start, a poll, or one of the looks of a worker that stays awake under load."""

    queue: str
    found: int
    woken: bool = False


class QueueAsleep(Event, frozen=True):
    """Nothing is ready; the worker waits for a wake-up on this queue."""

    queue: str


class ListeningChanged(Event, frozen=True):
    working: bool
    why: str


class StoreTroubled(Event, frozen=True):
    """The database did not do what a service asked; the service tries again."""

    service: str
    error: str
    retry_in: float


class MetricsServed(Event, frozen=True):
    """Metrics and health can be asked for at this address."""

    url: str


class RunsPruned(Event, frozen=True):
    state: str
    count: int


class EventsPruned(Event, frozen=True):
    """Events were removed from the ledger, since they had been kept long enough."""

    count: int


class ScheduleFired(Event, frozen=True):
    """A run was started for a slot of a schedule, `late` seconds after it, or by hand."""

    schedule: str
    function: str
    run_id: str
    slot: datetime
    late: float
    by_hand: bool = False


class ScheduleMissed(Event, frozen=True):
    """Slots from `since` on, before `until`, had passed before anybody looked, and get no run."""

    schedule: str
    function: str
    since: datetime
    until: datetime


class ScheduleBlocked(Event, frozen=True):
    """A schedule could not start its run; it is tried again."""

    schedule: str
    function: str
    error: str
    retry_in: float


E = TypeVar("E", bound=Event)


class SubscriptionCaughtUp(Event, frozen=True):
    """A subscription that begins in the past was given what was in the ledger when it came."""

    subscription: str
    events: int


class EventsDrained(Event, frozen=True):
    """A drainer has dealt with a page of the ledger."""

    drainer: str
    processed: int
    triggered: int = 0
    parked: int = 0


class DrainerHalted(Event, frozen=True):
    """A drainer cannot go on past an event for now."""

    drainer: str
    event_id: str | None
    error: str
    retry_in: float


class DrainerAsleep(Event, frozen=True):
    """A drainer has read everything and waits for more."""

    drainer: str


class FollowerAsleep(Event, frozen=True):
    """Who follows the events of a glob has read everything and waits for more."""

    on: str


class Telemetry:
    """Passes events on to whoever asked for their type."""

    def __init__(self) -> None:
        self._listeners: dict[type[Event], list[Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[E], listener: Callable[[E], None]) -> Callable[[], None]:
        """Calls `listener` for each event of the kind (`Event`: all) until the returned function is called."""
        listeners = self._listeners.setdefault(kind, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody listens: what happens thirty thousand times a second is not even put into words otherwise."""
        return bool(self._listeners.get(kind) or self._listeners.get(Event))

    def announce(self, event: Event) -> None:
        for listener in (*self._listeners.get(type(event), ()), *self._listeners.get(Event, ())):
            try:
                listener(event)
            except Exception:
                logger.exception("a telemetry listener failed on %s", type(event).__name__)


# --- logs -----------------------------------------------------------------------------------------------------------


def log_to(log: logging.Logger, telemetry: Telemetry) -> None:
    """Logs what happens. The per-run events are only listened to when their level is logged."""
    for kind, (level, name) in _LOGGED.items():
        if log.isEnabledFor(level):
            telemetry.subscribe(kind, partial(_log, log, level, name))


def _log(log: logging.Logger, level: int, name: str, event: Event) -> None:
    if isinstance(event, ListeningChanged) and event.working:
        level = logging.INFO
    fields = _fields(event)
    summary = " ".join(f"{key}={value}" for key, value in fields.items())
    log.log(level, "%s %s", name, summary, extra={"ostinato_event": {**fields, "event": name}})


def _fields(event: Event) -> dict[str, Any]:
    """The names that the logs of job queues are searched by: job_id, worker_id, duration_ms; metadata is copied in."""
    fields: dict[str, Any] = {}
    for key in event.__struct_fields__:
        value = getattr(event, key)
        if key == "metadata":
            fields = {**(value or {}), **fields}
        elif key == "duration":
            fields["duration_ms"] = round(value * 1000, 3)
        elif value is not None:
            fields[_LOG_NAMES.get(key, key)] = value
    return fields


_LOG_NAMES = {"run_id": "job_id", "function": "job_type", "worker": "worker_id"}

_LOGGED: dict[type[Event], tuple[int, str]] = {
    RunClaimed: (logging.INFO, "job_claimed"),
    RunCompleted: (logging.INFO, "job_completed"),
    RunFailed: (logging.WARNING, "job_failed"),
    RunCancelled: (logging.INFO, "job_cancelled"),
    RunGivenBack: (logging.INFO, "job_given_back"),
    RunSuspended: (logging.DEBUG, "job_suspended"),
    StepCompleted: (logging.DEBUG, "step_completed"),
    StepRetried: (logging.WARNING, "step_retried"),
    StepFailed: (logging.ERROR, "step_failed"),
    RunRescued: (logging.WARNING, "job_rescued"),
    StaleWriteRefused: (logging.WARNING, "stale_write_refused"),
    WorkerStarted: (logging.INFO, "worker_started"),
    WorkerStopping: (logging.INFO, "worker_stopping"),
    WorkerStopped: (logging.INFO, "worker_stopped"),
    WorkerBuried: (logging.WARNING, "worker_buried"),
    LeaseLost: (logging.ERROR, "lease_lost"),
    ListeningChanged: (logging.WARNING, "listening_changed"),
    StoreTroubled: (logging.WARNING, "store_troubled"),
    RunsPruned: (logging.DEBUG, "runs_pruned"),
    EventsPruned: (logging.DEBUG, "events_pruned"),
    SubscriptionCaughtUp: (logging.INFO, "subscription_caught_up"),
    ScheduleFired: (logging.INFO, "schedule_fired"),
    ScheduleMissed: (logging.WARNING, "schedule_missed"),
    ScheduleBlocked: (logging.WARNING, "schedule_blocked"),
    MetricsServed: (logging.INFO, "metrics_served"),
    EventsDrained: (logging.DEBUG, "events_drained"),
    DrainerHalted: (logging.WARNING, "drainer_halted"),
}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        event = getattr(record, "ostinato_event", None)
        fields = {**fields, **(event or {"message": record.getMessage()}), **fields}  # ours win, and come first
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.encode(fields, enc_hook=str).decode()
