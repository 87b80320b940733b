"""A claim takes as many runs as it was asked for and no more, whatever the planner thinks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from ostinato.model.run import START, Claimed
from ostinato.store.postgres import PostgresStore, store
from tests.system.databases import Database, states

RUNS = 1000
LIMITS = (1, 2, 10)
CLAIMERS = 8


def without(*methods: str) -> dict[str, str]:
    return {f"enable_{method}": "off" for method in methods}


SETTINGS: dict[str, dict[str, str]] = {
    "as shipped": {},
    "nested loops only": without("hashjoin", "mergejoin", "hashagg", "sort", "material"),
    "no nested loops": without("nestloop", "indexscan"),
    "no indexes": without("indexscan", "indexonlyscan", "bitmapscan"),
    "dear pages": {"random_page_cost": "1000", "cpu_index_tuple_cost": "1000", "plan_cache_mode": "force_custom_plan"},
    "little memory": {"work_mem": "64kB", "jit": "on", "jit_above_cost": "0", "cursor_tuple_fraction": "0.0001"},
    "in parallel": {"max_parallel_workers_per_gather": "2", "parallel_setup_cost": "0", "parallel_tuple_cost": "0"},
}

EMPTY_TABLE = """
    alter table ostinato.runs set (autovacuum_enabled = off);
    analyze ostinato.runs"""

FILL = f"""
    insert into ostinato.runs (id, function, queue, state, run_at, due, invoked_by, created_at, input)
    select lpad(n::text, 26, '0'), 'work', 'default', 'ready', now(), n, 'api', now(), '{{}}'
    from generate_series(1, {RUNS}) n"""

NAIVE = """
    update ostinato.runs set state = 'running'
    where id in (select id from ostinato.runs where queue = 'default' and not suspect and state = 'ready'
                 order by due, id limit 2 for update skip locked)
    returning id"""


@pytest.fixture
def database(postgres_database: Database, request: pytest.FixtureRequest) -> Database:
    """Its planner is set in one of many ways, and its statistics are those of an empty table."""
    for setting, value in SETTINGS[request.param].items():
        postgres_database.query(f"alter database {database_name(postgres_database)} set {setting} = '{value}'")
    postgres_database.query(EMPTY_TABLE)
    return postgres_database


def database_name(database: Database) -> str:
    return database.url.rpartition("/")[2]


@asynccontextmanager
async def claimer(database: Database, worker: str) -> AsyncIterator[PostgresStore]:
    """A store with a worker, whose plans were made while there was nothing to claim."""
    store = PostgresStore(database.url)
    try:
        await store.register(worker, name=worker, queues={"default": 1}, lease=60.0)
        assert await claim_often(store, worker) == []  # all connections are open, and have their plans
        yield store
    finally:
        await store.close()


async def claim_often(store: PostgresStore, worker: str) -> list[str]:
    """Claims with each limit, from many tasks at a time; the runs that were claimed."""
    claimed: list[str] = []
    for limit in LIMITS:
        claims = [store.claim("default", limit, worker=worker, mark=START) for _ in range(CLAIMERS)]
        for taken in await asyncio.gather(*claims):
            assert len(taken) <= limit
            claimed += ids(taken)
    return claimed


def ids(runs: list[Claimed]) -> list[str]:
    return [run.id for run in runs]


@pytest.mark.parametrize("database", SETTINGS, indirect=True)
async def test_a_claim_never_exceeds_its_limit(database: Database, monkeypatch: pytest.MonkeyPatch):
    """With stale statistics and with fresh ones, with our own settings of the session and without them."""
    claimed: list[str] = []
    async with claimer(database, "ours") as ours:
        monkeypatch.setattr(store, "_ENGINE_SESSION", {"application_name": "plain"})
        async with claimer(database, "plain") as plain:
            database.query(FILL)
            for statement in ("select 'stale'", "analyze ostinato.runs"):
                database.query(statement)
                claimed += [*await claim_often(ours, "ours"), *await claim_often(plain, "plain")]

    assert len(claimed) == len(set(claimed)) == 4 * CLAIMERS * sum(LIMITS)
    assert states(database)["running"] == len(claimed)


@pytest.mark.parametrize("database", ["nested loops only"], indirect=True)
def test_the_naive_claim_does_exceed_it(database: Database):
    """The proof that the test above can fail: `id in (select … limit 2)` takes far more than two."""
    database.query(FILL)

    with psycopg.connect(database.url) as connection:
        assert len(connection.execute(NAIVE.encode()).fetchall()) > 2
