"""Times, durations and states in words and colours: the terminal's own sixteen, so any background will do."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ..model.run import Reason, State

if TYPE_CHECKING:
    from ..model.view import RunView

COLOURS = {
    State.HELD: "yellow",
    State.READY: "blue",
    State.RUNNING: "cyan",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELLED: "dim",
}

_STEPS = ((60.0, "s", 1.0), (3600.0, "min", 60.0), (86400.0, "h", 3600.0), (float("inf"), "d", 86400.0))


def span(seconds: float, *, units: int = 2) -> str:
    """How long, in its largest units.

    >>> span(0.0421), span(61), span(61, units=1), span(90000)
    ('42 ms', '1 min 1 s', '1 min', '1 d 1 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    place = next(place for place, (below, _, _) in enumerate(_STEPS) if seconds < below)
    _, unit, size = _STEPS[place]
    whole, rest = divmod(seconds, size)
    if units > 1 and place and (less := int(rest / _STEPS[place - 1][2])):
        return f"{whole:.0f} {unit} {less} {_STEPS[place - 1][1]}"
    return f"{whole:.0f} {unit}"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """When, seen from now: `3 min ago`, `in 5.0 s`."""
    distance = ((now or datetime.now(UTC)) - moment).total_seconds()
    if abs(distance) < 1:
        return "now"
    return f"{span(distance, units=1)} ago" if distance > 0 else f"in {span(-distance, units=1)}"


def moment(at: datetime | None, now: datetime | None = None) -> str:
    """When, absolute and relative; `-` for never."""
    if at is None:
        return "-"
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC ({ago(at, now)})"


def took(run: RunView, now: datetime | None = None) -> float | None:
    """Seconds since the last start, or from it to the end; None for a run that is not being executed."""
    began = run.claimed_at or run.started_at
    if began is None or run.state in (State.HELD, State.READY):
        return None
    return max(0.0, ((run.ended_at or now or datetime.now(UTC)) - began).total_seconds())


def attempts(run: RunView) -> str:
    return f"{run.attempt}/{run.attempts_allowed}" if run.attempts_allowed else str(run.attempt)


def state(run: RunView, now: datetime | None = None) -> str:
    """The state, and what it waits for."""
    match run.held_because:
        case Reason.RETRY:
            return f"held, retry {ago(run.run_at, now)}"
        case Reason.NOT_DUE:
            return f"held, due {ago(run.run_at, now)}"
        case Reason.SLEEP:
            return f"held, wakes {ago(run.run_at, now)}"
        case Reason.STEP_RETRY:
            return f"held, step again {ago(run.run_at, now)}"
        case Reason.EVENT:
            return "held, waits for event" + ("" if _is_for_ever(run) else f", times out {ago(run.run_at, now)}")
        case Reason.CHILD:
            return "held, waits for run"
        case str(reason):
            return f"{run.state.value}, {reason}"
    if run.cancel_requested and run.state is State.RUNNING:
        return "running, to be cancelled"
    return "running, lease over" if is_orphaned(run, now) else run.state.value


def is_orphaned(run: RunView, now: datetime | None = None) -> bool:
    """Whether its worker has not renewed its lease in time."""
    return run.lease_expires_at is not None and run.lease_expires_at < (now or datetime.now(UTC))


def why_held(run: RunView) -> str | None:
    """Why it does not go on, in a sentence; None when nothing holds it."""
    match run.held_because:
        case None:
            return "its last worker died; it goes again alone" if run.suspect and not run.state.ended else None
        case Reason.NOT_DUE:
            return f"it is not due before {moment(run.run_at)}"
        case Reason.RETRY:
            return f"its last attempt failed; it is tried again at {moment(run.run_at)}"
        case Reason.PAUSED:
            return f"the queue {run.queue!r} is paused; let it go on: ostinato queues resume {shlex.quote(run.queue)}"
        case Reason.SLEEP:
            return f"it sleeps until {moment(run.run_at)}"
        case Reason.STEP_RETRY:
            return f"a step failed; it is tried again at {moment(run.run_at)}"
        case Reason.EVENT:
            return "it waits for an event" + (", for ever" if _is_for_ever(run) else f", until {moment(run.run_at)}")
        case Reason.CHILD:
            return "it waits for a run that it has invoked"
        case reason:
            return reason


def _is_for_ever(run: RunView) -> bool:
    """What waits without a limit is due in a hundred years."""
    return run.run_at - run.created_at > timedelta(days=50 * 365)
