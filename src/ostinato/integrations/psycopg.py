"""psycopg's connections, sync and async.

Both are used through a cursor of our own, so that the rows are plain tuples and the parameters are bound by the server,
whatever factories the user has set.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ..errors import TransactionMisused
from .driving import Blocks, Flow, Rows, Values, drive, drive_async

T = TypeVar("T")


class PsycopgCaller:
    """Used inline, on the calling thread: `drive` awaits nothing."""

    dialect = "postgresql"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        _refuse_autocommit(self._connection, "with conn.transaction():")
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:

            def execute(block: Any, values: Values) -> Rows:
                with ExitStack() as answered:
                    if _is_pipelined(self._connection):
                        answered.enter_context(self._connection.pipeline())
                    cursor.execute(*block.pyformat(values))
                return cursor.fetchall() if cursor.description else ()

            return drive(flow, blocks, execute)

    async def driver(self) -> object:
        return self._connection

    def underlying(self, error: BaseException) -> BaseException:
        return error


class AsyncPsycopgCaller:
    dialect = "postgresql"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        _refuse_autocommit(self._connection, "async with conn.transaction():")
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:

            async def execute(block: Any, values: Values) -> Rows:
                async with AsyncExitStack() as answered:
                    if _is_pipelined(self._connection):
                        await answered.enter_async_context(self._connection.pipeline())
                    await cursor.execute(*block.pyformat(values))
                return await cursor.fetchall() if cursor.description else ()

            return await drive_async(flow, blocks, execute)

    async def driver(self) -> object:
        return self._connection

    def underlying(self, error: BaseException) -> BaseException:
        return error


def _refuse_autocommit(connection: Any, remedy: str) -> None:
    """A connection begins a transaction by itself; one in autocommit only where the user does."""
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise TransactionMisused(f"conn= has no open transaction, as it is in autocommit; use it inside `{remedy}`")


def _is_pipelined(connection: Any) -> bool:
    """In a pipeline of the user's a statement is answered at the end of an inner one."""
    return bool(connection.pgconn.pipeline_status != PipelineStatus.OFF)
