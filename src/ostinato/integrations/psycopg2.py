"""psycopg2's connections, through a cursor of our own: its rows are plain tuples, whatever factory the user has set."""

from __future__ import annotations

from typing import Any, TypeVar

from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from psycopg2.extensions import cursor as plain_cursor

from ..errors import ConfigError, TransactionMisused
from .driving import Blocks, Flow, drive, rows_of

T = TypeVar("T")


class Psycopg2Caller:
    """Used inline, on the calling thread: `drive` awaits nothing."""

    dialect = "postgresql"
    is_async = False

    def __init__(self, connection: Any) -> None:
        if connection.async_:
            raise ConfigError("conn= is an asynchronous psycopg2 connection, which has no transactions; give another")
        self._connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        """A connection begins a transaction by itself; one in autocommit only where the user does."""
        if self._connection.autocommit and self._connection.get_transaction_status() == TRANSACTION_STATUS_IDLE:
            raise TransactionMisused(
                "conn= has no open transaction, as it is in autocommit; set `conn.autocommit = False`"
            )
        with self._connection.cursor(cursor_factory=plain_cursor) as cursor:
            return drive(flow, blocks, lambda block, values: rows_of(cursor, block, values))

    async def driver(self) -> object:
        return self._connection

    def underlying(self, error: BaseException) -> BaseException:
        return error
