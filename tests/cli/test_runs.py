"""`ostinato runs`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.cli.processes import worker


def enqueued(cli: Cli, *args: str) -> str:
    return cli.does("enqueue", *args).strip()


@pytest.fixture
def failed(url: str, cli: Cli) -> str:
    """A run that has failed after two attempts, for good."""
    with worker(url):
        cli("enqueue", "greet", '{"name": "nobody"}', "--wait", "--metadata", '{"item_id": 7}')
    run_id: str = cli.reads("runs", "list")[0]["id"]
    return run_id


# --- list


def test_an_empty_list(cli: Cli):
    """No runs is an answer, not an error."""
    result = cli("runs", "list", "--state", "failed", "--function", "greet")
    assert (0, "", "no runs with state failed, function greet\n") == (result.exit_code, result.stdout, result.stderr)
    assert cli.reads("runs", "list") == []


def test_runs_are_listed_newest_first(cli: Cli):
    """A line for each run, with its id whole."""
    ids = [enqueued(cli, "greet") for _ in range(3)]
    header, *lines = cli.does("runs", "list").splitlines()
    assert header.split() == ["run", "function", "queue", "state", "attempt", "created", "took", "error"]
    assert [line.split()[0] for line in lines] == ids[::-1]


def test_lists_are_filtered(cli: Cli):
    """By function, queue and state."""
    first, second, third = enqueued(cli, "greet"), enqueued(cli, "refuse"), enqueued(cli, "greet", "--delay", "1h")

    def listed(*args: str) -> list[str]:
        return [run["id"] for run in cli.reads("runs", "list", *args)]

    assert listed("--function", "greet") == [third, first]
    assert listed("--queue", "mail") == [second]
    assert listed("--state", "held") == [third]
    assert listed("--state", "ready", "--function", "greet") == [first]


def test_lists_are_paged(cli: Cli):
    """A full page says how to get the next one."""
    ids = [enqueued(cli, "greet") for _ in range(3)]
    page = cli("runs", "list", "--limit", "2")
    assert page.stderr == f"older ones: --before {ids[1]}\n"
    assert [run["id"] for run in cli.reads("runs", "list", "--before", ids[1])] == [ids[0]]


def test_an_unknown_state_is_refused(cli: Cli):
    """The states are closed, and named in the error."""
    assert "'held', 'ready', 'running'" in cli.fails("runs", "list", "--state", "lost", code=2)


# --- show


def test_a_failed_run_is_shown_with_everything(failed: str, cli: Cli):
    """State, error, attempts with their tracebacks, times, input and metadata."""
    shown = cli.does("runs", "show", failed)
    for piece in (
        failed,
        "ValueError: nobody is there",
        "attempt      2 of 2",
        "attempts that did not complete",
        'raise ValueError("nobody is there")',
        '"name": "nobody"',
        '"item_id": 7',
        " UTC (",
    ):
        assert piece in shown


def test_a_run_as_json(failed: str, cli: Cli):
    """Everything for programs, with the words that people see."""
    run = cli.reads("runs", "show", failed)
    assert ("failed", "failed", None) == (run["state"], run["status"], run["held_because"])
    assert {"code": "ValueError", "message": "nobody is there"} == run["error"]
    assert [1, 2] == [attempt["attempt"] for attempt in run["attempts"]]
    assert all("Traceback" in attempt["traceback"] for attempt in run["attempts"])


def test_a_held_run_says_why(cli: Cli):
    """What it waits for, and until when."""
    run_id = enqueued(cli, "greet", "{}", "--delay", "1h")
    shown = cli.does("runs", "show", run_id)
    assert "it is not due before" in shown
    assert "held, due in 59 min" in shown or "held, due in 1 h" in shown
    assert cli.reads("runs", "show", run_id)["status"] == "pending"


def test_a_run_that_nobody_works_on_says_so(url: str, cli: Cli):
    """The commonest reason why nothing happens: no worker serves the queue."""
    run_id = enqueued(cli, "greet", "{}", "--queue", "forgotten")
    assert "nobody works on the queue 'forgotten'" in cli.does("runs", "show", run_id)
    with worker(url, "--queues", "forgotten") as working:
        working.event("job_failed", job_id=run_id, will_retry=False)
        assert "nobody works" not in cli.does(
            "runs", "show", enqueued(cli, "greet", "--queue", "forgotten", "--delay", "1h")
        )


def test_a_completed_run_shows_its_output(url: str, cli: Cli):
    """The output, and how long it took."""
    with worker(url):
        run_id = cli.does("enqueue", "greet", '{"name": "ann"}', "--wait").splitlines()[0]
    shown = cli.does("runs", "show", run_id)
    assert "completed" in shown
    assert "took" in shown
    assert "last start" not in shown  # it has started once
    assert "from the first start" not in shown
    assert shown.endswith('output\n"hello ann"\n')


def test_a_running_run_shows_its_worker(url: str, cli: Cli):
    """Who executes it, and until when the lease runs."""
    with worker(url) as working:
        run_id = enqueued(cli, "linger", '{"seconds": 50}')
        claimed = working.event("job_claimed", job_id=run_id)
        shown = cli.does("runs", "show", run_id)
        assert f"{claimed['worker_id']}, lease until " in shown
        assert "running for" in shown


# --- retry


def test_a_failed_run_is_retried(failed: str, cli: Cli):
    """It goes again, with a fresh budget."""
    assert cli.does("runs", "retry", failed) == f"{failed} will go again\n"
    run = cli.reads("runs", "show", failed)
    assert ("ready", 0) == (run["state"], run["attempt"])


def test_what_cannot_be_retried_is_said(failed: str, cli: Cli):
    """The others go; each that cannot gets a line, and the exit code is 1."""
    ready = enqueued(cli, "greet")
    result = cli("runs", "retry", ready, failed, "nosuch")
    assert result.exit_code == 1
    assert result.stdout == f"{failed} will go again\n"
    assert result.stderr.splitlines() == [
        f"error: run {ready} is ready; only failed and cancelled runs can be retried",
        "error: no run has the id 'nosuch'; it may have been removed by retention",
    ]


def test_all_failed_runs_of_a_function_are_retried(url: str, cli: Cli):
    """--all takes those that the options name, the oldest first, up to the limit."""
    with worker(url):
        for _ in range(3):
            cli("enqueue", "refuse", "--wait")
        cli("enqueue", "greet", '{"name": "nobody"}', "--wait")
    assert cli.does("runs", "retry", "--all", "--function", "refuse", "--limit", "2") == "2 runs will go again\n"
    assert cli.does("runs", "retry", "--all", "--function", "refuse") == "1 run will go again\n"
    assert [run["function"] for run in cli.reads("runs", "list", "--state", "failed")] == ["greet"]


def test_retrying_needs_ids_or_all(cli: Cli):
    """Neither, or both, is a usage error."""
    assert "name runs by their IDs, or all of a kind" in cli.fails("runs", "retry", code=2)
    assert "name runs by their IDs, or all of a kind" in cli.fails("runs", "retry", "x", "--all", code=2)
    for options in (["x", "--queue", "mail"], ["x", "--dry-run"], ["--dry-run"], ["--limit", "3"]):
        assert "name runs by their IDs" in cli.fails("runs", "retry", *options, code=2)
        assert "name runs by their IDs" in cli.fails("runs", "cancel", *options, code=2)
    assert "name runs by their IDs" in cli.fails("runs", "purge", "--dry-run", code=2)


def test_failed_runs_are_retried_by_their_error(failed: str, cli: Cli):
    """A dry run shows them; the rest is as with --all."""
    assert cli.does("runs", "retry", "--code", "KeyError", "--dry-run") == "0 runs would go again\n"
    shown = cli.does("runs", "retry", "--code", "ValueError", "--newer-than", "1h", "--dry-run")
    assert shown.startswith("1 run would go again\n")
    assert failed in shown
    assert cli.does("runs", "retry", "--code", "ValueError", "--newer-than", "1h") == "1 run will go again\n"


def test_a_run_whose_key_is_taken_cannot_be_retried(url: str, cli: Cli):
    """It is said who is in the way, one by one and for all."""
    with worker(url):
        cli("enqueue", "refuse", "--key", "k", "--wait")
    failed = cli.reads("runs", "list")[0]["id"]
    enqueued(cli, "refuse", "--key", "k")
    assert "another run of 'refuse' holds its key 'k'" in cli.fails("runs", "retry", failed)
    result = cli("runs", "retry", "--all")
    assert ("0 runs will go again\n", "1 cannot: other runs hold their keys\n") == (result.stdout, result.stderr)


# --- cancel


def test_waiting_runs_are_cancelled_at_once(cli: Cli):
    """With the reason kept."""
    run_id = enqueued(cli, "greet", "--delay", "1h")
    assert cli.does("runs", "cancel", run_id, "--reason", "not needed") == f"{run_id} cancelled\n"
    run = cli.reads("runs", "show", run_id)
    assert ("cancelled", "not needed") == (run["state"], run["error"]["message"])


def test_a_running_run_is_cancelled_by_its_worker(url: str, cli: Cli):
    """The worker is asked to stop it."""
    with worker(url) as working:
        run_id = enqueued(cli, "linger", '{"seconds": 50}')
        working.event("job_claimed", job_id=run_id)
        cli.does("runs", "cancel", run_id)
        working.event("job_cancelled", job_id=run_id)
    assert cli.reads("runs", "show", run_id)["state"] == "cancelled"


def test_what_has_ended_cannot_be_cancelled(failed: str, cli: Cli):
    """It is said in which state it is, and which run is not there at all."""
    said = cli.fails("runs", "cancel", failed, "nosuch").splitlines()
    assert said[0] == f"error: run {failed} is failed already"
    assert "no run has the id 'nosuch'" in said[1]


def test_runs_are_cancelled_by_what_they_are(cli: Cli):
    """After a question; a dry run shows some, and nothing is asked for it."""
    for _ in range(7):
        enqueued(cli, "greet")
    kept = enqueued(cli, "refuse")
    preview = cli("runs", "cancel", "--function", "greet", "--dry-run")
    assert preview.stdout.startswith("7 runs would be cancelled\n")
    assert preview.stderr == "the first 5:\n"
    assert cli.reads("runs", "cancel", "--function", "greet", "--dry-run")["count"] == 7
    assert "nothing was changed" in cli.fails("runs", "cancel", "--function", "greet", stdin="n\n")
    cancelling = cli("runs", "cancel", "--function", "greet", "--reason", "not needed", stdin="y\n")
    assert (cancelling.stdout, cancelling.stderr) == ("7 runs cancelled\n", "cancel 7 runs? [y/N]: y\n")
    cancelled = cli.reads("runs", "list", "--state", "cancelled")
    assert [run["error"]["message"] for run in cancelled] == ["not needed"] * 7
    assert [run["id"] for run in cli.reads("runs", "list", "--state", "ready")] == [kept]


def test_runs_are_cancelled_by_state_key_and_age(cli: Cli):
    """Each narrows it; --all is everything."""
    enqueued(cli, "greet", "--delay", "1h")
    enqueued(cli, "greet", "--key", "k")
    enqueued(cli, "greet")
    assert cli.does("runs", "cancel", "--yes", "--older-than", "1h") == "0 runs cancelled\n"
    assert cli.does("runs", "cancel", "--yes", "--state", "held", "--newer-than", "1h") == "1 run cancelled\n"
    assert cli.does("runs", "cancel", "--yes", "--key", "k") == "1 run cancelled\n"
    assert cli.does("runs", "cancel", "--yes", "--all") == "1 run cancelled\n"


def test_lists_take_the_same_filters(failed: str, cli: Cli):
    """So that what a verb would do can be looked at."""
    assert [run["id"] for run in cli.reads("runs", "list", "--code", "ValueError", "--newer-than", "1h")] == [failed]
    result = cli("runs", "list", "--code", "ValueError", "--older-than", "90m")
    assert result.stderr == "no runs with code ValueError, older than 1 h 30 min\n"


# --- purge


def test_runs_are_purged(failed: str, cli: Cli):
    """Those that have ended and match, after a question."""
    waiting = enqueued(cli, "greet")
    assert cli.does("runs", "purge", "--state", "completed", "--yes") == "0 runs deleted\n"
    assert cli.does("runs", "purge", "--function", "greet", "--dry-run").startswith("1 run would be deleted\n")
    assert cli.does("runs", "purge", "--function", "greet", stdin="y\n") == "1 run deleted\n"
    assert [run["id"] for run in cli.reads("runs", "list")] == [waiting]
    assert failed in cli.fails("runs", "show", failed)
