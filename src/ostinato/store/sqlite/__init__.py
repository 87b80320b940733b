"""SQLite, through the standard library."""

from .migrating import SqliteMigrations
from .store import SqliteStore

__all__ = ["SqliteMigrations", "SqliteStore"]
