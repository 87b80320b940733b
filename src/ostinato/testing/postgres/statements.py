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
    async with connection(dsn) as here:
        return await here.fetchval(statement)


async def _executed(dsn: str, script: str) -> None:
    async with connection(dsn) as here, here.transaction():
        await here.execute(script)


@asynccontextmanager
async def connection(dsn: str) -> AsyncIterator[Any]:
    """A connection for the block."""
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise ConfigError("PostgreSQL needs asyncpg: pip install 'ostinato[postgres]'") from error
    opened = await asyncpg.connect(dsn)
    try:
        yield opened
    finally:
        await opened.close()
