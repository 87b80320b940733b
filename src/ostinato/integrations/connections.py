"""The caller's own connection, recognised by its type's name: nothing is imported that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..errors import ConfigError, TransactionMisused
from ..store.flows import Flow
from ..store.ports import Caller
from ..store.sql import Block

T = TypeVar("T")


class AsyncpgCaller:
    dialect = "postgresql"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def drive(self, flow: Flow[T], blocks: Mapping[str, Block]) -> T:
        if not self._connection.is_in_transaction():
            raise TransactionMisused("conn= has no open transaction; use it inside `async with conn.transaction():`")
        try:
            call = next(flow)
            while True:
                block = blocks[call.block]
                call = flow.send(await self._connection.fetch(block.text, *block.arguments(call.arguments)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def caller_of(connection: object) -> Caller:
    """What can execute our statements in the caller's transaction."""
    kind = type(connection)
    if kind.__module__.startswith("asyncpg"):
        return AsyncpgCaller(connection)
    raise ConfigError(f"conn= is a {kind.__module__}.{kind.__qualname__}; give an asyncpg or sqlite3 connection")
