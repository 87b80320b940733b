"""How an attempt ended, and what follows from it."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from enum import StrEnum
from zlib import crc32

from msgspec import Raw, Struct
from msgspec.json import encode

from ..errors import Cancel, Fatal, RetryAfter, StepFailed, StoreUnavailable
from .change import AttemptEnded, Change, ChildEnded, EndTold, KeyFreed, RunCompleted, RunSettled
from .retry import Retry
from .run import Claimed, Orphan, Reason, State

TRACEBACK_LIMIT = 16_000
MESSAGE_LIMIT = 2_000


class Stop(StrEnum):
    """Why a handler was asked to stop."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    LEASE_LOST = "lease_lost"


class Done(Struct, frozen=True, gc=False):
    """The handler returned; `output` is its value as JSON."""

    output: Raw


class Failed(Struct, frozen=True):
    """The handler raised, timed out, or returned what cannot be stored."""

    code: str
    message: str
    error: BaseException | None = None
    traceback: str | None = None
    retriable: bool = True
    delay: float | None = None
    """Asked for by the handler; otherwise the policy decides."""


class Cancelled(Struct, frozen=True):
    """The run is not wanted any more."""

    reason: str


class GivenBack(Struct, frozen=True):
    """The worker shuts down; somebody else shall do it."""


class Lost(Struct, frozen=True):
    """The lease is gone: nothing may be written."""


class Settled(Struct, frozen=True):
    """The handler settled the run itself, in its own transaction."""


class Unknown(Struct, frozen=True):
    """The worker does not know the function; one that does may come."""


class Suspended(Struct, frozen=True):
    """The run waits for something, and goes on from its steps when it has come."""

    reason: Reason
    steps: tuple[str, ...]
    """Which of its steps wait."""


class Interrupted(Struct, frozen=True):
    """The database was not there for the attempt, which is nobody's failure: it is returned."""

    message: str


Outcome = Suspended | Interrupted | Done | Failed | Cancelled | GivenBack | Lost | Settled | Unknown

UNKNOWN_DELAY = 60.0
INTERRUPTED_DELAY = 1.0


def failure(error: BaseException) -> Failed | Cancelled | Interrupted:
    """The outcome an exception stands for."""
    match error:
        case Cancel():
            return Cancelled(_message(error))
        case StoreUnavailable():
            return Interrupted(_message(error))
        case RetryAfter():
            return Failed("retry_after", _message(error), error, delay=error.delay)
        case Fatal():
            return Failed("fatal", _message(error), error, _traceback(error), retriable=False)
        case _:
            return Failed(type(error).__name__, _message(error), error, _traceback(error))


_DECISIVE = (StepFailed, Cancel, Fatal, RetryAfter, StoreUnavailable)


def decisive(error: BaseException) -> BaseException:
    """Of a group's exceptions, as a TaskGroup raises, the one that says what is to become of the attempt."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    for kind in _DECISIVE:
        found: BaseException | None = error.subgroup(kind)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None:
            return found
    return error


def storable(text: object) -> str:
    """What is kept of a message or a reason."""
    return portable(str(text))[:MESSAGE_LIMIT]


def _message(error: BaseException) -> str:
    try:
        return storable(str(error) or type(error).__name__)
    except Exception:  # a broken __str__ is no reason to lose the settlement
        return f"{type(error).__name__} (which cannot be printed)"


def _traceback(error: BaseException) -> str:
    try:
        return portable("".join(traceback.format_exception(error)))[-TRACEBACK_LIMIT:]
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))[-TRACEBACK_LIMIT:]


def portable(text: str) -> str:
    """The same text without what a database refuses: NUL and lone surrogates."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def settle(
    run: Claimed, outcome: Outcome, retry: Retry, *, worker: str, duration: float, told: Collection[State] = ()
) -> list[Change]:
    """The changes that end the attempt. `told`: the ends that the function asks to be told."""
    match outcome:
        case Done():
            return _ended(run, RunCompleted(run.id, run.lease_no, outcome.output), State.COMPLETED, told)
        case Failed():
            return _settle_failure(run, outcome, retry, worker, duration, told)
        case Cancelled(reason):
            settled = RunSettled(run.id, run.lease_no, State.CANCELLED, error=error_json("cancelled", reason))
            return _ended(run, settled, State.CANCELLED, told)
        case GivenBack():
            return [RunSettled(run.id, run.lease_no, State.READY, refund=1, suspect=run.suspect)]
        case Suspended(reason, steps):
            return [RunSettled(run.id, run.lease_no, State.HELD, reason=reason, refund=1, suspended=steps)]
        case Interrupted(message):
            return _settle_interruption(run, message, worker, duration)
        case Unknown():
            error = error_json("unknown_function", _unknown(run.function, worker))
            return [
                RunSettled(
                    run.id, run.lease_no, State.HELD, reason=Reason.PARKED, delay=UNKNOWN_DELAY, error=error, refund=1
                )
            ]
        case Lost() | Settled():
            return []


def _unknown(function: str, worker: str) -> str:
    return (
        f"worker {worker} serves this queue but has no function {function!r}; start a worker that declares it (if it "
        "was renamed, under its old name, until its runs have ended), and this goes on from its steps within a minute; "
        "or cancel it"
    )


def _settle_failure(
    run: Claimed, failed: Failed, retry: Retry, worker: str, duration: float, told: Collection[State]
) -> list[Change]:
    attempt = AttemptEnded(
        run.id, run.lease_no, run.attempt, failed.code, failed.message, worker, duration, failed.traceback
    )
    step = failed.error.step if isinstance(failed.error, StepFailed) else None
    error, delay = error_json(failed.code, failed.message, step=step), next_delay(run, failed, retry)
    if delay is None:
        settled = RunSettled(run.id, run.lease_no, State.FAILED, error=error)
        return [*_ended(run, settled, State.FAILED, told), attempt]
    return [RunSettled(run.id, run.lease_no, State.HELD, reason=Reason.RETRY, delay=delay, error=error), attempt]


def _settle_interruption(run: Claimed, message: str, worker: str, duration: float) -> list[Change]:
    code = "store_unavailable"
    return [
        RunSettled(
            run.id,
            run.lease_no,
            State.HELD,
            reason=Reason.RETRY,
            delay=INTERRUPTED_DELAY,
            error=error_json(code, message),
            refund=1,
        ),
        AttemptEnded(run.id, run.lease_no, run.attempt, code, message, worker, duration),
    ]


def next_delay(run: Claimed, failed: Failed, retry: Retry) -> float | None:
    """Seconds until the next attempt, or None when the run has failed for good."""
    if not failed.retriable:
        return None
    spread = crc32(f"{run.id}:{run.attempt}".encode()) / 2**32  # different for each run, the same whenever it is asked
    planned = retry.delay(run.attempt, failed.error, spread=spread)
    return planned if planned is None or failed.delay is None else failed.delay


def _ended(run: Claimed, settled: RunCompleted | RunSettled, state: State, told: Collection[State]) -> list[Change]:
    """The settlement of a run that ends, and what follows from its end."""
    changes: list[Change] = [settled]
    if run.key is not None:
        changes.append(KeyFreed(run.id, run.lease_no, state))
    if run.parent is not None:
        changes.append(ChildEnded(run.id, run.lease_no))
    if state in told:
        changes.append(EndTold(run.id, run.lease_no))
    return changes


def error_json(code: str, message: str, *, step: str | None = None) -> Raw:
    """`step`: the name of the step whose failure it was."""
    error = {"code": code, "message": message}
    return Raw(encode(error if step is None else {**error, "step": step}))


def rescue(orphan: Orphan) -> list[Change]:
    """What becomes of a run whose worker died.

    A run that was certainly started has used up an attempt. Of one that was claimed together with others nobody can
    tell, so its attempt is returned and it is a suspect: it will be claimed alone, and then its start is certain. If it
    takes its worker down again, the start in doubt is counted after all.
    """
    if orphan.cancel_requested:
        settled = RunSettled(orphan.id, orphan.lease_no, State.CANCELLED, suspect=True)
        freed = KeyFreed(orphan.id, orphan.lease_no, State.CANCELLED)
        return [settled, freed, _death(orphan, "somebody had cancelled it")]
    if not orphan.certain:
        settled = RunSettled(orphan.id, orphan.lease_no, State.READY, refund=1, suspect=True, uncounted=1)
        return [settled, _death(orphan, "it had perhaps not started, so the attempt was returned")]
    counted = orphan.attempt + orphan.uncounted
    if counted < orphan.attempts_allowed:
        settled = RunSettled(orphan.id, orphan.lease_no, State.READY, refund=-orphan.uncounted, suspect=True)
        return [settled, _death(orphan, f"attempt {counted} of {orphan.attempts_allowed}")]
    error = error_json("worker_died", f"the worker died {counted} times while it ran this")
    settled = RunSettled(orphan.id, orphan.lease_no, State.FAILED, error=error, refund=-orphan.uncounted, suspect=True)
    return [
        settled,
        KeyFreed(orphan.id, orphan.lease_no, State.FAILED),
        _death(orphan, f"attempt {counted} of {orphan.attempts_allowed}"),
    ]


def _death(orphan: Orphan, note: str) -> AttemptEnded:
    message = f"worker {orphan.worker} died while it held this run; {note}"
    return AttemptEnded(
        orphan.id, orphan.lease_no, orphan.attempt, "worker_died", message, orphan.worker, orphan.claimed_for
    )
