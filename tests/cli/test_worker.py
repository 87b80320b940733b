"""`ostinato worker`, in processes of its own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.conftest import RADIO, Cli
from tests.cli.processes import Program, program, worker


def settings_of(cli: Cli) -> tuple[dict[str, int], float]:
    """The queues and the lease of the one worker there is."""
    (seen,) = cli.reads("workers", "list")
    return seen["queues"], seen["lease"]


# --- working and stopping


def test_it_works_until_sigterm(url: str, cli: Cli):
    """It executes runs, and ends in order with exit code 0."""
    with worker(url) as working:
        assert '"hello ann"' in cli.does("enqueue", "greet", '{"name": "ann"}', "--wait=20")
        working.signal(signal.SIGTERM)
        assert working.ended() == 0
        assert "Traceback" not in working.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(url: str, cli: Cli, number: signal.Signals):
    """A run that is being executed may end within the grace."""
    with worker(url, "--shutdown-grace", "30s") as working:
        run_id = cli.does("enqueue", "linger", '{"seconds": 1}').strip()
        working.event("job_claimed", job_id=run_id)
        working.signal(number)
        working.event("worker_stopping", running=1)
        working.event("job_completed", job_id=run_id)
        assert working.ended() == 0
    assert cli.reads("runs", "show", run_id)["state"] == "completed"


def test_the_second_signal_gives_everything_back(url: str, cli: Cli):
    """What is being executed goes back to the queue at once, without costing an attempt."""
    with worker(url, "--shutdown-grace", "50s") as working:
        run_id = cli.does("enqueue", "linger", '{"seconds": 50}').strip()
        working.event("job_claimed", job_id=run_id)
        working.signal(signal.SIGTERM)
        working.event("worker_stopping")
        working.signal(signal.SIGTERM)
        working.event("worker_stopped", given_back=1)
        assert working.ended() == 0
    run = cli.reads("runs", "show", run_id)
    assert ("ready", 0) == (run["state"], run["attempt"])


# --- logs


def test_json_logs_have_the_fields_people_search_for(url: str, cli: Cli):
    """job_claimed, job_completed and job_failed, each with its fields and the run's metadata."""
    with worker(url) as working:
        done = cli.does("enqueue", "greet", '{"name": "ann"}', "--metadata", '{"item_id": 7}').strip()
        claimed, completed = working.event("job_claimed"), working.event("job_completed")
        assert claimed.items() >= {"job_id": done, "item_id": 7, "attempt": 1, "job_type": "greet"}.items()
        assert claimed["worker_id"]
        assert completed.items() >= {"job_id": done, "item_id": 7}.items()
        assert completed["duration_ms"] >= 0
        cli.does("enqueue", "greet", '{"name": "nobody"}')
        first, last = working.event("job_failed"), working.event("job_failed")
        assert ("ValueError", True) == (first["error_code"], first["will_retry"])
        assert ("ValueError", False) == (last["error_code"], last["will_retry"])
        assert claimed["time"].endswith("+00:00")


def test_the_log_format_can_come_from_the_environment(url: str):
    """OSTINATO_LOG_FORMAT=json is the flag's twin; anything unknown is refused."""
    with program("worker", RADIO, "--database-url", url, env={"OSTINATO_LOG_FORMAT": "json"}) as working:
        working.event("worker_started")
    with program("worker", RADIO, "--database-url", url, env={"OSTINATO_LOG_FORMAT": "xml"}) as refused:
        assert refused.ended() == 1
        assert refused.output == "error: OSTINATO_LOG_FORMAT='xml' must be one of text, json\n"


def test_text_logs_are_for_people(url: str, cli: Cli):
    """A line with the time, the level and what happened."""
    with program("worker", RADIO, "--database-url", url) as working:
        working.until("worker_started")
        cli.does("enqueue", "greet", '{"name": "ann"}')
        line = working.until("job_completed")
        assert "Z info    job_completed job_id=" in line


def test_the_log_level_is_respected(url: str, cli: Cli):
    """At warning, what goes well is not mentioned."""
    with program("worker", RADIO, "--database-url", url, "--log-level", "warning") as working:
        cli.does("enqueue", "greet", '{"name": "ann"}', "--wait=20")
        cli("enqueue", "refuse", "--wait=20")
        working.until("job_failed")
        assert "job_claimed" not in working.output


def test_an_app_that_logs_its_own_way_is_left_alone(url: str, tmp_path: Path):
    """Who sets up logging in the app's module keeps it, unless a flag says otherwise."""
    own = "import logging\nlogging.basicConfig(format='MINE %(message)s', level='INFO')\n"
    (tmp_path / "own.py").write_text(f"{own}from {RADIO.partition(':')[0]} import app\n")
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with program("worker", "own:app", "--database-url", url, cwd=tmp_path, env=root) as working:
        working.until("MINE worker_started")
    with program("worker", "own:app", "--database-url", url, "--log-format", "json", cwd=tmp_path, env=root) as working:
        working.event("worker_started")


def test_a_queue_that_nobody_works_on_is_mentioned(url: str):
    """A function whose queue is not among the worker's is a common mistake."""
    with program("worker", "tests.cli.apps.unserved:app", "--database-url", url) as working:
        assert "queue 'reports' of function 'report'" in working.until("nobody works on")
    with program("worker", "tests.cli.apps.unserved:app", "--database-url", url, "--queues", "default") as working:
        working.until("worker_started")
        assert "nobody works on" not in working.output


# --- settings


def test_the_apps_arguments_hold_without_flags(url: str, cli: Cli):
    """Argument > environment."""
    with Started(url, env={"OSTINATO_LEASE": "11s", "OSTINATO_QUEUES": "other:1"}):
        assert settings_of(cli) == ({"default": 7, "mail": 3}, 20.0)


def test_flags_win_over_the_apps_arguments(url: str, cli: Cli):
    """Flag > argument; a bare number is seconds."""
    with worker(url, "--queues", "mail:9, slow", "--concurrency", "2", "--lease", "12"):
        assert settings_of(cli) == ({"mail": 9, "slow": 2}, 12.0)


def test_concurrency_alone_is_for_every_queue(url: str, cli: Cli):
    """The app's queues stay, with another number."""
    with worker(url, "--concurrency", "4"):
        assert settings_of(cli) == ({"default": 4, "mail": 4}, 20.0)


def test_a_flag_does_not_lift_a_queues_cap(url: str, cli: Cli):
    """What else the app says of a queue holds, whatever the flags say of its concurrency."""
    source = "from ostinato import App, Queue\napp = App(queues={'small': Queue(1, max_waiting=2)})\n"
    Path("capped.py").write_text(f"{source}@app.function(queue='small')\nasync def wait() -> None: ...\n")
    with program("worker", "capped:app", "--database-url", url, "--queues", "small:5", cwd=Path.cwd()) as working:
        working.until("worker_started")
    for _ in range(2):
        cli.does("enqueue", "wait", "--delay", "1h")
    assert "may hold 2 waiting runs" in cli.fails("enqueue", "wait", "--delay", "1h")


def test_the_project_comes_last(url: str, cli: Cli, tmp_path: Path):
    """Environment > [tool.ostinato]."""
    (tmp_path / "plain.py").write_text("from ostinato import App\napp = App()\n")
    settings = f'[tool.ostinato]\ndatabase-url = "{url}"\nlease = "13s"\nqueues = "night:1"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    with program("worker", "plain:app", cwd=tmp_path, env={"OSTINATO_QUEUES": "day:1"}) as working:
        working.until("worker_started")
        assert settings_of(cli) == ({"day": 1}, 13.0)


def test_without_notifications_it_polls(postgres_database: str):
    """--no-notify opens no listener, and work is found within the poll interval."""
    cli = Cli(postgres_database)
    cli.does("migrate", "up")
    with worker(postgres_database, "--no-notify", "--poll", "200ms") as working:
        assert '"hello ann"' in cli.does("enqueue", "greet", '{"name": "ann"}', "--wait=20")
        assert "listening_changed" not in working.output


# --- errors


def test_an_unmigrated_database_is_one_clear_line(postgres_database: str):
    """The line names the command that helps; no traceback, exit code 1."""
    with program("worker", RADIO, "--database-url", postgres_database, "--log-level", "error") as refused:
        assert refused.ended() == 1
        (line,) = refused.output.splitlines()
        assert line.startswith("error: ")
        assert "run `ostinato migrate up`" in line


def test_an_sqlite_file_migrates_by_itself(sqlite_database: str):
    """On SQLite a worker makes the tables."""
    with worker(sqlite_database):
        assert Cli(sqlite_database).does("migrate", "verify")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([], 2, "name the App to work for"),
        (["nothing_like_it:app"], 1, "no module is named 'nothing_like_it'"),
        (["tests.cli.apps.radio:greet"], 1, "did you mean tests.cli.apps.radio:app?"),
        ([RADIO, "--lease", "soon"], 2, "is not a duration"),
        ([RADIO, "--lease", "10ms"], 1, "is shorter than 1.0s"),
        ([RADIO, "--queues", "a:0"], 1, "must be a whole number of at least 1"),
        ([RADIO, "--queues", ""], 1, "must name at least one queue"),
    ],
)
def test_what_cannot_work_is_refused(args: list[str], code: int, said: str):
    """Each mistake is named, before anything is opened."""
    assert said in Cli().fails("worker", *args, code=code)


def test_the_app_may_be_named_before_the_command(url: str):
    """`--app` and $OSTINATO_APP stand for the argument."""
    with program("--app", RADIO, "worker", "--database-url", url) as working:
        working.until("worker_started")
    with program("worker", "--database-url", url, env={"OSTINATO_APP": RADIO}) as working:
        working.until("worker_started")


def test_the_password_is_not_logged():
    """What a worker says at start names its database without the password."""
    url = "postgresql://ann:geheim@127.0.0.1:1/radio"
    with program("worker", RADIO, "--database-url", url, "--log-format", "json") as refused:
        assert refused.ended() == 1
        assert "postgresql://ann:***@127.0.0.1:1/radio" in refused.output
        assert "geheim" not in refused.output


class Started:
    """A worker with settings in its environment, begun."""

    def __init__(self, url: str, *, env: dict[str, str]) -> None:
        self._program = program("worker", RADIO, "--database-url", url, "--log-format", "json", env=env)

    def __enter__(self) -> Program:
        started = self._program.__enter__()
        started.event("worker_started")
        return started

    def __exit__(self, *error: object) -> None:
        self._program.__exit__(None, None, None)
