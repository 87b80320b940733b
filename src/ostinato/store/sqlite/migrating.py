"""Applying the schema's steps to a file, whoever else does so at the same moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from ...errors import ConfigError
from .. import migration
from ..migration import Applied, Step
from ..ports import MigrationView
from .connecting import PATIENCE, begin, roll_back
from .desk import Reader
from .naming import adapt

T = TypeVar("T")


class SqliteMigrations:
    """The steps of one schema. Each is a transaction with the file's write lock: installers take turns by that."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        schema: str,
        translated: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connect, self._schema, self._translated = connect, schema, translated
        self.steps = migration.steps("ostinato.store.sqlite", adapt=lambda text: adapt(text, schema))

    automatic = True

    async def up(self) -> list[str]:
        return await self._apart(self._apply_all)

    async def status(self) -> list[MigrationView]:
        return migration.status(self.steps, await self._apart(self.applied))

    async def verify(self) -> list[str]:
        return migration.differences(self.steps, await self._apart(self.applied))

    def sql(self) -> str:
        parts = [f"{self._preparation()};"]
        parts += [
            f"-- {step.version:04} {step.name}\n{step.text.strip()}\n\n{self._record(step)};" for step in self.steps
        ]
        return "begin immediate;\n\n" + "\n\n".join(parts) + "\n\ncommit;\n"

    def grants(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> str:
        raise ConfigError(
            "SQLite has no roles: whoever may write to the file may do everything; "
            "use the permissions of the file and of its folder, or PostgreSQL"
        )

    async def grant(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> None:
        self.grants(producers=producers, workers=workers, readers=readers)

    def applied(self, connection: sqlite3.Connection) -> dict[int, Applied]:
        """What the file remembers; nothing, when it has no tables of ours."""
        table = f"{self._schema}_migrations"
        if not connection.execute("select 1 from sqlite_master where type = 'table' and name = ?", (table,)).fetchone():
            return {}
        rows = connection.execute(f"select version, name, checksum, applied_at from {table}")
        return {row[0]: Applied(row[1], row[2], row[3]) for row in rows}

    # --- inside

    async def _apart(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Does work in a thread, with a connection of its own, which no fork carries into a child."""
        desk = Reader(self._connect, name="ostinato migrating")
        try:
            with self._translated():
                return await desk.ask(work)
        finally:
            await desk.close()

    def _apply_all(self, connection: sqlite3.Connection) -> list[str]:
        applied = []
        while name := self._apply_next(connection):
            applied.append(name)
        return applied

    def _apply_next(self, connection: sqlite3.Connection) -> str | None:
        begin(connection, PATIENCE)
        try:
            connection.execute(self._preparation())
            todo = migration.missing(self.steps, self.applied(connection))
            for statement in _statements(todo[0].text) if todo else ():
                connection.execute(statement)
            if todo:
                connection.execute(self._record(todo[0]))
            connection.execute("commit")
        finally:
            roll_back(connection)
        return f"{todo[0].version:04} {todo[0].name}" if todo else None

    def _preparation(self) -> str:
        return (
            f"create table if not exists {self._schema}_migrations (\n"
            "    version integer primary key,\n    name text not null,\n    checksum text not null,\n"
            "    applied_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ'))\n)"
        )

    def _record(self, step: Step) -> str:
        return (
            f"insert into {self._schema}_migrations (version, name, checksum) "
            f"values ({step.version}, '{step.name}', '{step.checksum}')"
        )


def _statements(script: str) -> Iterator[str]:
    """The statements of a script. (`executescript` would commit first.)"""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
