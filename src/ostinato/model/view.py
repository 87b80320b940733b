"""What people see of runs, workers and functions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from .run import Reason, State


class RunError(Struct, frozen=True):
    code: str
    message: str


class AttemptView(Struct, frozen=True):
    """An attempt that did not end in completion."""

    attempt: int
    lease_no: int
    worker: str
    code: str
    message: str
    started_at: datetime
    ended_at: datetime
    traceback: str | None = None


class RunView(Struct, frozen=True, kw_only=True):
    """A run as it stands in the database."""

    id: str
    function: str
    queue: str
    state: State
    reason: str | None = None
    priority: int = 0
    attempt: int = 0
    attempts_allowed: int | None = None
    lease_no: int = 0
    key: str | None = None
    invoked_by: str
    timeout: float | None = None
    created_at: datetime
    run_at: datetime
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cancel_requested: bool = False
    suspect: bool = False
    queue_paused: bool = False
    locked_by: str | None = None
    lease_expires_at: datetime | None = None
    input: Any = None
    output: Any = None
    error: RunError | None = None
    metadata: dict[str, Any] | None = None
    attempts: list[AttemptView] = []

    @property
    def status(self) -> str:
        """The word for people: *pending* before the first start, *waiting* after it."""
        if self.state is State.READY:
            return "pending"
        if self.state is State.HELD:
            return "waiting" if self.started_at else "pending"
        return self.state.value

    @property
    def held_because(self) -> str | None:
        """Why it does not start, in one word; None when nothing holds it."""
        if self.state in (State.READY, State.HELD) and self.queue_paused:
            return Reason.PAUSED.value
        return self.reason


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first."""

    function: str | None = None
    queue: str | None = None
    state: State | None = None
    before: str | None = None
    limit: int = 50


class RunCount(Struct, frozen=True):
    function: str
    queue: str
    state: State
    count: int


class WorkerView(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    queues: dict[str, int]
    lease: float
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    stopping: bool
    dead_at: datetime | None = None
    alive: bool
    running: int


class FunctionView(Struct, frozen=True, kw_only=True):
    name: str
    queue: str
    attempts: int
    timeout: float
    retry: Any = None
    input_schema: Any = None
    version: str | None = None
    declared_at: datetime
