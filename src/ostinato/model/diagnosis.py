"""What a doctor sees of a database and of the work in it."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class Horizon(Struct, frozen=True):
    """Who keeps vacuum from removing what is dead, and for how many transactions already."""

    transactions: int
    holder: str


class TableFacts(Struct, frozen=True):
    """The table of runs, by the server's statistics."""

    live: int
    dead: int
    bytes: int
    vacuumed_at: datetime | None = None
    autovacuum: bool = True


class OpenTransaction(Struct, frozen=True):
    """A transaction of somebody's that has been open for long."""

    pid: int
    seconds: float
    role: str | None = None
    application: str | None = None
    database: str | None = None
    state: str | None = None


class ServerFacts(Struct, frozen=True, kw_only=True):
    """A PostgreSQL server, as this process sees it."""

    version: str
    version_number: int
    role: str
    standby: bool
    settings: dict[str, str]
    """Numbers are in the settings' own units: timeouts in milliseconds."""
    connections: int
    hidden_sessions: int = 0
    """Sessions of other roles, of which this one may not see what they do."""
    horizon: Horizon | None = None
    prepared: int = 0
    """Prepared transactions that nobody has ended for minutes."""
    runs: TableFacts | None = None
    transactions: list[OpenTransaction] = []
    pooled: bool = False
    """Whether a pooler is between."""


class FileFacts(Struct, frozen=True, kw_only=True):
    """An SQLite file, and the library that this process reads it with."""

    version: str
    journal_mode: str
    bytes: int
    free_bytes: int
    path: str = ""
    log_bytes: int = 0
    """The size of the write-ahead log."""
    file_system: str | None = None
    """Its kind, where the system tells."""


class MissingGrant(Struct, frozen=True):
    """A right that a role needs for what it seems to be meant for, and has not."""

    role: str
    kind: str
    """producer, worker or reader; nothing for ours when it has no rights at all."""
    what: str


class QueueHealth(Struct, frozen=True):
    """A queue in which runs wait."""

    queue: str
    ready: int
    held: int
    paused: bool
    workers: int
    oldest: float | None = None
    """Seconds since the oldest ready run might have started."""


class StrandedRuns(Struct, frozen=True):
    """Running runs of a worker that has no lease any more."""

    worker: str
    runs: int
    seconds: float
