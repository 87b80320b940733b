"""The caller's own connection, recognised by its type's name: nothing is imported that is not there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from ..errors import ConfigError, TransactionMisused
from ..store.ports import Caller

T = TypeVar("T")
Flow = Generator[Any, Any, T]
Blocks = Mapping[str, Any]


class AsyncpgCaller:
    dialect = "postgresql"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        if not self.connection.is_in_transaction():
            raise TransactionMisused("conn= has no open transaction; use it inside `async with conn.transaction():`")
        try:
            call = next(flow)
            while True:
                block = blocks[call.block]
                call = flow.send(await self.connection.fetch(block.text, *block.arguments(call.arguments)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class SqliteCaller:
    """Used inline, on the calling thread: `drive` awaits nothing."""

    dialect = "sqlite"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        try:
            call = next(flow)
            while True:
                rows = cursor.execute(blocks[call.block].text, call.arguments).fetchall()
                call = flow.send(rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


_CALLERS: dict[str, Callable[[Any], Caller]] = {
    "asyncpg.connection.Connection": AsyncpgCaller,
    "asyncpg.pool.PoolConnectionProxy": AsyncpgCaller,
    "sqlite3.Connection": SqliteCaller,
}


def caller_of(connection: object) -> Caller:
    """What can execute our statements in the caller's transaction."""
    for kind in type(connection).__mro__:
        if make := _CALLERS.get(f"{kind.__module__}.{kind.__qualname__}"):
            return make(connection)
    given = type(connection)
    raise ConfigError(
        f"conn= is a {given.__module__}.{given.__qualname__}; "
        "give an asyncpg.Connection (also one of a pool) or a sqlite3.Connection"
    )
