"""What sqlite3 raises, in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...errors import AppendOnly, NotMigrated, OstinatoError, StoreError, StoreUnavailable

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_OUT_OF_REACH = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in _BUSY


def _itself(error: BaseException) -> BaseException:
    return error


@contextmanager
def translated(
    path: str, *, tables: str, underlying: Callable[[BaseException], BaseException] = _itself
) -> Iterator[None]:
    """Raises our errors for the database's, and lets the user's own pass. `tables`: how the names of ours begin;
    `underlying`: what sqlite3 raised, of the error that a library has made of it."""
    try:
        yield
    except Exception as error:
        raised = underlying(error)
        ours = _translate(raised, path, tables) if isinstance(raised, sqlite3.Error) else None
        if ours is None:
            raise
        raise ours from error


def _translate(error: sqlite3.Error, path: str, tables: str) -> OstinatoError | None:
    code = _primary_code(error)
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailable(f"{path} was changed after this transaction had read; use `begin immediate` to write")
    if code in _BUSY:
        return StoreUnavailable(f"{path} has been locked by another writer for too long: {error}")
    if code in _OUT_OF_REACH:
        return StoreUnavailable(f"{path} cannot be used or has no room: {error}")
    if code in _DAMAGED:
        return StoreError(f"{path} is not an SQLite database, or is damaged: {error}")
    if str(error).startswith("events are never changed or deleted:"):  # what the ledger's triggers say
        return AppendOnly(f"{error}; record another event that says what is different now")
    if str(error).startswith("no such") and tables in str(error):
        return NotMigrated(f"{path}: {error}; run `ostinato migrate up`")
    return None


def _primary_code(error: sqlite3.Error) -> int | None:
    """Extended codes keep the primary one in their lowest byte; errors of the module itself have none."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
