"""What asyncpg raises, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from ...errors import NotMigrated, OstinatoError, QueueFull, StoreUnavailable, UnknownFunction

_UNKNOWN_FUNCTION = "OS001"
_QUEUE_FULL = "OS002"

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

RETRIABLE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
"""The server undid the transaction; the same one may succeed."""


@contextmanager
def translated() -> Iterator[None]:
    """Raises our errors for the database's, and lets the user's own pass."""
    try:
        yield
    except OstinatoError:
        raise
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        if (ours := _translate(error)) is None:
            raise
        raise ours from error


def _translate(error: BaseException) -> OstinatoError | None:
    code = getattr(error, "sqlstate", None)
    if code == _UNKNOWN_FUNCTION:
        return UnknownFunction(f"{error}; start a worker that declares it once, so that the database knows it")
    if code == _QUEUE_FULL:
        return QueueFull(f"{error}; try again later, or raise max_waiting of the queue")
    if isinstance(error, _UNMIGRATED) and "ostinato" in str(error).lower():
        return NotMigrated(f"{error}; run `ostinato migrate up`")
    if isinstance(error, _LOST) or (isinstance(error, asyncpg.InterfaceError) and "connection" in str(error)):
        return StoreUnavailable(f"PostgreSQL cannot be reached or has no room: {str(error) or type(error).__name__}")
    return None
