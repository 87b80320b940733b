"""A run that is being executed in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..model.outcome import Outcome, Stop
from ..model.retry import DEFAULT_RETRY, Retry
from ..model.run import Claimed
from .tracing import trace_id_of

DEFAULT_TIMEOUT = 3600.0

if TYPE_CHECKING:
    from .context import Run
    from .registry import FunctionSpec


class Active:
    """One attempt, from its claim to its settlement."""

    task: asyncio.Task[None] | None = None
    run: Run | None = None
    stop: Stop | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    begun = False
    finishing = False
    only_start = False
    """It has one attempt, and that has certainly begun."""
    out_of_time = False
    abandoned = False

    def __init__(self, claimed: Claimed, spec: FunctionSpec | None, worker: str, started: float) -> None:
        self.claimed = claimed
        self.identity = (claimed.id, claimed.lease_no)
        """The run and its lease: a run that was lost may be here again while its old handler still ends."""
        self.spec = spec
        self.worker = worker
        self.started = self.ended = started
        """By the event loop's clock."""
        self.timeout = claimed.timeout or (spec.timeout if spec else DEFAULT_TIMEOUT)
        self.deadline = started + self.timeout
        self.trace_id = None if claimed.trace is None else trace_id_of(claimed.trace)

    @property
    def duration(self) -> float:
        return self.ended - self.started

    @property
    def retry(self) -> Retry:
        return self.spec.retry if self.spec else DEFAULT_RETRY

    def ask_to_stop(self, why: Stop) -> bool:
        """Cancels the handler, once; the first reason stands. One that has returned is not disturbed."""
        if self.stop is not None or self.finishing or self.task is None or self.task.done():
            return False
        self.stop = why
        if self.begun:  # a task that is cancelled before its first step would not even know that it had been one
            self.task.cancel(why.value)
        return True
