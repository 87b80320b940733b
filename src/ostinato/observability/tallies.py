"""Everything that was announced, added up under bounded labels."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric

from ..telemetry import (
    Event,
    LeaseLost,
    LeaseRenewed,
    NotificationReceived,
    QueueScanned,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunFailed,
    RunGivenBack,
    RunRescued,
    RunSuspended,
    ScheduleFired,
    StaleWriteRefused,
    StepCompleted,
    StepFailed,
    StepRetried,
    Telemetry,
    WorkerBuried,
    WorkerStarted,
    WorkerStopped,
)

OTHER = "other"
"""The job type of functions that the app does not know."""

WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

STATUSES = ("success", "failed", "dead")
STEP_STATUSES = ("completed", "retried", "failed")
BY_TYPE = {
    "cancelled": "Runs cancelled while they were executed here.",
    "given_back": "Runs given back at shutdown.",
    "suspended": "Runs left to wait for a time, an event, another run or a step's next try.",
    "stale_writes_refused": "Attempts whose run belonged to another worker when they ended.",
    "rescued": "Runs that this worker took away from dead ones.",
    "schedules_fired": "Runs started by schedules, or by hand in their place.",
}
HERE = {
    "poll_scanned": "Runs found by looks that no wake-up had asked for.",
    "lease_renewals": "Renewals of the worker's lease.",
    "leases_lost": "Leases that were not renewed in time.",
    "workers_buried": "Other workers that this one declared dead.",
}


class Tallies:
    """What was announced, added up: in plain numbers, since it happens tens of thousands of times a second."""

    def __init__(self, telemetry: Telemetry, *, known: Mapping[str, object]) -> None:
        self._known = known
        self._lock = threading.Lock()
        self._types: dict[str, Tally] = {}
        self._here: Counter[str] = Counter()
        self._channels: Counter[str] = Counter()
        self._ended: set[str] = set()
        """Identities of workers that are over."""
        for kind, listener in self._listeners().items():
            telemetry.subscribe(kind, partial(self._alone, listener))

    def _listeners(self) -> dict[type[Event], Callable[[Any], None]]:
        return {
            RunClaimed: self._on_claimed,
            RunCompleted: lambda event: self._of(event).ended("success", event.duration),
            RunFailed: lambda event: self._of(event).ended("failed" if event.will_retry else "dead", event.duration),
            RunCancelled: lambda event: self._of(event).ended("cancelled", event.duration),
            RunGivenBack: lambda event: self._of(event).count("given_back"),
            RunSuspended: lambda event: self._of(event).count("suspended"),
            StepCompleted: self._on_step_completed,
            StepRetried: lambda event: self._of(event).step("retried"),
            StepFailed: lambda event: self._of(event).step("failed"),
            StaleWriteRefused: lambda event: self._of(event).count("stale_writes_refused"),
            RunRescued: self._on_rescued,
            ScheduleFired: lambda event: self._of(event).count("schedules_fired"),
            NotificationReceived: lambda event: self._channels.update([event.channel]),
            QueueScanned: self._on_scanned,
            LeaseRenewed: lambda event: self._here.update(["lease_renewals"]),
            LeaseLost: self._on_lease_lost,
            WorkerBuried: lambda event: self._here.update(["workers_buried"]),
            WorkerStarted: self._on_started,
            WorkerStopped: lambda event: self._ended.add(event.worker),
        }

    def _alone(self, listener: Callable[[Any], None], event: Event) -> None:
        """Workers of several threads may announce at the same moment."""
        with self._lock:
            listener(event)

    # --- listening

    def _of(self, event: Any) -> Tally:
        """The tally of a run's job type; of a function that the app does not know, that of all others."""
        name = event.function if event.function in self._known else OTHER
        if (tally := self._types.get(name)) is None:
            tally = self._types[name] = Tally()
        return tally

    def _on_claimed(self, event: RunClaimed) -> None:
        tally = self._of(event)
        tally.claimed[event.worker] += 1
        tally.waits.observe(max(0.0, event.waited))

    def _on_step_completed(self, event: StepCompleted) -> None:
        if event.kind == "step":  # the others wait, which says nothing of how long things take
            tally = self._of(event)
            tally.step("completed")
            tally.step_durations.observe(event.duration)

    def _on_rescued(self, event: RunRescued) -> None:
        tally = self._of(event)
        tally.count("rescued")
        if event.failed:
            tally.count("dead")

    def _on_scanned(self, event: QueueScanned) -> None:
        if not event.woken:
            self._here["poll_scanned"] += event.found

    def _on_lease_lost(self, event: LeaseLost) -> None:
        self._here["leases_lost"] += 1
        self._ended.add(event.worker)

    def _on_started(self, event: WorkerStarted) -> None:
        """A new identity: the series of those that are over go, and those of the functions begin at zero."""
        for name in self._known:
            self._types.setdefault(name, Tally()).claimed[event.worker] += 0
        for tally in self._types.values():
            for worker in self._ended:
                tally.claimed.pop(worker, None)
        self._ended.clear()

    # --- telling

    def describe(self) -> Iterable[Metric]:
        return list(_families().values())

    def collect(self) -> Iterable[Metric]:
        families = _families()
        with self._lock:
            for job_type, tally in self._types.items():
                tally.tell(families, job_type)
            for channel, count in self._channels.items():
                families["notification_received"].add_metric([channel], count)
            for name in HERE:
                families[name].add_metric([], self._here[name])
        return list(families.values())


class Tally:
    """What happened to the runs of one job type."""

    __slots__ = ("claimed", "counts", "durations", "step_durations", "steps", "waits")

    def __init__(self) -> None:
        self.claimed: Counter[str] = Counter()
        self.counts = dict.fromkeys([*STATUSES, *BY_TYPE], 0)
        self.steps = dict.fromkeys(STEP_STATUSES, 0)
        self.durations = Spread(DURATIONS)
        self.step_durations = Spread(DURATIONS)
        self.waits = Spread(WAITS)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def step(self, how: str) -> None:
        self.steps[how] += 1

    def ended(self, how: str, duration: float) -> None:
        self.counts[how] += 1
        self.durations.observe(duration)

    def tell(self, families: Mapping[str, Any], job_type: str) -> None:
        for worker, count in self.claimed.items():
            families["claimed"].add_metric([job_type, worker], count)
        for status in STATUSES:
            families["completed"].add_metric([job_type, status], self.counts[status])
        for name in BY_TYPE:
            families[name].add_metric([job_type], self.counts[name])
        for status in STEP_STATUSES:
            families["steps"].add_metric([job_type, status], self.steps[status])
        families["step"].add_metric([job_type], self.step_durations.buckets(), self.step_durations.sum)
        families["processing"].add_metric([job_type], self.durations.buckets(), self.durations.sum)
        families["wakeup_latency"].add_metric([job_type], self.waits.buckets(), self.waits.sum)


class Spread:
    """A histogram: how many values there were up to each bound."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


def _families() -> dict[str, Any]:
    """The metrics by name, without values."""
    ended = "Attempts that ended: success; failed, and will be tried again; dead, failed for good."
    return {
        "claimed": CounterMetricFamily("job_claimed", "Runs claimed.", labels=["job_type", "worker_id"]),
        "completed": CounterMetricFamily("job_completed", ended, labels=["job_type", "status"]),
        **{name: CounterMetricFamily(f"job_{name}", what, labels=["job_type"]) for name, what in BY_TYPE.items()},
        "steps": CounterMetricFamily(
            "job_steps",
            "Tries of steps: completed; retried, failed and will be tried again; failed for good.",
            labels=["job_type", "status"],
        ),
        "step": HistogramMetricFamily("job_step_seconds", "How long completed steps took.", labels=["job_type"]),
        "processing": HistogramMetricFamily("job_processing_seconds", "How long attempts took.", labels=["job_type"]),
        "wakeup_latency": HistogramMetricFamily(
            "job_wakeup_latency_seconds",
            "From the moment a run might have started to its claim.",
            labels=["job_type"],
        ),
        "notification_received": CounterMetricFamily(
            "job_notification_received", "Wake-ups received.", labels=["channel"]
        ),
        **{name: CounterMetricFamily(f"job_{name}", what, labels=[]) for name, what in HERE.items()},
    }
