"""What steps cost: each the same, however many share a commit and however many there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from ostinato.model.change import StepSaved, WaitMet
from ostinato.model.run import Claimed
from ostinato.store.flows import Call, Flow, encoded
from ostinato.store.ports import Store
from ostinato.store.postgres import claiming as postgres_claiming
from ostinato.store.postgres.store import _ENGINE_SESSION
from ostinato.store.postgres.store import load_blocks as postgres_blocks
from ostinato.store.sqlite import claiming as sqlite_claiming
from ostinato.store.sqlite.connecting import wall_clock
from ostinato.store.sqlite.driving import drive
from ostinato.store.sqlite.store import load_blocks as sqlite_blocks
from tests.store.databases import Database
from tests.store.samples import accepted, claimed_runs, runs

FEW, MANY = 20, 400

SAVING: dict[str, Callable[[Sequence[StepSaved]], Flow[Collection[str]]]] = {
    "postgresql": postgres_claiming.saving,
    "sqlite": sqlite_claiming.saving,
}


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_step_costs_the_same_in_a_large_commit(database: Database, store: Store, analyzed: bool):
    """Nothing is walked once for each of the others."""
    claimed = await claimed_runs(store, MANY)
    await accepted(store, *runs(2000))
    if analyzed:
        await database.query("analyze")
    saving = SAVING[database.dialect]
    few, many = [await cost(database, saving(steps_of(some))) for some in (claimed[:FEW], claimed)]

    assert many / MANY <= 1.5 * few / FEW


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_wait_costs_the_same_among_many(database: Database, store: Store, analyzed: bool):
    """When an event comes that many runs wait for."""
    claimed = await claimed_runs(store, MANY)
    waiting = [structs.replace(step, kind="event", status="pending", awaits="a.b") for step in steps_of(claimed)]
    await accepted(store, *waiting[:FEW])
    few = await cost(database, meeting(claimed[:FEW]))
    await accepted(store, *waiting[FEW:], *steps_of(claimed, step_id="2"))
    if analyzed:
        await database.query("analyze")
    many = await cost(database, meeting(claimed))

    assert many / MANY <= 1.5 * few / FEW


def steps_of(claimed: Sequence[Claimed], *, step_id: str = "1") -> list[StepSaved]:
    return [
        StepSaved(run.id, run.lease_no, step_id, "fetch", 0, "step", "completed", 0.1, None, "null") for run in claimed
    ]


def meeting(claimed: Sequence[Claimed]) -> Flow[Collection[str]]:
    """One event, given to steps of all these runs."""
    met = [WaitMet(run.id, "1", "event", "{}") for run in claimed]
    return [row[0] for row in (yield Call("meet_waits", {"waits": encoded(met)}))]


# --- what it costs --------------------------------------------------------------------------------------------------


async def cost(database: Database, flow: Flow[Collection[str]]) -> int:
    """Rows that are looked at, or instructions that it takes; nothing stays."""
    return await (instructions if database.dialect == "sqlite" else rows_looked_at)(database, flow)


async def rows_looked_at(database: Database, flow: Flow[Collection[str]]) -> int:
    """By the one statement that it takes."""
    call = next(flow)
    block = postgres_blocks("ostinato")[call.block]
    connection = await asyncpg.connect(database.url, server_settings=_ENGINE_SESSION)
    try:
        await connection.execute("begin")
        arguments = block.arguments(call.arguments)
        plan = await connection.fetchval(f"explain (analyze, format json) {block.text}", *arguments)
        await connection.execute("rollback")
    finally:
        await connection.close()
    return sum(int(_rows(node) * node["Actual Loops"]) for node in nodes(json.loads(plan)[0]["Plan"]))


def _rows(node: dict[str, Any]) -> float:
    removed = (node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Join Filter", "Index Recheck"))
    return float(node["Actual Rows"] + sum(removed))


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def instructions(database: Database, flow: Flow[Collection[str]]) -> int:
    count = 0

    def counted() -> None:
        nonlocal count
        count += 1

    async with database.connection() as connection:
        connection.create_function("ostinato_now", 0, wall_clock)
        connection.execute("begin")
        connection.set_progress_handler(counted, 1)
        assert len(drive(connection, flow, sqlite_blocks("ostinato"), set())) in (FEW, MANY)
        connection.set_progress_handler(None, 0)
        connection.execute("rollback")
    return count
