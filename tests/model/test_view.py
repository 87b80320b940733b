"""What people see of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ostinato.model.run import State
from ostinato.model.view import RunView

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def a_view(state: State = State.READY, **fields: Any) -> RunView:
    """A run as it stands in the database."""
    return RunView(
        id="R", function="f", queue="default", state=state, invoked_by="api", created_at=NOW, run_at=NOW, **fields
    )


@pytest.mark.parametrize(
    ("state", "started_at", "status"),
    [
        (State.READY, None, "pending"),
        (State.READY, NOW, "pending"),
        (State.HELD, None, "pending"),
        (State.HELD, NOW, "waiting"),
        (State.RUNNING, NOW, "running"),
        (State.COMPLETED, NOW, "completed"),
        (State.FAILED, NOW, "failed"),
        (State.CANCELLED, None, "cancelled"),
    ],
)
def test_the_status_is_the_state_in_the_words_of_people(state: State, started_at: datetime | None, status: str):
    """Pending is ready, or held before the first start; waiting is held after it."""
    assert status == a_view(state, started_at=started_at).status


@pytest.mark.parametrize(
    ("state", "reason", "paused", "expected"),
    [
        (State.HELD, "not_due", False, "not_due"),
        (State.HELD, "retry", False, "retry"),
        (State.HELD, "parked", True, "paused"),
        (State.READY, None, True, "paused"),
        (State.READY, None, False, None),
        (State.RUNNING, None, True, None),
        (State.COMPLETED, None, True, None),
    ],
)
def test_why_a_run_does_not_start(state: State, reason: str | None, paused: bool, expected: str | None):
    """Its own reason, or that its queue is paused, which concerns only runs that have not started."""
    assert expected == a_view(state, reason=reason, queue_paused=paused).held_because
