"""Statements to a server, each over a connection of its own, for code that cannot await."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ostinato.errors import ConfigError

from ..aside import aside


def ask(dsn: str, statement: str) -> Any:
    """Executes one statement and answers the first value that it gives."""
    return aside(_asked(dsn, statement))


def execute(dsn: str, script: str) -> None:
    """Executes statements in one transaction."""
    aside(_executed(dsn, script))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _asked(dsn: str, statement: str) -> Any:
    async with _connection(dsn) as connection:
        return await connection.fetchval(statement)


async def _executed(dsn: str, script: str) -> None:
    async with _connection(dsn) as connection, connection.transaction():
        await connection.execute(script)


@asynccontextmanager
async def _connection(dsn: str) -> AsyncIterator[Any]:
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise ConfigError("PostgreSQL needs asyncpg: pip install 'ostinato[postgres]'") from error
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()
