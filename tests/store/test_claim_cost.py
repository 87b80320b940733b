"""What one claim costs: the same with much behind it, or with an old transaction that keeps vacuum away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from ostinato.model.run import START, Mark
from ostinato.store import flows
from ostinato.store.ports import Store
from ostinato.store.postgres.claiming import claiming as postgres_claiming
from ostinato.store.postgres.store import _ENGINE_SESSION
from ostinato.store.postgres.store import load_blocks as postgres_blocks
from ostinato.store.sqlite.claiming import claiming as sqlite_claiming
from ostinato.store.sqlite.connecting import wall_clock
from ostinato.store.sqlite.driving import drive
from ostinato.store.sqlite.store import load_blocks as sqlite_blocks
from tests.store.databases import Database, only_postgres
from tests.store.samples import QUEUE, a_worker, accepted, claim, completed, runs

BEHIND = 20_000
STEPS = 6
STEP = 500


async def test_a_claim_costs_the_same_with_much_behind_it(database: Database, store: Store):
    """Neither held nor ended runs are in its way."""
    worker = await a_worker(store)
    await accepted(store, *runs(10))
    with_nothing = await cost(database, worker, START)

    await accepted(store, *runs(BEHIND, delay=3600.0))
    await accepted(store, *runs(10, queue="other"))
    await end(database, BEHIND)

    assert await cost(database, worker, START) <= 1.5 * with_nothing


@only_postgres
async def test_a_claim_costs_the_same_behind_a_pinned_horizon(database: Database, store: Store):
    """What was claimed cannot be vacuumed away. Without the mark, each claim walks all of it, which shows that it is
    there."""
    worker, mark = await a_worker(store), START
    async with pinned_horizon(database):
        await accepted(store, *runs(STEPS * STEP + 10))
        first = await cost(database, worker, START)
        for _ in range(STEPS):
            claimed = await claim(store, STEP, worker=worker, mark=mark)
            mark = Mark(claimed[-1].due, claimed[-1].id)
            await accepted(store, *map(completed, claimed))

            assert await cost(database, worker, mark) <= 1.5 * first

        assert await cost(database, worker, START) > 3 * first


# --- what a claim costs ---------------------------------------------------------------------------------------------


async def cost(database: Database, worker: str, mark: Mark) -> int:
    """Buffers that a claim of one run touches, or instructions that it takes; the claim is undone."""
    if database.dialect == "sqlite":
        return await instructions(database, sqlite_claiming(QUEUE, 1, worker=worker, mark=mark, suspect=False))
    return await buffers(database, next(postgres_claiming(QUEUE, 1, worker=worker, mark=mark, suspect=False)))


async def buffers(database: Database, call: flows.Call) -> int:
    """By way of PREPARE: a parameter given to EXPLAIN directly would be planned as a constant."""
    block = postgres_blocks("ostinato")[call.block]
    values = ", ".join(literal(value) for value in block.arguments(call.arguments))
    connection = await asyncpg.connect(database.url, server_settings=_ENGINE_SESSION)
    try:
        await connection.execute(f"begin; prepare claim as {block.text}; execute claim ({values}); rollback")
        await connection.execute("begin")
        plan = await connection.fetchval(f"explain (analyze, buffers, format json) execute claim ({values})")
        await connection.execute("rollback")
    finally:
        await connection.close()
    root = json.loads(plan)[0]["Plan"]
    return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


async def instructions(database: Database, flow: flows.Flow[Any]) -> int:
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    async with database.connection() as connection:
        connection.create_function("ostinato_now", 0, wall_clock)
        connection.execute("begin")
        connection.set_progress_handler(counted, 1)
        assert len(drive(connection, flow, sqlite_blocks("ostinato"), set())) == 1
        connection.set_progress_handler(None, 0)
        connection.execute("rollback")
    return count


def literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int):
        return str(value).lower()
    return f"'{value}'"


# --- what is in its way ---------------------------------------------------------------------------------------------


async def end(database: Database, count: int) -> None:
    """Adds as many runs that have ended."""
    moment = "0" if database.dialect == "sqlite" else "now()"
    series = f"with recursive n(n) as (values (1) union all select n + 1 from n where n < {count}) "
    await database.query(
        "insert into ostinato_runs (id, function, queue, state, run_at, due, invoked_by, created_at, ended_at, input) "
        f"{series}"
        f"select 'ended' || n, 'mix', '{QUEUE}', 'completed', {moment}, n, 'api', {moment}, {moment}, '{{}}' from n"
    )


@asynccontextmanager
async def pinned_horizon(database: Database) -> AsyncIterator[None]:
    """A transaction that has seen everything as it is now, and goes on seeing it."""
    async with database.connection() as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select pg_current_xact_id()::text")
        yield
