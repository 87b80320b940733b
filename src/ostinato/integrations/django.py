"""Django's database connections: `django.db.connection`, and those of `django.db.connections`."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db import Error  # type: ignore[import-untyped]

from ..errors import ConfigError, TransactionMisused
from .driving import Blocks, Flow, drive, rows_of

T = TypeVar("T")


class DjangoCaller:
    """Used inline, on the calling thread, whose connection it is: `drive` awaits nothing.

    Statements go through Django's own cursor, which takes `%(name)s` on every database, and shows them to whoever
    looks at queries.
    """

    is_async = False

    def __init__(self, connection: Any) -> None:
        if not hasattr(connection, "in_atomic_block"):  # caches have the same kind of proxy
            raise ConfigError("conn= is a connection of Django's, but not to a database; give django.db.connection")
        self.dialect: str = connection.vendor
        self._connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        if not self._connection.in_atomic_block:
            raise TransactionMisused("conn= has no open transaction; use it inside `with transaction.atomic():`")
        if self._connection.needs_rollback:
            raise TransactionMisused(
                "the transaction of conn= has failed; leave its `transaction.atomic()` block, and begin another"
            )
        with self._connection.cursor() as cursor:
            return drive(flow, blocks, lambda block, values: rows_of(cursor, block, values))

    async def driver(self) -> object:
        return self._connection.connection

    def underlying(self, error: BaseException) -> BaseException:
        return error.__cause__ or error if isinstance(error, Error) else error
