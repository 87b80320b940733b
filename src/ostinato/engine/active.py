"""A run that is being executed in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from ..model.lifecycle import ENDS
from ..model.outcome import Outcome, Stop
from ..model.retry import DEFAULT_RETRY, Retry
from ..model.run import Claimed, State

DEFAULT_TIMEOUT = 3600.0

if TYPE_CHECKING:
    from .context import Run
    from .registry import FunctionSpec


class Active(Struct, eq=False):
    """One attempt, from its claim to its settlement."""

    claimed: Claimed
    spec: FunctionSpec | None
    worker: str
    identity: tuple[str, int]
    """The run and its lease: a run that was lost may be here again while its old handler still ends."""
    started: float
    """By the event loop's clock, as the other times."""
    deadline: float
    ended: float = 0.0
    trace_id: str | None = None
    task: asyncio.Task[None] | None = None
    run: Run | None = None
    stop: Stop | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    begun: bool = False
    finishing: bool = False
    only_start: bool = False
    """It has one attempt, and that has certainly begun."""
    out_of_time: bool = False
    abandoned: bool = False

    @property
    def duration(self) -> float:
        return self.ended - self.started

    @property
    def retry(self) -> Retry:
        return self.spec.retry if self.spec else DEFAULT_RETRY

    @property
    def told(self) -> Collection[State]:
        """The ends that somebody is to be told of; of a function that is not known here, the database knows."""
        return self.spec.told if self.spec else ENDS

    def ask_to_stop(self, why: Stop) -> bool:
        """Cancels the handler, once; the first reason stands. One that has returned is not disturbed."""
        if self.stop is not None or self.finishing or self.task is None or self.task.done():
            return False
        self.stop = why
        if self.begun:  # a task that is cancelled before its first step would not even know that it had been one
            self.task.cancel(why.value)
        return True
