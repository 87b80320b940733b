"""Metrics: what is announced, added up under bounded labels; and how much waits, counted in the database."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ostinato import App, ConfigError
from ostinato.engine import rescuer
from ostinato.model.run import Orphan
from ostinato.observability import metrics
from ostinato.telemetry import (
    Event,
    LeaseLost,
    LeaseRenewed,
    NotificationReceived,
    QueueScanned,
    RunCancelled,
    RunClaimed,
    RunCompleted,
    RunFailed,
    RunGivenBack,
    RunRescued,
    RunSuspended,
    ScheduleFired,
    StaleWriteRefused,
    StepCompleted,
    StepFailed,
    StepRetried,
    WorkerBuried,
    WorkerStarted,
    WorkerStopped,
)
from tests.engine.databases import Database
from tests.metrics.scraping import Samples, of, samples

GUIDE = Path(__file__).parents[2] / "docs/guides/metrics.md"


@pytest.fixture
def quiet_app(tmp_path: Path) -> App:
    """An app with one function, on a file that nobody has opened."""
    app = App(f"sqlite:///{tmp_path}/quiet.db")
    declare(app)
    return app


def declare(app: App) -> None:
    @app.function
    async def enrich() -> None: ...


def announce(app: App, *events: Event) -> Samples:
    """What the metrics are after these."""
    page = app.metrics
    for event in events:
        app.telemetry.announce(event)
    return samples(page.text().decode())


def claimed(function: str = "enrich", worker: str = "W", waited: float = 0.25) -> RunClaimed:
    return RunClaimed(run_id="R", function=function, queue="default", attempt=1, worker=worker, waited=waited)


def completed(function: str = "enrich", duration: float = 2.0) -> RunCompleted:
    return RunCompleted(run_id="R", function=function, queue="default", attempt=1, worker="W", duration=duration)


def failed(*, will_retry: bool) -> RunFailed:
    return RunFailed(
        run_id="R",
        function="enrich",
        queue="default",
        attempt=1,
        worker="W",
        duration=1.0,
        error_code="ValueError",
        message="bad",
        will_retry=will_retry,
    )


def rescued(*, failed: bool = False, cancelled: bool = False) -> RunRescued:
    return RunRescued(run_id="R", function="enrich", dead_worker="X", failed=failed, cancelled=cancelled)


def started(worker: str) -> WorkerStarted:
    return WorkerStarted(worker=worker, queues={"default": 1})


# --- adding up


def test_claims_are_counted_with_their_latency(quiet_app: App):
    """By job type and worker; the latency is from the moment the run might have started."""
    found = announce(quiet_app, claimed(waited=0.25), claimed(waited=0.5))
    assert of(found, "job_claimed_total") == {"enrich/W": 2}
    assert of(found, "job_wakeup_latency_seconds_count") == {"enrich": 2}
    assert of(found, "job_wakeup_latency_seconds_sum") == {"enrich": 0.75}


def test_attempts_are_counted_by_how_they_ended(quiet_app: App):
    """success, failed (to be tried again) and dead (for good); all of them took time."""
    found = announce(quiet_app, completed(), completed(), failed(will_retry=True), failed(will_retry=False))
    assert of(found, "job_completed_total") == {"enrich/success": 2, "enrich/failed": 1, "enrich/dead": 1}
    assert of(found, "job_processing_seconds_count") == {"enrich": 4}
    assert of(found, "job_processing_seconds_sum") == {"enrich": 6.0}


def test_what_is_neither_has_counters_of_its_own(quiet_app: App):
    """Cancelled, given back and refused: no status is invented for them."""
    fields: dict[str, Any] = {"run_id": "R", "function": "enrich", "worker": "W"}
    found = announce(
        quiet_app,
        RunCancelled(**fields, queue="default", attempt=1, duration=1.0, reason="unwanted"),
        RunGivenBack(**fields, queue="default"),
        StaleWriteRefused(**fields, lease_no=1),
    )
    assert of(found, "job_completed_total") == {}
    assert of(found, "job_cancelled_total") == {"enrich": 1}
    assert of(found, "job_given_back_total") == {"enrich": 1}
    assert of(found, "job_stale_writes_refused_total") == {"enrich": 1}
    assert of(found, "job_processing_seconds_count") == {"enrich": 1}


def test_a_rescued_run_that_may_not_go_again_is_dead(quiet_app: App):
    """Nobody else announces it. One that goes again, or was cancelled, is only a rescue."""
    found = announce(quiet_app, rescued(), rescued(cancelled=True), rescued(failed=True), WorkerBuried(worker="X"))
    assert of(found, "job_rescued_total") == {"enrich": 3}
    assert of(found, "job_completed_total") == {"enrich/dead": 1}
    assert of(found, "job_workers_buried_total") == {"": 1}


@pytest.mark.parametrize(
    ("attempt", "certain", "cancel_requested", "failed", "cancelled"),
    [
        (1, True, False, False, False),
        (3, True, False, True, False),
        (3, False, False, False, False),
        (3, True, True, False, True),
    ],
)
def test_a_rescue_says_what_becomes_of_the_run(
    attempt: int, certain: bool, cancel_requested: bool, failed: bool, cancelled: bool
):
    """It goes again unless its attempts are used up, for certain; one that somebody cancelled has not failed."""
    orphan = Orphan("R", 1, "enrich", "default", attempt, 0, certain, cancel_requested, 3, "X", 1.0)
    event = rescuer._rescued(orphan)
    assert (event.failed, event.cancelled) == (failed, cancelled)


def test_leases_are_counted(quiet_app: App):
    """Renewals, and those that were lost."""
    found = announce(quiet_app, LeaseRenewed(worker="W"), LeaseRenewed(worker="W"), LeaseLost(worker="W", why="late"))
    assert of(found, "job_lease_renewals_total") == {"": 2}
    assert of(found, "job_leases_lost_total") == {"": 1}


def test_wake_ups_are_counted_by_channel(quiet_app: App):
    found = announce(quiet_app, *(NotificationReceived(channel=each) for each in ("queue", "queue", "cancel")))
    assert of(found, "job_notification_received_total") == {"queue": 2, "cancel": 1}


def test_what_polling_found_is_what_no_wake_up_had_asked_for(quiet_app: App):
    """A look that a wake-up asked for does not count, whatever it finds."""
    found = announce(quiet_app, QueueScanned(queue="a", found=3), QueueScanned(queue="a", found=5, woken=True))
    assert of(found, "job_poll_scanned_total") == {"": 3}


def test_what_schedules_start_is_counted(quiet_app: App):
    """By job type: the names of schedules are not ours to bound."""
    slot = datetime(2026, 1, 1, tzinfo=UTC)
    fired = [ScheduleFired(schedule=f"s{n}", function="enrich", run_id="R", slot=slot, late=0.0) for n in range(3)]
    assert of(announce(quiet_app, *fired), "job_schedules_fired_total") == {"enrich": 3}


def test_runs_that_wait_are_counted(quiet_app: App):
    """They have not ended, and took no time that counts."""
    waits = RunSuspended(run_id="R", function="enrich", queue="default", worker="W", reason="sleep")
    found = announce(quiet_app, claimed(), waits, claimed(), completed())
    assert of(found, "job_suspended_total") == {"enrich": 1}
    assert of(found, "job_completed_total") == {"enrich/success": 1}
    assert of(found, "job_processing_seconds_count") == {"enrich": 1}


def test_steps_are_counted_by_what_became_of_them(quiet_app: App):
    """Completed ones with how long they took; what only waits is not counted."""
    common: dict[str, Any] = {"run_id": "R", "function": "enrich", "step": "fetch"}
    failed: dict[str, Any] = {**common, "error_code": "ValueError", "message": "bad", "retry_count": 1}
    found = announce(
        quiet_app,
        StepCompleted(**common, kind="step", duration=2.0),
        StepCompleted(**common, kind="step", duration=0.5),
        StepCompleted(**common, kind="sleep", duration=3600.0),
        StepRetried(**failed, retry_in=1.0),
        StepFailed(**failed),
    )
    assert of(found, "job_steps_total") == {"enrich/completed": 2, "enrich/retried": 1, "enrich/failed": 1}
    assert of(found, "job_step_seconds_count") == {"enrich": 2}
    assert of(found, "job_step_seconds_sum") == {"enrich": 2.5}


# --- labels


def test_a_function_that_the_app_does_not_know_is_other(quiet_app: App):
    """However many names there are, there is one series for all of them."""
    found = announce(quiet_app, *(claimed(f"stranger {n}") for n in range(50)), completed("stranger 7"))
    assert of(found, "job_claimed_total") == {"other/W": 50}
    assert of(found, "job_completed_total") == {"other/success": 1}


def test_identities_that_are_over_go_when_the_next_begins(quiet_app: App):
    """A process that loses its lease again and again has the series of one worker."""
    events: list[Event] = []
    for n in range(20):
        events += [started(f"W{n}"), claimed(worker=f"W{n}"), claimed("stranger", f"W{n}")]
        events.append(LeaseLost(worker=f"W{n}", why="late") if n % 2 else WorkerStopped(worker=f"W{n}"))
    found = announce(quiet_app, *events)
    assert of(found, "job_claimed_total") == {"enrich/W19": 1, "other/W19": 1}
    found = announce(quiet_app, started("W20"))
    assert {key for key in found if key[0] == "job_claimed_total"} == {("job_claimed_total", "enrich", "W20")}


def test_two_workers_of_a_process_do_not_hide_each_other(quiet_app: App):
    """An identity goes when it is over, not when there is another."""
    found = announce(quiet_app, started("A"), claimed(worker="A"), started("B"), claimed(worker="B"))
    assert of(found, "job_claimed_total") == {"enrich/A": 1, "enrich/B": 1}


def test_the_series_of_known_functions_begin_at_zero(quiet_app: App):
    """So that the first failure is an increase."""
    found = announce(quiet_app, started("W"))
    assert found["job_completed_total", "enrich", "dead"] == 0.0
    assert found["job_claimed_total", "enrich", "W"] == 0.0


# --- registries


def test_the_default_registry_is_not_touched(quiet_app: App):
    """Importing and counting changes nothing there."""
    announce(quiet_app, completed())
    assert b"job_completed" not in generate_latest(prometheus_client.REGISTRY)


def test_two_apps_count_apart(quiet_app: App, tmp_path: Path):
    """Each has a registry of its own."""
    other = App(f"sqlite:///{tmp_path}/other.db")
    assert of(announce(quiet_app, completed()), "job_completed_total") == {"enrich/success": 1}
    assert of(announce(other), "job_completed_total") == {}


def test_it_can_be_added_to_a_users_registry(quiet_app: App):
    """Where it shows what it shows in its own."""
    registry = CollectorRegistry()
    registry.register(quiet_app.metrics)
    found = announce(quiet_app, completed())
    assert samples(generate_latest(registry).decode()) == found
    registry.unregister(quiet_app.metrics)


def test_registering_needs_no_database(tmp_path: Path):
    """A registry that asks for everything at registration gets names alone."""
    app = App(f"sqlite:///{tmp_path}/untouched.db")
    CollectorRegistry(auto_describe=True).register(app.metrics)
    assert not (tmp_path / "untouched.db").exists()


def test_names_are_taken_in_a_users_registry(quiet_app: App):
    """A second collector with our names is refused there, as it should be."""
    registry = CollectorRegistry()
    registry.register(quiet_app.metrics)
    with pytest.raises(ValueError, match="job_queue_depth"):
        prometheus_client.Gauge("job_queue_depth", "mine", registry=registry)


def test_without_the_package_the_extra_is_named(quiet_app: App, monkeypatch: pytest.MonkeyPatch):
    """Nothing else needs it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "ostinato.observability.metrics", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'ostinato\[metrics\]'"):
        _ = quiet_app.metrics


def test_every_metric_is_documented(quiet_app: App):
    """The guide has each name, as Prometheus knows it."""
    text = GUIDE.read_text(encoding="utf-8")
    names = {
        family.name + ("_total" if family.type == "counter" else "") for family in list(quiet_app.metrics.describe())
    }
    assert len(names) == 18
    assert [] == [name for name in sorted(names) if f"`{name}" not in text]


# --- the depth of the queue


async def test_the_depth_is_what_could_start_now(app: App, database: Database):
    """Ready runs of any queue, those held ones that are due; not those that run, are for later, or have ended."""
    declare(app)

    @app.function
    async def idle() -> None: ...

    async with app:
        await app.enqueue_many("enrich", [{}] * 3)
        await app.enqueue("enrich", {}, queue="attic")
        await app.enqueue("enrich", {}, delay="1h")
        await app.enqueue("stranger", {}, queue="default")
        for _ in range(2):
            await app.enqueue("stranger", {}, queue="attic", delay="1h")
        database.query(
            "update ostinato_runs set run_at = created_at where function = 'stranger' and id in "
            "(select min(id) from ostinato_runs where state = 'held' and function = 'stranger')"
        )
        ended = await app.enqueue("enrich", {})
        await ended.cancel()
        found = samples((await asyncio.to_thread(app.metrics.text)).decode())
    assert {key: value for key, value in found.items() if key[0] == "job_queue_depth"} == {
        ("job_queue_depth", "enrich"): 4,
        ("job_queue_depth", "idle"): 0,
        ("job_queue_depth", "other"): 2,
    }


async def test_the_depth_can_be_asked_for_in_the_event_loop(app: App):
    """A user's own endpoint may be a coroutine: it waits for the count, and does not wait for ever."""
    declare(app)
    async with app:
        await app.enqueue("enrich", {})
        assert samples(app.metrics.text().decode())["job_queue_depth", "enrich"] == 1


async def test_the_depth_is_kept_for_a_while(app: App, monkeypatch: pytest.MonkeyPatch):
    """Several that scrape do not count several times."""
    declare(app)
    page = app.metrics
    async with app:
        await app.enqueue("enrich", {})
        assert samples(page.text().decode())["job_queue_depth", "enrich"] == 1
        await app.enqueue("enrich", {})
        assert samples(page.text().decode())["job_queue_depth", "enrich"] == 1
        page._depths._keep_until = 0.0
        assert samples(page.text().decode())["job_queue_depth", "enrich"] == 2


async def test_a_slow_count_is_kept_for_longer(app: App, monkeypatch: pytest.MonkeyPatch):
    """At most a twentieth of the time is spent counting."""
    moments = iter([100.0, 102.0])
    monkeypatch.setattr(metrics, "time", Clock(lambda: next(moments)))
    app.metrics.text()
    assert app.metrics._depths._keep_until == 142.0


class Clock:
    def __init__(self, monotonic: object) -> None:
        self.monotonic = monotonic


def test_a_depth_that_cannot_be_counted_is_not_shown(caplog: pytest.LogCaptureFixture):
    """The rest of the page is there, and the log says why."""
    app = App("postgresql://nobody@127.0.0.1:1/nowhere")
    declare(app)
    found = announce(app, completed())
    assert of(found, "job_completed_total") == {"enrich/success": 1}
    assert [key for key in found if key[0] == "job_queue_depth"] == []
    assert "job_queue_depth cannot be counted" in caplog.text
