"""PostgreSQL, through asyncpg."""

from .migrating import PostgresMigrations
from .store import PostgresStore

__all__ = ["PostgresMigrations", "PostgresStore"]
