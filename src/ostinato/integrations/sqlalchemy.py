"""SQLAlchemy's sessions and connections, sync and async, on whichever driver they sit.

Statements go through the connection's `exec_driver_sql`, in the driver's own notation: SQLAlchemy begins the
transaction where none is open, and its logs and events see them. What a session has not flushed yet is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError, PendingRollbackError, UnboundExecutionError

from ..errors import ConfigError, TransactionMisused
from .driving import Blocks, Flow, Rows, Values, drive

T = TypeVar("T")


class SqlalchemyCaller:
    """A Session or Connection. Used inline, on the calling thread: `drive` awaits nothing."""

    is_async = False

    def __init__(self, held: Any) -> None:
        self._held = held
        self.dialect: str = _dialect(held).name

    async def drive(self, flow: Flow[T], blocks: Blocks) -> T:
        return await self._on_connection(partial(_drive, flow=flow, blocks=blocks))

    async def driver(self) -> object:
        return await self._on_connection(lambda connection: connection.connection.driver_connection)

    def underlying(self, error: BaseException) -> BaseException:
        """SQLAlchemy wraps what its drivers raise, and what it makes of asyncpg's errors is a wrapper too."""
        if not isinstance(error, DBAPIError) or error.orig is None:
            return error
        ours = type(error.orig).__module__.startswith("sqlalchemy.")
        return error.orig.__cause__ or error.orig if ours else error.orig

    async def _on_connection(self, work: Callable[[Connection], T]) -> T:
        return _call(self._held, work)


class AsyncSqlalchemyCaller(SqlalchemyCaller):
    """An AsyncSession or AsyncConnection."""

    is_async = True

    async def _on_connection(self, work: Callable[[Connection], T]) -> T:
        return await self._held.run_sync(_call, work)  # type: ignore[no-any-return]


def of_scoped_session(scoped: Any) -> SqlalchemyCaller:
    """The session of the current scope."""
    return SqlalchemyCaller(scoped())


def of_async_scoped_session(scoped: Any) -> AsyncSqlalchemyCaller:
    return AsyncSqlalchemyCaller(scoped())


def _dialect(held: Any) -> Any:
    with _usable():
        try:
            return held.dialect if hasattr(held, "dialect") else held.get_bind().dialect
        except UnboundExecutionError as error:
            raise ConfigError(
                "conn= is a session without an engine for everything; give the connection to use, like "
                "conn=session.connection(bind_arguments={'mapper': Order})"
            ) from error


# --- on a connection ------------------------------------------------------------------------------------------------


def _call(held: Any, work: Callable[[Connection], T]) -> T:
    with _usable():
        return work(held if isinstance(held, Connection) else held.connection())


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except PendingRollbackError as error:
        raise TransactionMisused("the transaction of conn= has failed; roll it back, and begin another") from error
    except InvalidRequestError as error:
        raise TransactionMisused(f"conn= takes no statements as it is: {error}") from error


def _drive(connection: Connection, *, flow: Flow[T], blocks: Blocks) -> T:
    driver = connection.dialect.driver
    if driver not in _NOTATIONS:
        raise ConfigError(
            f"conn= is on the driver {driver!r}, which is not known; known are {', '.join(sorted(_NOTATIONS))}"
        )
    notation = _NOTATIONS[driver]
    if connection.dialect.name == "sqlite":
        _begin_on_sqlite(connection)
    elif connection.connection.dbapi_connection.autocommit:  # type: ignore[union-attr]
        _refuse_autocommit()

    def execute(block: Any, values: Values) -> Rows:
        result = connection.exec_driver_sql(*notation(block, values))
        return result.fetchall() if result.returns_rows else ()

    return drive(flow, blocks, execute)


def _begin_on_sqlite(connection: Connection) -> None:
    """sqlite3 begins a transaction late, at the first statement that writes; ours begin with a look."""
    if not connection.in_transaction():
        connection.begin()  # as any statement would
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        return
    if driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
        _refuse_autocommit()
    connection.exec_driver_sql("begin immediate")


def _refuse_autocommit() -> None:
    raise TransactionMisused(
        "conn= has no open transaction, as its isolation level is AUTOCOMMIT; use one with another isolation level"
    )


# --- the drivers' notations -----------------------------------------------------------------------------------------


def _numbered(block: Any, values: Values) -> tuple[str, Any]:
    return block.text, tuple(block.arguments(values))


def _formatted(block: Any, values: Values) -> tuple[str, Any]:
    return block.pyformat(values)  # type: ignore[no-any-return]


def _named(block: Any, values: Values) -> tuple[str, Any]:
    return block.text, values


_NOTATIONS: dict[str, Callable[[Any, Values], tuple[str, Any]]] = {
    "asyncpg": _numbered,
    "psycopg": _formatted,
    "psycopg_async": _formatted,
    "psycopg2": _formatted,
    "pysqlite": _named,
    "aiosqlite": _named,
}
