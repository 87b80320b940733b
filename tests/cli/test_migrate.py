"""`ostinato migrate`."""

from __future__ import annotations

import asyncio
import sqlite3

import asyncpg
import pytest
from msgspec import json

from tests.cli.conftest import Cli


@pytest.fixture
def cli(empty_url: str) -> Cli:
    return Cli(empty_url)


def execute(url: str, script: str) -> None:
    """Executes a script with other tools than ours."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.executescript(script)
        connection.close()
    else:
        asyncio.run(_execute(url, script))


async def _execute(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(script)
    await connection.close()


def test_up_applies_what_is_missing_once(cli: Cli):
    """The first call applies the steps and names them; the next has nothing to do."""
    assert cli.does("migrate", "up").startswith("applied 0001 runs\n")
    assert cli.does("migrate", "up") == "nothing to do: the schema is up to date\n"


def test_options_may_follow_the_command(empty_url: str):
    """`--database-url` and `--schema` are understood after the command too."""
    assert "applied 0001" in Cli().does("migrate", "up", "--database-url", empty_url, "--schema", "radio")
    assert Cli().does("migrate", "verify", "--database-url", empty_url, "--schema", "radio")


def test_status_shows_each_step(empty_url: str, cli: Cli):
    """A table for people; missing steps come with the command that applies them."""
    execute(empty_url, "select 1")
    assert "to apply: ostinato migrate up" in cli.does("migrate", "status")
    cli.does("migrate", "up")
    shown = cli.does("migrate", "status")
    assert "0001" in shown
    assert "as shipped" in shown
    assert "to apply" not in shown


def test_status_as_json(cli: Cli):
    """The same for programs."""
    cli.does("migrate", "up")
    step = cli.reads("migrate", "status")[0]
    assert step.keys() == {"version", "name", "applied_at", "checksum_matches"}
    assert (1, "runs", True) == (step["version"], step["name"], step["checksum_matches"])


def test_verify_passes_what_is_as_shipped(cli: Cli):
    """Exit code 0 for a schema that this version made."""
    cli.does("migrate", "up")
    assert cli.does("migrate", "verify") == "the schema is as this version ships it\n"
    assert cli.reads("migrate", "verify") == {"differences": []}


def test_verify_fails_on_what_is_missing(empty_url: str, cli: Cli):
    """Exit code 1 for a database without the tables."""
    execute(empty_url, "select 1")
    result = cli("migrate", "verify")
    assert result.exit_code == 1
    assert "0001 runs is not applied; run `ostinato migrate up`" in result.stdout


def test_verify_fails_on_what_differs(empty_url: str, cli: Cli):
    """Exit code 1 for steps with another content, and the difference in words."""
    cli.does("migrate", "up")
    table = "ostinato_migrations" if empty_url.startswith("sqlite") else "ostinato.migrations"
    execute(empty_url, f"update {table} set checksum = 'another' where version = 1")
    result = cli("migrate", "verify", "--json")
    assert result.exit_code == 1
    assert "another content" in json.decode(result.stdout)["differences"][0]
    assert "differs" in cli.does("migrate", "status")


def test_sql_is_a_script_for_other_tools(empty_url: str, cli: Cli):
    """What `migrate sql` prints, applied by hand, is what `migrate up` makes."""
    execute(empty_url, cli.does("migrate", "sql"))
    assert cli.does("migrate", "verify")
    assert cli.does("migrate", "up").startswith("nothing to do")
