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

    __slots__ = (
        "abandoned",
        "begun",
        "claimed",
        "deadline",
        "ended",
        "finishing",
        "identity",
        "only_start",
        "out_of_time",
        "outcome",
        "reason",
        "run",
        "spec",
        "started",
        "stop",
        "task",
        "timeout",
        "trace_id",
        "worker",
    )

    def __init__(self, claimed: Claimed, spec: FunctionSpec | None, worker: str, started: float) -> None:
        self.claimed = claimed
        self.identity = (claimed.id, claimed.lease_no)
        """The run and its lease: a run that was lost may be here again while its old handler still ends."""
        self.spec = spec
        self.worker = worker
        self.started = started
        """By the event loop's clock."""
        self.timeout = claimed.timeout or (spec.timeout if spec else DEFAULT_TIMEOUT)
        self.deadline = started + self.timeout
        self.ended = started
        self.task: asyncio.Task[None] | None = None
        self.run: Run | None = None
        self.stop: Stop | None = None
        self.outcome: Outcome | None = None
        self.reason: str | None = None
        self.begun = False
        self.finishing = False
        self.only_start = False
        """It has one attempt, and that has certainly begun."""
        self.out_of_time = False
        self.trace_id = None if claimed.trace is None else trace_id_of(claimed.trace)
        self.abandoned = False

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
