"""What the beginning and the end of an attempt are announced as."""

from __future__ import annotations

from typing import Any

from msgspec import json

from ..model.outcome import Cancelled, Done, Failed, GivenBack, Interrupted, Settled, Suspended, Unknown, next_delay
from ..model.run import Claimed
from ..telemetry import (
    Event,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunFailed,
    RunGivenBack,
    RunSuspended,
    StaleWriteRefused,
)
from .active import Active
from .tracing import trace_id_of


def claimed_event(claimed: Claimed, worker: str) -> RunClaimed:
    return RunClaimed(
        run_id=claimed.id,
        function=claimed.function,
        queue=claimed.queue,
        attempt=claimed.attempt,
        worker=worker,
        waited=claimed.waited,
        metadata=_metadata(claimed),
        trace_id=trace_id_of(claimed.trace),
    )


def outcome_event(active: Active) -> Event:
    """The event for an attempt that has been settled, or could not be."""
    claimed = active.claimed
    if isinstance(active.outcome, Done | Settled):
        return RunCompleted(
            run_id=claimed.id,
            function=claimed.function,
            queue=claimed.queue,
            attempt=claimed.attempt,
            worker=active.worker,
            duration=active.duration,
            metadata=_metadata(claimed),
            trace_id=active.trace_id,
        )
    common: dict[str, Any] = {
        "run_id": claimed.id,
        "function": claimed.function,
        "worker": active.worker,
        "trace_id": active.trace_id,
    }
    ended: dict[str, Any] = {
        **common,
        "queue": claimed.queue,
        "attempt": claimed.attempt,
        "duration": active.duration,
        "metadata": _metadata(claimed),
    }
    match active.outcome:
        case Cancelled(reason):
            return RunCancelled(**ended, reason=reason)
        case Failed() as failed:
            delay = next_delay(claimed, failed, active.retry)
            return RunFailed(
                **ended, error_code=failed.code, message=failed.message, will_retry=delay is not None, retry_in=delay
            )
        case Interrupted(message):
            return RunFailed(**ended, error_code="store_unavailable", message=message, will_retry=True)
        case Unknown():
            message = f"no function is named {claimed.function!r} here"
            return RunFailed(**ended, error_code="unknown_function", message=message, will_retry=True)
        case Suspended(reason, _):
            return RunSuspended(**common, queue=claimed.queue, reason=reason)
        case GivenBack():
            return RunGivenBack(**common, queue=claimed.queue)
        case _:
            return StaleWriteRefused(**common, lease_no=claimed.lease_no)


def _metadata(claimed: Claimed) -> dict[str, Any] | None:
    return json.decode(claimed.metadata) if claimed.metadata else None
