"""The program as a whole: its help, its errors, and what it never shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ostinato
from tests.cli.conftest import Cli
from tests.cli.processes import environment, program

LIGHT = """
import sys
from ostinato.cli import main
main(["--help"], standalone_mode=False)
print(sorted({"asyncio", "msgspec", "rich", "ostinato.app"} & set(sys.modules)), file=sys.stderr)
"""


def test_help_names_every_command():
    """`ostinato --help` lists all commands with a line each."""
    printed = Cli().does("--help")
    commands = ("demo", "worker", "enqueue", "runs", "queues", "workers", "top", "migrate")
    assert all(f"  {name} " in printed for name in commands)


@pytest.mark.parametrize(
    "command",
    [
        ["demo"],
        ["worker"],
        ["enqueue"],
        ["runs", "list"],
        ["runs", "show"],
        ["runs", "retry"],
        ["runs", "cancel"],
        ["runs", "purge"],
        ["queues", "list"],
        ["queues", "show"],
        ["queues", "pause"],
        ["queues", "resume"],
        ["queues", "purge"],
        ["top"],
        ["workers", "list"],
        ["migrate", "up"],
        ["migrate", "status"],
        ["migrate", "sql"],
        ["migrate", "verify"],
        ["migrate", "grant"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_every_command_explains_itself(command: list[str]):
    """Each command can be imported and has a help text."""
    printed = Cli().does(*command, "--help")
    assert f"Usage: ostinato {' '.join(command)}" in printed


def test_help_imports_nothing_that_takes_time():
    """The help needs click alone: not asyncio, not msgspec, not rich, not the engine."""
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_public_names_are_there_when_asked_for():
    """What `ostinato` exports is imported late, and all of it can be."""
    assert all(getattr(ostinato, name) is not None for name in ostinato.__all__)
    assert set(ostinato.__all__) <= set(dir(ostinato))
    with pytest.raises(AttributeError, match="no attribute 'Apq'"):
        _ = ostinato.Apq


def test_version():
    """`--version` prints the package's."""
    assert Cli().does("--version") == f"ostinato {ostinato.__version__}\n"


def test_a_mistyped_command_is_guessed():
    """A command that is not there gets a suggestion."""
    assert "no command is named 'run'; did you mean 'runs'?" in Cli().fails("run", code=2)


def test_an_error_is_one_line(cli: Cli):
    """What Ostinato raises is one line on stderr and exit code 1."""
    assert cli.fails("runs", "show", "nosuch").splitlines() == [
        "error: no run has the id 'nosuch'; it may have been removed by retention"
    ]


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    """`--debug`, before or after the command, or OSTINATO_DEBUG=1 show where an error came from."""
    for args in (("--debug", "runs", "show", "x"), ("runs", "show", "x", "--debug")):
        assert "Traceback" in cli(*args).stderr
    monkeypatch.setenv("OSTINATO_DEBUG", "1")
    assert "Traceback" in cli("runs", "show", "x").stderr


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:geheim@127.0.0.1:1/radio",
        "postgresql://ann:gehe/im@127.0.0.1:1/radio",
        "postgresql://ann:geh#eim@127.0.0.1/radio",
        "postgresql://ann:geh[eim@127.0.0.1/radio",
        "mysql://ann:geheim@127.0.0.1/radio",
        "postgresql:///radio?host=127.0.0.1&port=1&password=geheim&sslmode=wrong",
    ],
)
def test_passwords_are_never_shown(url: str):
    """Neither an error nor a traceback shows any part of a password."""
    result = Cli(url)("--debug", "runs", "list")
    assert result.exit_code == 1
    assert "geh" not in result.output


def test_the_database_can_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch):
    """OSTINATO_DATABASE_URL comes before DATABASE_URL, and a flag before both."""
    monkeypatch.setenv("DATABASE_URL", url)
    assert Cli().reads("runs", "list") == []
    monkeypatch.setenv("OSTINATO_DATABASE_URL", "sqlite:///missing.db")
    Cli().fails("runs", "list")
    assert Cli(url).reads("runs", "list") == []


def test_the_schema_can_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch):
    """OSTINATO_SCHEMA and --schema name the same thing."""
    Cli(url).does("--schema", "other", "migrate", "up")
    Cli(url).does("enqueue", "greet", '{"name": "x"}')
    monkeypatch.setenv("OSTINATO_SCHEMA", "other")
    assert Cli(url).reads("runs", "list") == []
    assert len(Cli(url).reads("runs", "list", "--schema", "ostinato")) == 1


def test_looking_makes_no_file(tmp_path):
    """A database that is not there is an error to whoever only looks, and is not made."""
    assert "there is no database 'ostinato.db' here" in Cli().fails("runs", "list")
    assert list(tmp_path.iterdir()) == []


def test_it_runs_as_a_module_in_a_process_of_its_own(url: str):
    """`python -m ostinato.cli` is the same program."""
    with program("runs", "list", "--json", "--database-url", url) as started:
        assert started.ended() == 0
        assert started.output == "[]\n"


def test_no_colours_without_a_terminal(cli: Cli):
    """What is piped on carries no escape sequences, even if colours are not switched off."""
    env = {name: value for name, value in environment().items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "ostinato.cli", *cli.options, "runs", "show", "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.stderr.startswith("error: no run")
