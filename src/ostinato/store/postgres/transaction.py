"""A transaction of ours on PostgreSQL, for users' statements and our changes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import TransactionMisused
from ...model.change import Change, Committed
from ..flows import Flow
from .errors import translated
from .pool import Connection

if TYPE_CHECKING:
    from .store import PostgresStore

T = TypeVar("T")


class PostgresTransaction:
    def __init__(self, store: PostgresStore, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._transaction = connection.transaction()
        self._open = False

    async def start(self) -> None:
        with translated():
            await self._transaction.start()
        self._open = True

    async def execute(self, sql: str, *args: Any) -> int:
        with translated(theirs=True):
            status: str = await self._usable().execute(sql, *args)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        with translated(theirs=True):
            return [dict(row) for row in await self._usable().fetch(sql, *args)]

    async def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None:
        with translated(theirs=True):
            row = await self._usable().fetchrow(sql, *args)
        return None if row is None else dict(row)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        with translated(theirs=True):
            return await self._usable().fetchval(sql, *args)

    async def apply(self, changes: Sequence[Change]) -> Committed:
        with translated():
            return await self._store.execute(self._usable(), self._store.committing(changes))

    async def ask(self, flow: Flow[T]) -> T:
        with translated():
            return await self._store.execute(self._usable(), flow)

    async def commit(self) -> None:
        self._usable()
        self._open = False
        with translated():
            await self._transaction.commit()

    async def rollback(self) -> None:
        """Undoes everything, unless it was committed or the connection is gone, which undoes it as well."""
        if self._open and not self._connection.is_closed():
            self._open = False
            with translated():
                await self._transaction.rollback()

    def _usable(self) -> Connection:
        if not self._open:
            raise TransactionMisused("the transaction has ended; use it inside its `async with` block only")
        return self._connection
