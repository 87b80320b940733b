"""asyncpg's connections, also those that a pool has lent."""

from __future__ import annotations

from typing import Any, TypeVar

from ..errors import TransactionMisused
from .driving import Blocks, Flow, Rows, Values, drive_async

T = TypeVar("T")


class AsyncpgCaller:
    dialect = "postgresql"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        if not self._connection.is_in_transaction():
            raise TransactionMisused("conn= has no open transaction; use it inside `async with conn.transaction():`")
        return await drive_async(flow, blocks, self._execute)

    async def _execute(self, block: Any, values: Values) -> Rows:
        return await self._connection.fetch(block.text, *block.arguments(values))  # type: ignore[no-any-return]

    async def driver(self) -> object:
        """A pool lends a new proxy each time, around a connection that stays."""
        return getattr(self._connection, "_con", self._connection)

    def underlying(self, error: BaseException) -> BaseException:
        return error
