"""A transaction of ours on SQLite, for users' statements and our changes together."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from msgspec import json

from ...errors import TransactionMisused
from ...model.change import Change, Committed
from ...shield import shielded
from ..flows import Flow
from .connecting import roll_back
from .desk import Errand, Work
from .loan import Loan

if TYPE_CHECKING:
    from .store import SqliteStore

T = TypeVar("T")

LONGEST = 5.0

_ENDING = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(begin|commit|end|rollback(?!\s+(?:transaction\s+)?to\b))\b",
    re.IGNORECASE | re.DOTALL,
)

_current: ContextVar[SqliteTransaction | None] = ContextVar("ostinato_transaction", default=None)


class SqliteTransaction:
    """Holds the file's only write lock, so it may not last long, and nothing else can be written from within it."""

    def __init__(self, store: SqliteStore, loan: Loan) -> None:
        self._store, self._loan = store, loan
        self._outer = _innermost()

    async def start(self) -> None:
        try:
            with self._store.translated():
                await self._loan.future
        except asyncio.CancelledError:
            self._loan.give_up()
            raise
        _current.set(self)

    async def execute(self, sql: str, *args: Any) -> int:
        return await self._ask(lambda connection: _count(_executed(connection, sql, args)))

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        return await self._ask(lambda connection: _dicts(_executed(connection, sql, args)))

    async def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None:
        return next(iter(await self.fetch(sql, *args)), None)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        row = await self.fetchrow(sql, *args)
        return None if row is None else next(iter(row.values()))

    async def apply(self, changes: Sequence[Change]) -> Committed:
        flow = self._store.committing(changes)
        return await self._ask(lambda connection: self._store.drive(connection, flow))

    async def ask(self, flow: Flow[T]) -> T:
        return await self._ask(lambda connection: self._store.drive(connection, flow))

    async def commit(self) -> None:
        await shielded(self._ask(_commit))

    async def rollback(self) -> None:
        """Undoes everything, unless it was committed or rolled back before."""
        if self._loan.open:
            with suppress(TransactionMisused):
                await shielded(self._ask(roll_back))

    async def _ask(self, work: Work[T]) -> T:
        errand = Errand(work, asyncio.get_running_loop())
        self._loan.put(errand)
        with self._store.translated():
            return await errand.future  # type: ignore[no-any-return]

    def surrounds(self, store: SqliteStore) -> bool:
        """Whether this one, or one around it, holds the store's write lock."""
        mine = self._store.path == store.path and self._loan.open  # another store on the same file would wait too
        return mine or (self._outer is not None and self._outer.surrounds(store))

    def innermost_open(self) -> SqliteTransaction | None:
        """This one, or the next one around it that has not ended."""
        return self if self._loan.open else self._outer and self._outer.innermost_open()


def _innermost() -> SqliteTransaction | None:
    """The transaction that the running task is inside of. One that has ended may have been forgotten there."""
    current = _current.get()
    return current and current.innermost_open()


def refuse_inside_transaction(store: SqliteStore) -> None:
    """Writing past one's own open transaction would wait for that one to end."""
    current = _current.get()
    if current is not None and current.surrounds(store):
        raise TransactionMisused(
            "inside a transaction on SQLite nothing else can write, as it holds the file's only write lock: "
            "use tx.enqueue and the transaction's other methods, or do it before or after the block"
        )


# --- users' statements ----------------------------------------------------------------------------------------------


def _commit(connection: sqlite3.Connection) -> None:
    connection.execute("commit")


def _executed(connection: sqlite3.Connection, sql: str, args: Sequence[Any]) -> sqlite3.Cursor:
    if found := _ENDING.match(sql):
        raise TransactionMisused(f"leave {found[1].upper()} out: the transaction begins and ends with its block")
    return connection.execute(sql, {str(place): _stored(value) for place, value in enumerate(args, start=1)})


def _stored(value: Any) -> Any:
    """A value as SQLite keeps it: JSON for dicts and lists, ISO 8601 for dates and times."""
    match value:
        case None | int() | float() | bytes() | bytearray() | memoryview():
            return value
        case Enum():
            return _stored(value.value)
        case str():
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case UUID() | Decimal():
            return str(value)
        case _:
            return json.encode(value).decode()


def _dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _count(cursor: sqlite3.Cursor) -> int:
    rows = cursor.fetchall()
    return len(rows) if cursor.description else max(cursor.rowcount, 0)
