"""Telemetry: typed events, and the logs that are made of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ostinato.telemetry import (
    Event,
    JsonFormatter,
    ListeningChanged,
    QueueAsleep,
    RunClaimed,
    RunCompleted,
    RunFailed,
    StoreTroubled,
    Telemetry,
    WorkerStopped,
    log_to,
)

METADATA = {"item_id": 42}


def claimed(**fields: Any) -> RunClaimed:
    given = {"run_id": "R", "function": "enrich", "queue": "default", "attempt": 1, "worker": "W", "waited": 0.5}
    return RunClaimed(**{**given, **fields})


def completed(**fields: Any) -> RunCompleted:
    given = {
        "run_id": "R",
        "function": "enrich",
        "queue": "default",
        "attempt": 1,
        "worker": "W",
        "duration": 1.2345678,
    }
    return RunCompleted(**{**given, **fields})


def failed(**fields: Any) -> RunFailed:
    given = {"run_id": "R", "function": "enrich", "queue": "default", "attempt": 1, "worker": "W", "duration": 0.25}
    reason = {"error_code": "ValueError", "message": "bad", "will_retry": True, "retry_in": 30.0}
    return RunFailed(**{**given, **reason, **fields})


# --- listening


def test_a_listener_hears_the_kind_it_asked_for():
    """And nothing else."""
    telemetry, heard = Telemetry(), list[Event]()
    telemetry.subscribe(QueueAsleep, heard.append)
    telemetry.announce(QueueAsleep(queue="a"))
    telemetry.announce(WorkerStopped(worker="W"))
    assert [QueueAsleep(queue="a")] == heard


def test_a_listener_may_hear_everything():
    """By asking for `Event`."""
    telemetry, heard = Telemetry(), list[Event]()
    telemetry.subscribe(Event, heard.append)
    telemetry.announce(QueueAsleep(queue="a"))
    telemetry.announce(WorkerStopped(worker="W"))
    assert [QueueAsleep, WorkerStopped] == [type(event) for event in heard]


def test_unsubscribing_ends_it():
    """Once is enough, and twice is harmless."""
    telemetry, heard = Telemetry(), list[Event]()
    unsubscribe = telemetry.subscribe(QueueAsleep, heard.append)
    unsubscribe()
    unsubscribe()
    telemetry.announce(QueueAsleep(queue="a"))
    assert heard == []


def test_a_listener_may_unsubscribe_while_it_is_called():
    """The others are called all the same."""
    telemetry, heard = Telemetry(), list[Event]()

    def once(event: QueueAsleep) -> None:
        unsubscribe()

    unsubscribe = telemetry.subscribe(QueueAsleep, once)
    telemetry.subscribe(QueueAsleep, heard.append)
    telemetry.announce(QueueAsleep(queue="a"))
    telemetry.announce(QueueAsleep(queue="b"))
    assert len(heard) == 2


def test_whether_anybody_wants_it():
    """What nobody listens to need not be put into words."""
    telemetry = Telemetry()
    assert not telemetry.wants(RunClaimed)
    unsubscribe = telemetry.subscribe(RunClaimed, print)
    assert telemetry.wants(RunClaimed)
    assert not telemetry.wants(RunCompleted)
    unsubscribe()
    assert not telemetry.wants(RunClaimed)
    telemetry.subscribe(Event, print)
    assert telemetry.wants(RunClaimed)


def test_a_failing_listener_hurts_nobody(caplog: pytest.LogCaptureFixture):
    """It is logged, and the others still hear."""
    telemetry, heard = Telemetry(), list[Event]()

    def fail(event: Event) -> None:
        raise RuntimeError("listener is broken")

    telemetry.subscribe(QueueAsleep, fail)
    telemetry.subscribe(QueueAsleep, heard.append)
    telemetry.announce(QueueAsleep(queue="a"))
    assert len(heard) == 1
    assert "a telemetry listener failed on QueueAsleep" in caplog.text


# --- logs


class Lines(logging.Handler):
    """A handler that keeps its lines as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, Lines]]:
    """A logger of the test's own, and what was written to it."""
    logger, lines = logging.getLogger("test.telemetry"), Lines()
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(lines)
    yield logger, lines
    logger.removeHandler(lines)


def logged(log: tuple[logging.Logger, Lines], event: Event) -> dict[str, Any]:
    """The line that an event becomes."""
    telemetry = Telemetry()
    log_to(log[0], telemetry)
    telemetry.announce(event)
    (line,) = log[1].lines
    return line


def contains(line: dict[str, Any], **fields: Any) -> None:
    assert fields == {name: line.get(name) for name in fields}


def test_job_claimed(log: tuple[logging.Logger, Lines]):
    """With the names that logs of job queues are searched by, and the run's metadata."""
    line = logged(log, claimed(metadata=METADATA))
    contains(
        line, event="job_claimed", level="info", job_id="R", job_type="enrich", attempt=1, worker_id="W", item_id=42
    )


def test_job_completed(log: tuple[logging.Logger, Lines]):
    """The duration is in milliseconds."""
    contains(
        logged(log, completed(metadata=METADATA)), event="job_completed", job_id="R", duration_ms=1234.568, item_id=42
    )


def test_job_failed(log: tuple[logging.Logger, Lines]):
    """A warning, with the error and whether it will be tried again."""
    contains(
        logged(log, failed(metadata=METADATA)),
        event="job_failed",
        level="warning",
        job_id="R",
        error_code="ValueError",
        message="bad",
        will_retry=True,
        retry_in=30.0,
        item_id=42,
    )


def test_what_is_none_is_not_logged(log: tuple[logging.Logger, Lines]):
    """A run that failed for good has no time of retry."""
    line = logged(log, failed(will_retry=False, retry_in=None))
    assert "retry_in" not in line
    assert "metadata" not in line


@pytest.mark.parametrize("name", ["job_id", "event", "level", "time", "logger", "worker_id", "duration_ms"])
def test_metadata_never_hides_a_field_of_the_log(log: tuple[logging.Logger, Lines], name: str):
    """Whatever people put into it: alerts are built on these names."""
    expected = logged(log, completed())[name]
    log[1].lines.clear()
    line = logged(log, completed(metadata={name: "mine"}))
    assert name == "time" or expected == line[name]
    assert line[name] != "mine"


def test_a_level_that_is_not_logged_costs_nothing(log: tuple[logging.Logger, Lines]):
    """The per-run events are not even made when nobody reads them."""
    telemetry = Telemetry()
    log[0].setLevel(logging.WARNING)
    log_to(log[0], telemetry)
    assert not telemetry.wants(RunClaimed)
    assert telemetry.wants(RunFailed)


def test_good_news_of_the_listener_is_no_warning(log: tuple[logging.Logger, Lines]):
    """That it works again is information."""
    contains(logged(log, ListeningChanged(working=True, why="listening")), level="info", event="listening_changed")


def test_bad_news_of_the_listener_is_a_warning(log: tuple[logging.Logger, Lines]):
    """Wake-ups are slower from now on."""
    contains(logged(log, ListeningChanged(working=False, why="lost")), level="warning", why="lost")


def test_a_line_is_one_line(log: tuple[logging.Logger, Lines]):
    """Whatever the error says."""
    record = logging.LogRecord("x", logging.INFO, "", 0, "two\nlines %s", ("here",), None)
    assert len(JsonFormatter().format(record).splitlines()) == 1
    contains(logged(log, StoreTroubled(service="committer", error="two\nlines", retry_in=1.0)), error="two\nlines")


def test_a_traceback_is_a_field():
    """So that it stays with its message."""
    try:
        raise ValueError("bad")
    except ValueError as error:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), (type(error), error, error.__traceback__))
    line = json.loads(JsonFormatter().format(record))
    contains(line, message="failed", level="error", logger="x")
    assert "ValueError: bad" in line["traceback"]


def test_values_that_are_not_json_are_written_as_text(log: tuple[logging.Logger, Lines]):
    """A log line is never lost to a type."""
    contains(logged(log, completed(metadata={"when": 1j})), when="1j")
