"""What is told when a run ends: an event in the ledger, and the start of the function that is for failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from msgspec import Raw, json

from ..errors import ConfigError
from .change import EventRecorded, RunInserted, Terms
from .run import State

ENTITY = "run"
SOURCE = "ostinato"
ENDS = (State.COMPLETED, State.FAILED, State.CANCELLED)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class End(NamedTuple):
    """A run that has ended, as the database tells it: moments are microseconds since 1970."""

    run_id: str
    function: str
    state: str
    input: str
    error: str | None
    retries: int
    started_at: int | None
    ended_at: int
    steps_completed: int
    recorded: bool
    """Whether its function asks for an event."""
    on_failure: str | None
    queue: str | None
    priority: int | None


def ends_of(given: object, *, what: str) -> tuple[State, ...]:
    """The ends that `lifecycle=` asks for: all, none, or those that are named."""
    if isinstance(given, bool):
        return ENDS if given else ()
    if not isinstance(given, list | tuple) or not all(end in ENDS for end in given):
        names = ", ".join(repr(end.value) for end in ENDS)
        raise ConfigError(f"{what}: lifecycle={given!r} must be True, or some of ({names}), like ('failed',)")
    return tuple(end for end in ENDS if end in given)


def told(end: End, new_id: Callable[[], str]) -> list[EventRecorded | RunInserted]:
    """What follows from the end."""
    facts = _facts(end)
    changes: list[EventRecorded | RunInserted] = []
    if end.recorded:
        changes.append(_event(end, facts, new_id()))
    if end.on_failure is not None:
        changes.append(_start(end, facts, new_id()))
    return changes


def _facts(end: End) -> dict[str, Any]:
    error = json.decode(end.error) if end.error is not None and end.state != State.COMPLETED else None
    return {
        "run_id": end.run_id,
        "function": end.function,
        "error": error and {"code": error["code"], "message": error["message"]},
        "failed_step": error and error.get("step"),
        "retries": end.retries,
        "steps_completed": end.steps_completed,
        "started_at": _moment(end.started_at),
        "ended_at": _moment(end.ended_at),
    }


def _event(end: End, facts: dict[str, Any], event_id: str) -> EventRecorded:
    kind = f"run.{end.state}"
    return EventRecorded(
        id=event_id,
        type=kind,
        payload=Raw(json.encode(facts)),
        entity_type=ENTITY,
        entity_id=end.run_id,
        caused_by=f"run:{end.run_id}",
        run_id=end.run_id,
        source=SOURCE,
        idempotency_key=f"{kind}:{end.run_id}:{end.ended_at}",
    )


def _start(end: End, facts: dict[str, Any], run_id: str) -> RunInserted:
    """The run that is for the failure. Nothing may keep it out: the failure is settled in the same commit."""
    assert end.on_failure is not None
    return RunInserted(
        run_id,
        end.on_failure,
        Raw(json.encode({**facts, "input": Raw(end.input.encode())})),
        queue=end.queue,
        priority=end.priority or 0,
        invoked_by=f"run:{end.run_id}",
        terms=Terms(declared=True),
        uncapped=True,
    )


def _moment(micros: int | None) -> str | None:
    return None if micros is None else (_EPOCH + timedelta(microseconds=micros)).isoformat()
