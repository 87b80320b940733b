"""The caller's own connection, recognised by its type's name: nothing is imported that is not there."""

from __future__ import annotations

from importlib import import_module

from ..errors import ConfigError
from ..store.ports import Caller

_CALLERS = {
    "asyncpg.connection.Connection": "asyncpg.AsyncpgCaller",
    "asyncpg.pool.PoolConnectionProxy": "asyncpg.AsyncpgCaller",
    "psycopg.Connection": "psycopg.PsycopgCaller",
    "psycopg.AsyncConnection": "psycopg.AsyncPsycopgCaller",
    "psycopg2.extensions.connection": "psycopg2.Psycopg2Caller",
    "sqlalchemy.orm.session.Session": "sqlalchemy.SqlalchemyCaller",
    "sqlalchemy.orm.scoping.scoped_session": "sqlalchemy.of_scoped_session",
    "sqlalchemy.engine.base.Connection": "sqlalchemy.SqlalchemyCaller",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "sqlalchemy.AsyncSqlalchemyCaller",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "sqlalchemy.of_async_scoped_session",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "sqlalchemy.AsyncSqlalchemyCaller",
    "django.utils.connection.ConnectionProxy": "django.DjangoCaller",
    "django.db.backends.base.base.BaseDatabaseWrapper": "django.DjangoCaller",
    "sqlite3.Connection": "sqlite3.SqliteCaller",
}
"""For each type, the module here and what in it makes the caller."""


def caller_of(connection: object) -> Caller:
    """What can execute our statements in the caller's transaction."""
    for kind in type(connection).__mro__:
        if found := _CALLERS.get(f"{kind.__module__}.{kind.__qualname__}"):
            module, _, name = found.partition(".")
            caller: Caller = getattr(import_module(f"{__package__}.{module}"), name)(connection)
            return caller
    given = type(connection)
    raise ConfigError(
        f"conn= is a {given.__module__}.{given.__qualname__}; give an asyncpg.Connection (also one of a pool), a "
        "psycopg.Connection or AsyncConnection, a psycopg2 connection, a Session, AsyncSession, Connection or "
        "AsyncConnection of SQLAlchemy, Django's django.db.connection, or a sqlite3.Connection"
    )
