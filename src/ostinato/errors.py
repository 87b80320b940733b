"""Everything Ostinato raises.

    OstinatoError
    ├── ConfigError            a setting, URL or declaration that cannot work
    ├── StoreError             the database cannot do what was asked
    │   ├── NotMigrated        its schema is missing or too old
    │   ├── LedgerMoved        a position that speaks of another cluster
    │   └── StoreUnavailable   it cannot be reached now
    ├── InvalidInput           input refused at the door; nothing was written
    ├── InvalidOption          an option refused at the door
    ├── UnknownFunction        no such function, here or in the database
    ├── UnknownRun             no such run
    ├── UnknownStep            no such step of a run
    ├── UnknownQueue           no such queue, here or in the database
    ├── UnknownSchedule        no such schedule in the database
    ├── UnknownEvent           no such event in the ledger
    ├── AppendOnly             events are never changed or deleted
    ├── UnknownDrainer         no such drainer in the database
    ├── UnknownSubscription    no such subscription in the database
    ├── StaleToken             acknowledged before, or of a place where the drainer is not any more
    ├── QueueFull              the queue's cap on waiting runs is reached
    ├── KeyTaken               another run holds the key
    ├── IllegalMove            a run in this state cannot do that
    ├── RunEnded               awaiting a result that will not come
    │   ├── RunFailed
    │   └── RunCancelled
    ├── ResultTimeout          the result did not come in time (also a TimeoutError)
    ├── TransactionMisused     run.transaction() and app.transaction() have rules
    ├── StepFailed             a step has failed for good, or the run that it waits for
    ├── StepMisused            steps have rules
    ├── WouldBlock             a blocking call inside a running event loop (also a RuntimeError)
    └── LeaseLost              the run belongs to somebody else by now

A handler steers its run by raising one of `Cancel`, `Fatal` and `RetryAfter`.
"""

from __future__ import annotations

from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class OstinatoError(Exception):
    """The root of all errors raised by Ostinato."""


class ConfigError(OstinatoError):
    """A setting, URL or declaration that cannot work."""


class StoreError(OstinatoError):
    """The database cannot do what was asked."""


class NotMigrated(StoreError):
    """The database lacks Ostinato's tables, or has an older version of them."""


class LedgerMoved(StoreError):
    """A position in the ledger that speaks of another cluster's transactions."""


class StoreUnavailable(StoreError):
    """The database cannot be reached now."""


class InvalidInput(OstinatoError, ValueError):
    """Input refused at the door. `path` names the offending field."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        super().__init__(message)
        self.path = path


class InvalidOption(OstinatoError, ValueError):
    """An option refused at the door: of `enqueue`, or of a verb for many runs."""


class UnknownFunction(OstinatoError, LookupError):
    """No function has this name."""

    @classmethod
    def named(cls, name: str, known: Iterable[str]) -> UnknownFunction:
        close = get_close_matches(name, list(known), n=1)
        remedy = (
            f"did you mean {close[0]!r}?"
            if close
            else "declare it with @app.function, or start a worker that does once, so that the database knows it"
        )
        return cls(f"no function is named {name!r}; {remedy}")


class UnknownRun(OstinatoError, LookupError):
    """No run has this id; it may have been pruned."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"no run has the id {run_id!r}; it may have been removed by retention")


class UnknownStep(OstinatoError, LookupError):
    """The run has no step of this name or id."""

    def __init__(self, run_id: str, wanted: str, known: Sequence[str]) -> None:
        shown = ", ".join(repr(name) for name in known[:20])
        more = f" and {len(known) - 20} more" if len(known) > 20 else ""
        remedy = f"its steps are {shown}{more}" if known else "it has none"
        super().__init__(f"run {run_id} has no step {wanted!r}; {remedy}")


class UnknownQueue(OstinatoError, LookupError):
    """No queue has this name."""

    @classmethod
    def named(cls, name: str, known: Iterable[str]) -> UnknownQueue:
        close = get_close_matches(name, list(known), n=1)
        remedy = (
            f"did you mean {close[0]!r}?"
            if close
            else "a queue is known once a worker, a function or a run that has not ended names it"
        )
        return cls(f"no queue is named {name!r}; {remedy}")


class UnknownSchedule(OstinatoError, LookupError):
    """No schedule has this name in the database."""

    @classmethod
    def named(cls, name: str, known: Iterable[str]) -> UnknownSchedule:
        close = get_close_matches(name, list(known), n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "declare it with @app.cron and start a worker once"
        return cls(f"no schedule is named {name!r}; {remedy}")


class UnknownEvent(OstinatoError, LookupError):
    """The ledger has no event of this id."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"the ledger has no event {event_id!r}; perhaps retention has removed it")
        self.event_id = event_id


class AppendOnly(OstinatoError):
    """Somebody tried to change or delete events of the ledger; nothing was changed."""


class UnknownDrainer(OstinatoError, LookupError):
    """Nobody has declared a drainer of this name."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        close = get_close_matches(name, list(known), n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "`ostinato drainers list` shows those there are"
        super().__init__(f"no drainer is named {name!r}; {remedy}")
        self.name = name


class UnknownSubscription(OstinatoError, LookupError):
    """No subscription has this name."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        close = get_close_matches(name, list(known), n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "`ostinato subscriptions list` shows those there are"
        super().__init__(f"no subscription is named {name!r}; {remedy}")
        self.name = name


class StaleToken(OstinatoError):
    """What a token acknowledges was acknowledged before, or the drainer has been put elsewhere since."""


class QueueFull(OstinatoError):
    """The queue holds as many waiting runs as it may."""


class KeyTaken(OstinatoError):
    """Another run holds the key."""


class IllegalMove(OstinatoError):
    """What is in this state cannot do that."""


class RunEnded(OstinatoError):
    """The run ended without a result."""

    def __init__(self, message: str, *, run_id: str, code: str | None = None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.code = code


class RunFailed(RunEnded):
    """The run failed for good."""


class RunCancelled(RunEnded):
    """The run was cancelled."""


class ResultTimeout(OstinatoError, TimeoutError):
    """The run has not ended in the time given; it goes on."""


class TransactionMisused(OstinatoError):
    """A transaction was used in a way that would break its promise."""


class StepFailed(OstinatoError):
    """A step has failed for good: its tries are used up, or what it did cannot be done. A function that catches it goes
    on; otherwise the run fails. `code` and `message` say why; `run_id` names the child whose end it was."""

    def __init__(self, step: str, code: str, message: str, *, run_id: str | None = None) -> None:
        super().__init__(f"step {step!r} failed: {message}")
        self.step, self.code, self.message, self.run_id = step, code, message, run_id


class StepMisused(OstinatoError, RuntimeError):
    """A step where none can be, or one that cannot be told from others."""


class WouldBlock(OstinatoError, RuntimeError):
    """A blocking call was made inside a running event loop, which it would stop; nothing was done."""


class LeaseLost(OstinatoError):
    """The run belongs to somebody else by now; nothing was written."""


class Cancel(Exception):
    """Raise in a handler to end the run as cancelled."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = str(reason)


class Fatal(Exception):
    """Raise in a handler to fail the run without further retries."""


class RetryAfter(Exception):
    """Raise in a handler to be tried again after the given time: `raise RetryAfter("30s")`."""

    def __init__(self, delay: str | float | timedelta, message: str = "asked to be tried again later") -> None:
        from .clock import seconds

        super().__init__(message)
        self.delay = seconds(delay, what="RetryAfter")
