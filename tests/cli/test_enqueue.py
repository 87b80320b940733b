"""`ostinato enqueue`."""

from __future__ import annotations

import pytest
from msgspec import json

from tests.cli.conftest import RADIO, Cli
from tests.cli.processes import worker


def test_it_prints_the_id(cli: Cli):
    """The run's id alone on stdout, for scripts."""
    run_id = cli.does("enqueue", "greet", '{"name": "ann"}').strip()
    run = cli.reads("runs", "show", run_id)
    assert ({"name": "ann"}, "ready", "cli") == (run["input"], run["state"], run["invoked_by"])


def test_input_may_come_from_stdin(cli: Cli):
    """`-` reads the input."""
    run_id = cli.does("enqueue", "greet", "-", stdin='{"name": "ann"}').strip()
    assert cli.reads("runs", "show", run_id)["input"] == {"name": "ann"}


def test_input_may_be_left_out(cli: Cli):
    """Without input it is an empty object."""
    run_id = cli.does("enqueue", "refuse").strip()
    assert cli.reads("runs", "show", run_id)["input"] == {}


def test_options_are_kept_with_the_run(cli: Cli):
    """Priority, queue, timeout, key, metadata and delay reach the database."""
    options = ["--priority", "60", "--queue", "slow", "--timeout", "5m", "--key", "a", "--metadata", '{"item_id": 7}']
    run_id = cli.does("enqueue", "greet", "{}", "--delay", "1h 30m", *options).strip()
    run = cli.reads("runs", "show", run_id)
    assert (60, "slow", 300.0, "a") == (run["priority"], run["queue"], run["timeout"], run["key"])
    assert ({"item_id": 7}, "held", "not_due") == (run["metadata"], run["state"], run["held_because"])


def test_run_at_is_an_instant(cli: Cli):
    """A moment with a time zone is when it is due; one without names no instant."""
    run_id = cli.does("enqueue", "greet", "{}", "--run-at", "2099-01-31T09:00:00+01:00").strip()
    assert cli.reads("runs", "show", run_id)["run_at"].startswith("2099-01-31T08:00:00")
    assert "add Z or +01:00" in cli.fails("enqueue", "greet", "--run-at", "2099-01-31T09:00", code=2)
    assert "is not a moment" in cli.fails("enqueue", "greet", "--run-at", "tomorrow", code=2)


@pytest.mark.parametrize("unique", ["active", "failed", "forever", "1d", "60"])
def test_a_taken_key_enqueues_nothing(cli: Cli, unique: str):
    """The run that holds the key is printed, and that nothing was enqueued is said on stderr."""
    first = cli("enqueue", "greet", "--key", "k", "--unique", unique)
    second = cli("enqueue", "greet", "--key", "k", "--unique", unique)
    assert first.stdout == second.stdout
    assert second.stderr == "nothing was enqueued: this run holds the key 'k'\n"
    assert len(cli.reads("runs", "list")) == 1
    assert first.stdout != cli.does("enqueue", "greet", "--key", "k", "--force")


def test_an_unknown_function_is_guessed(cli: Cli):
    """Names come from the database: no code is needed to suggest one."""
    assert "no function is named 'gret'; did you mean 'greet'?" in cli.fails("enqueue", "gret")


def test_a_function_nobody_has_declared(empty_url: str):
    """In a database that knows no function at all, it is said how it gets to know one."""
    Cli(empty_url).does("migrate", "up")
    said = Cli(empty_url).fails("enqueue", "greet")
    assert said.startswith("error: no function is named 'greet'; declare it with @app.function")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (['{"name"'], "is not JSON"),
        (["[1]"], "must be a JSON object"),
        (["{}", "--metadata", "7"], "must be a JSON object"),
        (["{}", "--delay", "soon"], "is not a duration"),
        (["{}", "--priority", "601"], "601 is not in the range"),
        (["{}", "--unique", "sometimes", "--key", "k"], "is not a duration"),
        (["{}", "--wait=never"], "is not a duration"),
    ],
)
def test_what_cannot_be_understood_is_refused(cli: Cli, args: list[str], said: str):
    """Mistakes on the line are usage errors, and nothing is written."""
    assert said in cli.fails("enqueue", "greet", *args, code=2)
    assert cli.reads("runs", "list") == []


def test_with_the_app_the_input_is_checked_at_the_door(cli: Cli):
    """With --app the function's types are known, and bad input changes nothing."""
    assert "times" in cli.fails("enqueue", "greet", '{"name": "ann", "times": "x"}', "--app", RADIO)
    assert cli.reads("runs", "list") == []
    cli.does("--app", RADIO, "enqueue", "greet", '{"name": "ann", "times": 2}')


def test_options_that_contradict_each_other_are_refused(cli: Cli):
    """A delay and a moment cannot both be meant."""
    said = cli.fails("enqueue", "greet", "--delay", "1s", "--run-at", "2099-01-31T09:00:00Z")
    assert said == "error: give delay= or run_at=, not both\n"


def test_waiting_for_the_result(url: str, cli: Cli):
    """--wait prints the result below the id, wherever on the line it stands, with or without a limit."""
    with worker(url):
        for args in (['{"name": "a"}', "--wait"], ["--wait", '{"name": "a"}'], ["--wait", "20", '{"name": "a"}']):
            run_id, result = cli.does("enqueue", "greet", *args).splitlines()
            assert (26, '"hello a"') == (len(run_id), result)


def test_waiting_for_a_run_that_fails(url: str, cli: Cli):
    """The exit code is 1, and the error says why."""
    with worker(url):
        said = cli.fails("enqueue", "refuse", "--wait=20")
        assert said.endswith("failed: fatal: we do not do that\n")


def test_waiting_has_an_end(cli: Cli):
    """Without a worker, waiting ends after the time given; the run goes on."""
    assert "has not ended within 0.1 s; it goes on" in cli.fails("enqueue", "greet", "--wait=0.1")
    assert len(cli.reads("runs", "list", "--state", "ready")) == 1


def test_json_says_everything(url: str, cli: Cli):
    """One object: the id, whether it is new, how it ended and with what."""
    with worker(url):
        done = cli.reads("enqueue", "greet", '{"name": "a"}', "--wait")
        assert (True, "completed", "hello a") == (done["created"], done["state"], done["result"])
        failed = json.decode(cli("enqueue", "refuse", "--wait", "--json").stdout)
        assert ("failed", {"code": "fatal", "message": "we do not do that"}) == (failed["state"], failed["error"])


def test_json_without_waiting(cli: Cli):
    """The object says where the run stands now."""
    answer = cli.reads("enqueue", "greet", "--key", "k")
    assert (True, "ready") == (answer["created"], answer["state"])
    assert cli.reads("enqueue", "greet", "--key", "k") == {**answer, "created": False}
