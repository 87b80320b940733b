"""A run: its states, the moves between them, and the values the engine passes around."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct


class State(StrEnum):
    """Where a run is. Closed: nothing else exists."""

    HELD = "held"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (State.COMPLETED, State.FAILED, State.CANCELLED)


class Reason(StrEnum):
    """Why a run is held."""

    NOT_DUE = "not_due"
    RETRY = "retry"
    SLEEP = "sleep"
    EVENT = "event"
    CHILD = "child"
    STEP_RETRY = "step_retry"
    PAUSED = "paused"
    PARKED = "parked"


class Move(NamedTuple):
    """One permitted change of state, and what causes it."""

    verb: str
    before: State | None
    after: State
    why: str


MOVES: tuple[Move, ...] = (
    Move("enqueue", None, State.READY, "it may start now"),
    Move("enqueue", None, State.HELD, "it is not due yet"),
    Move("release", State.HELD, State.READY, "what held it is over"),
    Move("claim", State.READY, State.RUNNING, "a worker took it: lease_no + 1, attempt + 1"),
    Move("complete", State.RUNNING, State.COMPLETED, "its handler returned"),
    Move("hold", State.RUNNING, State.HELD, "its attempt failed and is retried later"),
    Move("hold", State.RUNNING, State.READY, "its attempt failed and is retried at once"),
    Move("suspend", State.RUNNING, State.HELD, "it sleeps, or waits for an event, a child or a step's next try"),
    Move("suspend", State.RUNNING, State.READY, "what it was about to wait for has come"),
    Move("fail", State.RUNNING, State.FAILED, "its attempts are used up, or it raised Fatal"),
    Move("give back", State.RUNNING, State.READY, "its worker shuts down: the attempt is returned"),
    Move("rescue", State.RUNNING, State.READY, "its worker died"),
    Move("rescue", State.RUNNING, State.FAILED, "its worker died and its attempts are used up"),
    Move("cancel", State.HELD, State.CANCELLED, "somebody cancelled it"),
    Move("cancel", State.READY, State.CANCELLED, "somebody cancelled it"),
    Move("cancel", State.RUNNING, State.CANCELLED, "somebody or its handler cancelled it"),
    Move("retry", State.FAILED, State.READY, "a person asked for it: a fresh budget of attempts"),
    Move("retry", State.CANCELLED, State.READY, "a person asked for it: a fresh budget of attempts"),
)
"""Every move a run can make. Docs and diagrams are generated from this table."""


def may(verb: str, state: State) -> bool:
    """Whether a run in this state can make the move."""
    return any(move.verb == verb and move.before is state for move in MOVES)


class Claimed(Struct, frozen=True, array_like=True, gc=False):
    """A run as its worker gets it: the columns of the claim in their order, then what the claim had asked for."""

    id: str
    lease_no: int
    function: str
    queue: str
    attempt: int
    input: str
    due: int
    waited: float
    """Seconds from the moment the run might have started to its claim, by the database's clock."""
    key: str | None = None
    timeout: float | None = None
    metadata: str | None = None
    invoked_by: str = "api"
    trace: str | None = None
    """The trace of whoever enqueued it, as W3C trace context in JSON."""
    parent: str | None = None
    """The run that waits for it."""
    suspect: bool = False
    """Whether its last worker died."""


class Mark(NamedTuple):
    """A place in a queue's order, behind which everything ready has been claimed, as far as one worker knows."""

    due: int = -(2**62)
    id: str = ""


START = Mark()


class Orphan(Struct, frozen=True, gc=False):
    """A running run whose worker is dead."""

    id: str
    lease_no: int
    function: str
    queue: str
    attempt: int
    uncounted: int
    certain: bool
    cancel_requested: bool
    attempts_allowed: int
    worker: str
    claimed_for: float
