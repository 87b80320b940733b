"""`ostinato queues`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.cli.processes import worker


def enqueued(cli: Cli, *args: str) -> str:
    return cli.does("enqueue", *args).strip()


@pytest.fixture
def ended(url: str, cli: Cli) -> list[str]:
    """Two runs of the queue mail that have failed, and one of another that has completed."""
    with worker(url):
        for _ in range(2):
            cli("enqueue", "refuse", "--wait")
        cli("enqueue", "greet", '{"name": "ann"}', "--wait")
    return [run["id"] for run in cli.reads("runs", "list")]


# --- list and show


def test_queues_are_listed(url: str, cli: Cli):
    """With what waits and runs in them, who works, and whether they are paused."""
    enqueued(cli, "greet", "--delay", "1h")
    for _ in range(2):
        enqueued(cli, "refuse", "--queue", "night")
    cli.does("queues", "pause", "mail")
    with worker(url):
        listed = {queue["name"]: queue for queue in cli.reads("queues", "list")}
        lines = [line.split() for line in cli.does("queues", "list").splitlines()]
    assert list(listed) == ["default", "mail", "night"]
    assert (listed["default"]["held"], listed["default"]["slots"], listed["default"]["max_waiting"]) == (1, 7, 1000)
    assert (listed["mail"]["paused"], listed["mail"]["slots"], listed["mail"]["longest_wait"]) == (True, 3, None)
    assert (listed["night"]["ready"], listed["night"]["slots"], listed["night"]["workers"]) == (2, 0, 0)
    assert lines[0] == ["queue", "state", "ready", "held", "running", "slots", "waited", "cap"]
    assert lines[1] == ["default", "served", "0", "1", "0", "7", "1,000"]
    assert lines[2] == ["mail", "paused", "0", "0", "0", "3"]
    assert lines[3][:7] == ["night", "nobody", "works", "on", "it", "2", "0"]


def test_no_queues(empty_url: str):
    """An answer, not an error."""
    cli = Cli(empty_url)
    cli.does("migrate", "up")
    result = cli("queues", "list")
    assert (0, "") == (result.exit_code, result.stdout)
    assert result.stderr == "no queues: no worker, function or run has named one\n"
    assert cli.reads("queues", "list") == []


def test_a_queue_is_shown(url: str, cli: Cli):
    """With the functions whose runs go there and the workers that serve it."""
    with worker(url):
        shown = cli.does("queues", "show", "default")
        queue = cli.reads("queues", "show", "default")
    for piece in ("served", "0 of 7 slots", "1,000 waiting runs", "greet, linger", "7 slots"):
        assert piece in shown
    assert (queue["functions"], len(queue["served_by"]), queue["paused"]) == (["greet", "linger"], 1, False)


# --- pause and resume


def test_a_paused_queue_is_resumed(url: str, cli: Cli):
    """Runs say why they wait, and go on afterwards."""
    assert cli.does("queues", "pause", "mail", "default") == "mail is paused\ndefault is paused\n"
    assert cli.does("queues", "pause", "mail") == "mail was paused already\n"
    run_id = enqueued(cli, "greet", '{"name": "ann"}')
    shown = cli.does("runs", "show", run_id)
    assert "the queue 'default' is paused; let it go on: ostinato queues resume default" in shown
    assert cli.reads("runs", "show", run_id)["held_because"] == "paused"
    assert "ready, paused" in cli.does("runs", "list")
    with worker(url) as working:
        assert cli.does("queues", "resume", "default") == "default goes on\n"
        working.event("job_completed", job_id=run_id)
    assert cli.does("queues", "resume", "default") == "default was not paused\n"


def test_a_mistyped_queue_is_refused(cli: Cli):
    """With a guess, exit code 1, and without keeping the others from being paused."""
    result = cli("queues", "pause", "mial", "mail")
    assert (1, "mail is paused\n") == (result.exit_code, result.stdout)
    assert result.stderr == "error: no queue is named 'mial'; did you mean 'mail'?\n"
    assert "no queue is named 'nosuch'" in cli.fails("queues", "show", "nosuch")
    assert "no queue is named 'nosuch'" in cli.fails("queues", "resume", "nosuch")
    assert "no queue is named 'nosuch'" in cli.fails("queues", "purge", "nosuch", "--yes")


def test_a_queue_is_paused_ahead_of_its_first_use(cli: Cli):
    """If one says so."""
    assert cli.does("queues", "pause", "tomorrow", "--create") == "tomorrow is paused\n"
    assert cli.reads("queues", "show", "tomorrow")["paused"]


# --- purge


def test_a_purge_is_tried_first(ended: list[str], cli: Cli):
    """A dry run says how many, and shows some; as JSON too."""
    result = cli("queues", "purge", "mail", "--dry-run")
    assert (0, "") == (result.exit_code, result.stderr)
    first, *table = result.stdout.splitlines()
    assert first == "2 runs would be deleted"
    assert {line.split()[0] for line in table[1:]} == set(ended[1:])
    preview = cli.reads("queues", "purge", "mail", "--dry-run", "--state", "failed")
    assert (preview["count"], preview["dry_run"], set(preview["sample"])) == (2, True, set(ended[1:]))
    assert len(cli.reads("runs", "list")) == 3


def test_a_purge_asks(ended: list[str], cli: Cli):
    """Whoever does not say yes changes nothing, and gets exit code 1."""
    result = cli("queues", "purge", "mail", stdin="n\n")
    assert (1, "") == (result.exit_code, result.stdout)
    assert result.stderr == "delete 2 runs? [y/N]: n\nerror: nothing was changed\n"
    assert cli("queues", "purge", "mail", stdin="").exit_code == 1
    assert len(cli.reads("runs", "list")) == 3
    assert cli.does("queues", "purge", "mail", stdin="y\n") == "2 runs deleted\n"
    assert [run["id"] for run in cli.reads("runs", "list")] == ended[:1]


def test_a_purge_without_being_asked(ended: list[str], cli: Cli):
    """--yes is for scripts; what does not match stays."""
    assert cli.does("queues", "purge", "mail", "--yes", "--older-than", "1h") == "0 runs deleted\n"
    assert cli.does("queues", "purge", "mail", "--yes", "--state", "completed") == "0 runs deleted\n"
    assert cli.reads("queues", "purge", "mail", "--yes", "--limit", "1")["count"] == 1
    assert cli.does("queues", "purge", "mail", "--yes", "--function", "refuse") == "1 run deleted\n"
    assert cli.does("queues", "purge", "mail") == "0 runs deleted\n"


def test_waiting_runs_are_purged_if_they_are_named(cli: Cli):
    """And running ones cannot be named."""
    enqueued(cli, "refuse")
    enqueued(cli, "refuse", "--delay", "1h")
    assert cli.does("queues", "purge", "mail", "--yes") == "0 runs deleted\n"
    assert cli.does("queues", "purge", "mail", "--yes", "--state", "ready", "--state", "held") == "2 runs deleted\n"
    assert "'running' is not one of" in cli.fails("queues", "purge", "mail", "--state", "running", code=2)
