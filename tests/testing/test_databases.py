"""Databases of a test's own, from templates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostinato import App, ConfigError
from ostinato.store.ports import MigrationView
from ostinato.testing import Databases, PostgresServers
from tests.engine.databases import NOTES, database_at, make_notes, notes

KINDS = ["sqlite", "postgresql"]


@pytest.fixture
def databases(tmp_path: Path, ostinato_servers: PostgresServers) -> Iterator[Databases]:
    databases = Databases(tmp_path, servers=ostinato_servers)
    yield databases
    databases.close()


def migrations(url: str) -> list[MigrationView]:
    return asyncio.run(App(url).migrations().status())


@pytest.mark.parametrize("kind", KINDS)
class TestOfEachKind:
    def test_it_is_migrated_and_of_the_tests_own(self, databases: Databases, kind: str):
        """What one leaves behind, the next does not see."""
        for _ in range(2):
            with databases.temporary(kind, prepare=make_notes) as url:
                assert all(step.applied_at for step in migrations(url))
                assert [] == notes(database_at(url))
                database_at(url).query("insert into notes values ('mine')")

    def test_it_is_gone_afterwards(self, databases: Databases, kind: str, tmp_path: Path):
        """A file at once; a database may be given to another test, and goes with its template."""
        with databases.temporary(kind) as url:
            database = database_at(url)
            database.query("select 1")
        databases.close()

        if kind == "sqlite":
            assert not Path(url.removeprefix("sqlite:///")).exists()
        else:
            with pytest.raises(Exception, match="does not exist"):
                database.query("select 1")

    def test_tables_are_made_once(self, databases: Databases, kind: str):
        """In the template; also by a coroutine. Who asks for other tables gets another template."""
        made: list[str] = []

        async def prepare(url: str) -> None:
            made.append(url)
            await asyncio.to_thread(database_at(url).query, NOTES)

        for _ in range(2):
            with databases.temporary(kind, prepare=prepare) as url:
                assert [] == notes(database_at(url))
                assert url not in made
        assert 1 == len(made)
        with databases.temporary(kind) as url:
            database_at(url).query(NOTES)

    def test_tables_that_cannot_be_made_are_tried_again(self, databases: Databases, kind: str):
        """Half a template is none."""
        failing = True

        def prepare(url: str) -> None:
            database_at(url).query("create table half (a integer)")
            if failing:
                raise ZeroDivisionError
            database_at(url).query(NOTES)

        with pytest.raises(ZeroDivisionError), databases.temporary(kind, prepare=prepare):
            pass
        failing = False
        with databases.temporary(kind, prepare=prepare) as url:
            assert [] == notes(database_at(url))


def test_a_file_stays_in_the_folder_that_was_given(databases: Databases, tmp_path: Path):
    """So that one can look at what a failed test left: pytest keeps the folder for a while."""
    folder = tmp_path / "of the test"
    folder.mkdir()
    with databases.temporary("sqlite", folder=folder) as url:
        pass

    assert [url] == [f"sqlite:///{path}" for path in folder.glob("*.db")]


def test_a_version_can_be_named(databases: Databases, ostinato_servers: PostgresServers):
    oldest = min(ostinato_servers.versions)
    with databases.temporary(f"postgresql{oldest}") as url:
        ((number,),) = database_at(url).query("show server_version_num")

    assert oldest == int(number) // 10_000


def test_a_server_can_be_given(databases: Databases, ostinato_servers: PostgresServers):
    """Databases are made there, beside the one that its URL names."""
    server = ostinato_servers(max(ostinato_servers.versions))
    with databases.temporary(server.dsn()) as url:
        assert url.rpartition("/")[0] == server.dsn().rpartition("/")[0]
        assert url != server.dsn()


@pytest.mark.parametrize("kind", ["mysql", "sqlite:///my.db", "postgresql-16", ""])
def test_other_kinds_are_refused(databases: Databases, kind: str):
    """With what can be asked for."""
    with pytest.raises(ConfigError, match="is no database for tests; write sqlite, postgresql"):
        databases.temporary(kind).__enter__()


def test_a_version_that_is_not_there_is_refused(databases: Databases):
    """With what to do about it."""
    with pytest.raises(ConfigError, match=r"no binaries of PostgreSQL 99 .*OSTINATO_POSTGRES_BINARIES"):
        databases.temporary("postgresql99").__enter__()
