"""What asyncpg raises, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from ...errors import (
    AppendOnly,
    InvalidInput,
    InvalidOption,
    NotMigrated,
    OstinatoError,
    QueueFull,
    StoreError,
    StoreUnavailable,
    TransactionMisused,
    UnknownFunction,
)
from ..ports import Caller

_UNKNOWN_FUNCTION = "OS001"
_QUEUE_FULL = "OS002"
_INVALID_OPTION = "OS003"
_INVALID_INPUT = "OS004"
_APPEND_ONLY = "OS005"
_NOT_PERMITTED = "42501"
_FAILED_TRANSACTION = "25P02"

_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InvalidAuthorizationSpecificationError,  # no such user, or a wrong password
    asyncpg.InvalidCatalogNameError,  # no such database
    asyncpg.ClientConfigurationError,
    asyncpg.DiskFullError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
_UNMIGRATED = (
    asyncpg.UndefinedTableError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedColumnError,
)

_LOST_STATES = {"57P01", "57P02", "57P03", "53300", "53100", "28000", "28P01", "3D000"}
_UNMIGRATED_STATES = {"42P01", "3F000", "42883", "42703"}
"""The same as SQLSTATEs, for the drivers of callers. All states that begin with 08 are of lost connections."""

_THEIRS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)

RETRIABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The server undid the transaction; the same one may succeed."""


class translated:  # noqa: N801 - reads as a verb: `with translated():`
    """Raises our errors for the database's, and lets the user's own pass.

    `theirs`: the statement is the user's, so that a missing table is no business of ours.
    """

    __slots__ = ("_theirs",)

    def __init__(self, *, theirs: bool = False) -> None:
        self._theirs = theirs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _THEIRS) and (ours := _translate(error, self._theirs)) is not None:
            raise ours from error


def _translate(error: BaseException, theirs: bool) -> OstinatoError | None:
    if isinstance(error, OstinatoError):  # ResultTimeout is a TimeoutError too
        return None
    code, message = getattr(error, "sqlstate", None), error.args[0] if error.args else ""
    if (refusal := _refusal(code, message)) is not None:
        return refusal
    if code == _NOT_PERMITTED and not theirs:
        return _forbidden(message)
    if isinstance(error, _UNMIGRATED) and not theirs:
        return NotMigrated(f"{error}; run `ostinato migrate up`")
    if isinstance(error, _LOST) or (isinstance(error, asyncpg.InterfaceError) and "connection" in str(error)):
        return _unavailable(error)
    return None


def _refusal(code: str | None, message: str) -> OstinatoError | None:
    """What our own SQL functions refuse."""
    if code == _UNKNOWN_FUNCTION:
        return UnknownFunction(f"{message}; start a worker that declares it once, so that the database knows it")
    if code == _QUEUE_FULL:
        return QueueFull(f"{message}; try again later, or raise max_waiting of the queue")
    if code == _INVALID_OPTION:
        return InvalidOption(message)
    if code == _INVALID_INPUT:
        return InvalidInput(message)
    if code == _APPEND_ONLY:
        return AppendOnly(f"{message}; record another event that says what is different now")
    return None


def _forbidden(message: str) -> StoreError:
    return StoreError(f"{message}; the schema's owner can grant what is missing: ostinato migrate grant --help")


def _unavailable(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"PostgreSQL cannot be reached or has no room: {str(error) or type(error).__name__}")


# --- callers' drivers -----------------------------------------------------------------------------------------------


@contextmanager
def translated_from(caller: Caller) -> Iterator[None]:
    """The same for what a caller's driver raises, whichever it is. What is none of ours passes as the library raised
    it, so that the user's own handling of deadlocks and the like finds it."""
    try:
        yield
    except OstinatoError:
        raise
    except Exception as error:
        if (ours := _translate_of_caller(caller.underlying(error))) is None:
            raise
        raise ours from error


def _translate_of_caller(error: BaseException) -> OstinatoError | None:
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if code == _FAILED_TRANSACTION:
        return TransactionMisused("the transaction of conn= has failed before; roll it back, and begin another")
    if isinstance(error, _THEIRS):
        return _translate(error, theirs=False)
    if code is None:
        return _unavailable(error) if _is_of_a_connection(error) else None
    message = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
    if code == _NOT_PERMITTED:
        return _forbidden(message)
    if code in _UNMIGRATED_STATES:
        return NotMigrated(f"{message}; run `ostinato migrate up` on the database of conn=")
    if code in _LOST_STATES or code.startswith("08"):
        return _unavailable(error)
    return _refusal(code, message)


def _is_of_a_connection(error: BaseException) -> bool:
    """Drivers have these two names from PEP 249; without a SQLSTATE the server has not said anything."""
    return any(kind.__name__ in ("OperationalError", "InterfaceError") for kind in type(error).__mro__)
