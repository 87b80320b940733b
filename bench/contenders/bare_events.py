"""The ledger that a good engineer writes by hand: one table, no index but its sequence, and not a single feature."""

import json
from collections.abc import Sequence

from bench.contenders.bare_postgres import BarePostgres
from bench.contenders.bare_sqlite import BareSqlite

POSTGRES_SCHEMA = """
create table events (
    sequence_no bigint generated always as identity primary key,
    type        text not null,
    entity_type text,
    entity_id   text,
    payload     jsonb not null,
    recorded_at timestamptz not null default now()
);
"""
SQLITE_SCHEMA = """
create table events (
    sequence_no integer primary key autoincrement,
    type        text not null,
    entity_type text,
    entity_id   text,
    payload     text not null,
    recorded_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ'))
);
"""
POSTGRES_INSERT = (
    "insert into events (type, entity_type, entity_id, payload) values ($1, $2, $3, $4) returning sequence_no"
)
POSTGRES_INSERT_MANY = """
insert into events (type, entity_type, entity_id, payload)
select * from unnest($1::text[], $2::text[], $3::text[], $4::jsonb[]) returning sequence_no
"""
SQLITE_INSERT = "insert into events (type, entity_type, entity_id, payload) values (?, ?, ?, ?)"

Row = tuple[str, str, str, str]


def event(n: int) -> Row:
    return "price.changed", "product", str(n % 1000), json.dumps({"n": n})


class BarePostgresEvents(BarePostgres):
    """On asyncpg: a prepared insert, and arrays for bulks."""

    async def migrate(self) -> None:
        connection = await self._connect()
        await connection.execute(POSTGRES_SCHEMA)
        await self._stack.aclose()

    async def __aenter__(self) -> "BarePostgresEvents":
        self._connection = await self._connect()
        self._insert = await self._connection.prepare(POSTGRES_INSERT)
        return self

    async def record(self, n: int) -> None:
        await self._insert.fetchval(*event(n))

    async def record_many(self, numbers: Sequence[int]) -> None:
        columns = zip(*map(event, numbers), strict=True)
        await self._connection.fetch(POSTGRES_INSERT_MANY, *map(list, columns))

    async def recorded(self) -> int:
        return int(await self._connection.fetchval("select count(*) from events"))


class BareSqliteEvents(BareSqlite):
    """On sqlite3, inline."""

    async def migrate(self) -> None:
        connection = self._connect()
        connection.executescript(SQLITE_SCHEMA)
        connection.close()

    async def record(self, n: int) -> None:
        self._connection.execute(SQLITE_INSERT, event(n))

    async def record_many(self, numbers: Sequence[int]) -> None:
        with self._transaction():
            self._connection.executemany(SQLITE_INSERT, map(event, numbers))

    async def recorded(self) -> int:
        return self._count("select count(*) from events")
