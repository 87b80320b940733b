"""What asyncpg raises, in our words."""

from __future__ import annotations

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

_THEIRS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

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
    if code == _UNKNOWN_FUNCTION:
        return UnknownFunction(f"{message}; start a worker that declares it once, so that the database knows it")
    if code == _QUEUE_FULL:
        return QueueFull(f"{message}; try again later, or raise max_waiting of the queue")
    if isinstance(error, _UNMIGRATED) and not theirs:
        return NotMigrated(f"{error}; run `ostinato migrate up`")
    if isinstance(error, _LOST) or (isinstance(error, asyncpg.InterfaceError) and "connection" in str(error)):
        return StoreUnavailable(f"PostgreSQL cannot be reached or has no room: {str(error) or type(error).__name__}")
    return None
