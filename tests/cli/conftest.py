"""Fixtures of the command line's tests: a database, the program on it, and modules for it to find."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import json

from ostinato.cli import main
from ostinato.testing.databases import Databases, Prepare
from ostinato.testing.postgres import PostgresServers
from tests.cli.apps import radio
from tests.cli.processes import is_setting

RADIO = "tests.cli.apps.radio:app"

Introduced = Callable[[Prepare | None], str]


class Cli:
    """The program, in this process. `on` is the database that it is told to use."""

    def __init__(self, on: str | None = None) -> None:
        self.options = ["--database-url", on] if on else []

    def __call__(self, *args: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, [*self.options, *args], input=stdin, prog_name="ostinato")

    def does(self, *args: str, stdin: str | None = None) -> str:
        """What it prints; it must succeed."""
        result = self(*args, stdin=stdin)
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.stdout

    def reads(self, *args: str) -> Any:
        """What it prints as JSON."""
        return json.decode(self.does(*args, "--json"))

    def fails(self, *args: str, stdin: str | None = None, code: int = 1) -> str:
        """What it says on stderr when it fails; it must, and without a traceback."""
        result = self(*args, stdin=stdin)
        assert code == result.exit_code, result.output
        assert "Traceback" not in result.stderr
        return result.stderr


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings in the environment, and an empty folder to be in."""
    for name in filter(is_setting, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """SQLite, and the newest PostgreSQL."""
    return str(request.param)


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, kind: str) -> str:
    """The URL of a database without tables."""
    url: str = request.getfixturevalue(f"{kind}_database")
    return url


@pytest.fixture
def introduced(kind: str, ostinato_databases: Databases, tmp_path: Path) -> Iterator[Introduced]:
    """The URL of a database that has tables, and to which an app was introduced: a copy of one that was prepared."""
    chosen = "sqlite" if kind == "sqlite" else "postgresql"
    with ExitStack() as stack:
        yield lambda prepare: stack.enter_context(
            ostinato_databases.temporary(chosen, prepare=prepare, folder=tmp_path)
        )


@pytest.fixture
def sqlite_database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/radio.db"


@pytest.fixture
def postgres_database(postgres_server: PostgresServers) -> Iterator[str]:
    with postgres_server(postgres_server.versions[-1]).temporary_database() as url:
        yield url


@pytest.fixture
def url(introduced: Introduced) -> str:
    """The URL of a database that knows the radio's functions."""
    url = introduced(_introduce)
    radio.app.configure(url=url)
    return url


async def _introduce(url: str) -> None:
    radio.app.configure(url=url)
    async with radio.app.worker():
        pass


@pytest.fixture
def cli(url: str) -> Cli:
    return Cli(url)


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Writes a module into the current folder, and forgets it after the test."""
    before, path = set(sys.modules), list(sys.path)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
