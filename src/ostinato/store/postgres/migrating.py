"""Applying the schema's steps to PostgreSQL, while others install and work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import asyncpg

from ...errors import ConfigError, NotMigrated, StoreError
from .. import flows, migration, sql
from ..migration import Applied, Step
from ..ports import MigrationView
from . import grants
from .errors import translated
from .naming import adapt, quoted
from .pool import Connection

_LOCK_TIMEOUT_MS = 100
_TRIES = 100

_BUSY = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateObjectError,
)


class PostgresMigrations:
    """The steps of one schema.

    Each step is a transaction of its own with a short lock timeout: behind one open reader, a migration that waits
    would make every worker wait behind it. So it gives up quickly and tries again. Installers take turns by a
    transaction-level advisory lock.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Connection]], *, schema: str) -> None:
        self._connect = connect
        self._schema = schema
        self.steps = migration.steps("ostinato.store.postgres", adapt=lambda text: adapt(text, schema))

    automatic = False

    async def up(self) -> list[str]:
        applied = []
        await self._patiently(self._prepare)
        while name := await self._patiently(self._apply_next):
            applied.append(name)
        return applied

    async def status(self) -> list[MigrationView]:
        return migration.status(self.steps, await self._applied())

    async def verify(self) -> list[str]:
        return migration.differences(self.steps, await self._applied())

    def sql(self) -> str:
        steps = [
            f"-- {step.version:04} {step.name}\n{step.text.strip()}\n\n{self._record(step)};" for step in self.steps
        ]
        parts = [self._preparation(), *steps]
        return "begin;\n\n" + "\n\n".join(parts) + "\n\ncommit;\n"

    # --- roles

    def grants(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> str:
        given = grants.statements(self._schema, producers=producers, workers=workers, readers=readers)
        return "begin;\n\n" + "\n".join(given) + "\n\ncommit;\n"

    async def grant(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> None:
        if missing := migration.missing(self.steps, await self._applied()):
            names = ", ".join(step.name for step in missing)
            raise NotMigrated(f"the database's schema {self._schema!r} lacks {names}; run `ostinato migrate up` first")
        given = grants.statements(self._schema, producers=producers, workers=workers, readers=readers)
        kinds = (("producer", producers), ("worker", workers), ("reader", readers))
        meant = [(role, kind) for kind, roles in kinds for role in roles]

        async def give(connection: Connection) -> None:
            await _refuse_strangers(connection, [role for role, _ in meant])
            await connection.execute("\n".join(given))
            await self._refuse_half_measures(connection, meant)

        await self._patiently(give)

    async def _refuse_half_measures(self, connection: Connection, meant: Sequence[tuple[str, str]]) -> None:
        """PostgreSQL only warns when somebody grants what is not theirs to give."""
        block = sql.numbered(
            sql.load("ostinato.store.postgres", adapt=lambda text: adapt(text, self._schema))["missing_grants"]
        )
        told = flows.encoded([{"role": role, "kind": kind} for role, kind in meant])
        values = {"expected": flows.encoded(grants.expected()), "meant": told}
        rows = await connection.fetch(block.text, *block.arguments(values))
        if lacking := [f"{row[0]} lacks {row[2]}" for row in rows if (row[0], row[1]) in meant]:
            raise StoreError(
                f"not everything could be granted ({lacking[0]}, {len(lacking)} in all); "
                f"run this as the owner of the schema {self._schema!r}"
            )

    # --- inside

    async def _patiently(self, work: Callable[[Connection], object]) -> str | None:
        """One transaction of a migration, tried until its locks can be had."""
        for again in range(_TRIES):
            try:
                async with self._connect() as connection:
                    with translated():
                        return await self._locked(connection, work)
            except _BUSY:
                await asyncio.sleep(random.uniform(0.01, 0.05 * (1 + again / 10)))
        raise StoreError(
            f"the schema {self._schema!r} could not be changed: its tables are locked by other transactions; "
            "look for long ones in pg_stat_activity and run `ostinato migrate up` again"
        )

    async def _locked(self, connection: Connection, work: Callable[[Connection], object]) -> str | None:
        async with connection.transaction():
            await connection.execute(f"set local lock_timeout = {_LOCK_TIMEOUT_MS}")
            await connection.execute(
                "select pg_advisory_xact_lock(hashtext('ostinato migrate'), hashtext($1))", self._schema
            )
            return await work(connection)  # type: ignore[misc, no-any-return]

    async def _prepare(self, connection: Connection) -> None:
        if not await self._prepared(connection):
            await connection.execute(self._preparation())

    async def _prepared(self, connection: Connection) -> bool:
        return bool(
            await connection.fetchval("select to_regclass($1) is not null", f"{quoted(self._schema)}.migrations")
        )

    def _preparation(self) -> str:
        schema = quoted(self._schema)
        return (
            f"create schema if not exists {schema};\n"
            f"create table if not exists {schema}.migrations (\n"
            "    version integer primary key,\n    name text not null,\n    checksum text not null,\n"
            "    applied_at timestamptz not null default clock_timestamp()\n);"
        )

    async def _apply_next(self, connection: Connection) -> str | None:
        todo = migration.missing(self.steps, await self._history(connection))
        if not todo:
            return None
        await connection.execute(todo[0].text)
        await connection.execute(self._record(todo[0]))
        return f"{todo[0].version:04} {todo[0].name}"

    def _record(self, step: Step) -> str:
        return (
            f"insert into {quoted(self._schema)}.migrations (version, name, checksum) "
            f"values ({step.version}, '{step.name}', '{step.checksum}')"
        )

    async def _applied(self) -> dict[int, Applied]:
        async with self._connect() as connection:
            with translated():
                return await self._history(connection) if await self._prepared(connection) else {}

    async def _history(self, connection: Connection) -> dict[int, Applied]:
        rows = await connection.fetch(
            f"select version, name, checksum, applied_at::text from {quoted(self._schema)}.migrations"
        )
        return {row[0]: Applied(row[1], row[2], row[3]) for row in rows}


async def _refuse_strangers(connection: Connection, roles: Sequence[str]) -> None:
    known = {row[0] for row in await connection.fetch("select rolname::text from pg_roles")}
    if unknown := [role for role in roles if role not in known]:
        raise ConfigError(f"no role is named {unknown[0]!r}; make it first: create role {quoted(unknown[0])} login")
