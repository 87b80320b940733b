"""sqlite3's connections, through a cursor of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection, Cursor
from typing import Any, TypeVar

from ..errors import TransactionMisused
from .driving import Blocks, Flow, Rows, Values, drive

T = TypeVar("T")


class SqliteCaller:
    """Used inline, on the calling thread: `drive` awaits nothing."""

    dialect = "sqlite"
    is_async = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        if not self._connection.in_transaction:
            raise TransactionMisused(
                "conn= has no open transaction; begin one, so that your rows and ours commit together"
            )
        cursor = Cursor(self._connection)
        cursor.row_factory = None

        def execute(block: Any, values: Values) -> Rows:
            return cursor.execute(block.text, values).fetchall()

        with _plain_text(self._connection):
            return drive(flow, blocks, execute)

    async def driver(self) -> object:
        return self._connection

    def underlying(self, error: BaseException) -> BaseException:
        return error


@contextmanager
def _plain_text(connection: Connection) -> Iterator[None]:
    """How text is read is set for the whole connection."""
    factory, connection.text_factory = connection.text_factory, str
    try:
        yield
    finally:
        connection.text_factory = factory
