"""The clock of a test's database."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

from ostinato.clock import Duration, seconds, utc
from ostinato.config import dialect_of
from ostinato.store.sqlite.connecting import wall_clock
from ostinato.store.sqlite.naming import path_of

from .postgres.statements import ask, execute, quoted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_WRITE_PATIENCE = 10.0


class Clock:
    """One clock for Python, SQL functions and triggers, which can be put forward.

    clock.advance("1h")
    assert run.run_at <= clock.now()

    Before it is first put it shows the time, and it goes on from wherever it is put. On PostgreSQL `ostinato.clock()`
    is replaced in the database, for everybody who uses that. On SQLite it is `ostinato_now()` on the connections of
    this process: other processes have clocks of their own.
    """

    def __init__(self, url: str, *, schema: str = "ostinato") -> None:
        self._url, self._schemas = url, [schema]
        self._on_postgres = dialect_of(url) == "postgresql"
        self._ahead = 0
        self._stands_at: int | None = None

    def now(self) -> datetime:
        """What it shows, in UTC."""
        if self._on_postgres and self._stands_at is None:
            return self._asked()
        return _EPOCH + self.micros() * _MICROSECOND

    def micros(self) -> int:
        """Microseconds since 1970, by this machine: the `clock` of a SQLite store."""
        return wall_clock() + self._ahead if self._stands_at is None else self._stands_at

    def advance(self, by: Duration, *, renewing: bool = True) -> None:
        """Puts it forward. Workers that are alive have renewed their leases meanwhile, unless that is not wanted."""
        self._shift(math.ceil(seconds(by, what="advance") * 1_000_000), renewing=renewing)

    def shift(self, by: timedelta, *, renewing: bool = True) -> None:
        """Puts it forward or back, with the leases of live workers, unless that is not wanted."""
        self._shift(by // _MICROSECOND, renewing=renewing)

    def move_to(self, moment: datetime, *, renewing: bool = True) -> None:
        """Puts it to a moment, which may be in the past."""
        self.shift(utc(moment, what="move_to") - self.now(), renewing=renewing)

    def freeze(self) -> None:
        """Stops it: from now on only `advance` and `move_to` change what it shows."""
        self._stands_at = (self.now() - _EPOCH) // _MICROSECOND
        self._shift(0, renewing=False)

    def govern(self, schema: str) -> None:
        """Makes it the clock of another schema in the same database, too."""
        if schema not in self._schemas:
            self._schemas.append(schema)
            if self._ahead or self._stands_at is not None:
                self._shift(0, renewing=False)

    # --- inside

    def _shift(self, micros: int, *, renewing: bool) -> None:
        """Leases are shifted before the clock is, or together with it: in between they must not have run out."""
        if self._on_postgres:
            ahead, stands_at = self._shifted(micros)
            execute(self._url, self._script(micros if renewing else 0, ahead, stands_at))
        elif renewing and micros:
            self._renew_in_file(micros)
        self._ahead, self._stands_at = self._shifted(micros)

    def _shifted(self, micros: int) -> tuple[int, int | None]:
        return self._ahead + micros, None if self._stands_at is None else self._stands_at + micros

    # --- PostgreSQL

    def _asked(self) -> datetime:
        moment: datetime = ask(self._url, f"select {quoted(self._schemas[0])}.clock()")
        return moment.astimezone(UTC)

    def _script(self, renewed_by: int, ahead: int, stands_at: int | None) -> str:
        """Statements that are sent together, and so are one transaction."""
        shown = f"clock_timestamp() + {ahead} * interval '1 microsecond'"
        if stands_at is not None:
            shown = f"timestamptz '{(_EPOCH + stands_at * _MICROSECOND).isoformat()}'"
        return "".join(_replacement(quoted(schema), shown, renewed_by) for schema in self._schemas)

    # --- SQLite

    def _renew_in_file(self, micros: int) -> None:
        path = path_of(self._url)
        with closing(sqlite3.connect(path, timeout=_WRITE_PATIENCE, isolation_level=None)) as connection:
            for schema in self._schemas:
                if connection.execute("select 1 from sqlite_master where name = ?", (f"{schema}_workers",)).fetchone():
                    connection.execute(
                        f"update {schema}_workers set renewed_at = renewed_at + ?, expires_at = expires_at + ? "
                        "where dead_at is null and expires_at >= ?",
                        (micros, micros, self.micros()),
                    )


def _replacement(schema: str, shown: str, renewed_by: int) -> str:
    renewal = (
        f"update {schema}.workers set renewed_at = renewed_at + {renewed_by} * interval '1 microsecond', "
        f"expires_at = expires_at + {renewed_by} * interval '1 microsecond' "
        f"where dead_at is null and expires_at >= {schema}.clock();\n"
    )
    return (renewal if renewed_by else "") + (
        f"create or replace function {schema}.clock() returns timestamptz language sql volatile parallel safe "
        f"return {shown};\n"
    )
