"""What reading the ledger costs: the same whatever lies behind, and the same for each page of a backlog."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import asyncpg
import pytest

from ostinato.model.event import Page, Position
from ostinato.store.flows import Call, Flow, Row, reading
from ostinato.store.ports import Store
from ostinato.store.postgres import reading as postgres_reading
from ostinato.store.postgres.store import _ENGINE_SESSION, _USER_SESSION
from ostinato.store.postgres.store import load_blocks as postgres_blocks
from ostinato.store.sqlite import reading as sqlite_reading
from ostinato.store.sqlite.store import load_blocks as sqlite_blocks
from tests.store.databases import Database, SqliteDatabase, only_postgres, only_sqlite

T = TypeVar("T")

PAGE = 500
BULK = 1_000
BULKS = 12
DEAREST = {"postgresql": 60, "sqlite": 30 * PAGE}
"""A page, in buffers and in instructions."""


class Meter(Protocol):
    """Executes flows and says what they cost: buffers on PostgreSQL, instructions on SQLite."""

    def reading(self, position: Position) -> Flow[Page]: ...

    async def drive(self, flow: Flow[T]) -> tuple[T, int]: ...


async def test_every_page_of_a_backlog_costs_the_same(database: Database, store: Store):
    """So a backlog of any size is drained in linear time. Its statistics are those of an empty table, on a connection
    where the planner believes them."""
    await fill(database, BULKS)
    costs = await costs_of_pages(database, (await store.place()).beginning)

    assert BULKS * BULK // PAGE <= len(costs) <= BULKS * BULK // PAGE + 1
    assert max(costs[1:-1]) <= DEAREST[database.dialect]
    assert costs[0] <= 20 * DEAREST[database.dialect]  # finds the ends of all there is, once


async def test_new_events_cost_the_same_with_much_behind_them(database: Database, store: Store):
    """Neither what has been read is in the way, nor the empty place after it."""
    few: list[int] = []
    much: list[int] = []
    await fill(database, 1)
    for costs, bulks in ((few, 0), (much, BULKS)):
        await fill(database, bulks)
        now = (await store.place()).now
        costs += await costs_of_pages(database, now)
        await fill(database, 1, size=10)
        costs += await costs_of_pages(database, now)

    assert len(few) == len(much)
    assert all(b <= 1.5 * a + 10 for a, b in zip(few, much, strict=True)), (few, much)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_page_is_compared_with_what_is_parked_of_its_own_entities(database: Database, analyzed: bool):
    """However much is parked of others."""
    entities = [["product", str(number)] for number in range(10)]
    asked = {"names": '["all"]', "entities": json.dumps(entities)}
    costs: list[int] = []
    for first, end in ((0, 20), (20, 10_000)):
        await park(database, first, end)
        if analyzed:
            await database.query("analyze")
        async with metered(database, _USER_SESSION) as meter:
            await meter.drive(reading("parked_entities", **asked))  # reads the catalogue
            rows, cost = await meter.drive(reading("parked_entities", **asked))
        assert sorted(map(tuple, rows)) == [("all", kind, number) for kind, number in entities]
        costs.append(cost)
    assert costs[1] <= 2 * costs[0] + 20, costs


@only_postgres
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("analyzed", [False, True])
async def test_late_commits_are_found_by_their_transactions(database: Database, mode: str, analyzed: bool):
    """With few transactions and many events each, the planner would rather walk along the numbers."""
    await fill(database, BULKS)
    if analyzed:
        await database.query("analyze ostinato_events")
    unrelated = [(await database.query("select pg_current_xact_id()::text"))[0][0] for _ in range(3)]
    late = Position(after=f"{unrelated[0]}:{int(unrelated[-1]) + 1}:{','.join(unrelated)}")

    async with metered(database, {**_USER_SESSION, "plan_cache_mode": mode}) as meter:
        await meter.drive(meter.reading(late))  # reads the catalogue
        _, cost = await meter.drive(meter.reading(late))

    assert cost < 60


@only_sqlite
@pytest.mark.parametrize("analyzed", [False, True])
async def test_sqlite_walks_the_numbers(database: SqliteDatabase, analyzed: bool):
    """Without sorting."""
    await fill(database, 1)
    if analyzed:
        await database.query("analyze")
    block = sqlite_blocks("ostinato")["events_after"]
    async with database.connection() as connection:
        plan = connection.execute(f"explain query plan {block.text}", dict.fromkeys(block.parameters)).fetchall()

    assert ["SEARCH ostinato_events USING INTEGER PRIMARY KEY (rowid>?)"] == [row[3] for row in plan]


# --- what it costs --------------------------------------------------------------------------------------------------


async def costs_of_pages(database: Database, position: Position) -> list[int]:
    """Each page's, up to the first that is empty."""
    async with metered(database, {**_USER_SESSION, "plan_cache_mode": "force_custom_plan"}) as meter:
        await meter.drive(meter.reading(position))  # reads the catalogue
        costs: list[int] = []
        while True:
            page, cost = await meter.drive(meter.reading(position))
            costs.append(cost)
            if not page.events:
                return costs
            position = page.end


@asynccontextmanager
async def metered(database: Database, session: dict[str, str] = _ENGINE_SESSION) -> AsyncIterator[Meter]:
    if isinstance(database, SqliteDatabase):
        async with database.connection() as file:
            yield Instructions(file)
    else:
        connection = await asyncpg.connect(database.url, server_settings=session)
        try:
            yield Buffers(connection)
        finally:
            await connection.close()


class Buffers:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._blocks = postgres_blocks("ostinato")
        self._prepared: set[str] = set()

    def reading(self, position: Position) -> Flow[Page]:
        return postgres_reading.reading_on(position, PAGE)

    async def drive(self, flow: Flow[T]) -> tuple[T, int]:
        cost, call = 0, next(flow)
        try:
            while True:
                cost += await self._cost(call)
                call = flow.send(await self._rows(call))
        except StopIteration as end:
            return end.value, cost

    async def _rows(self, call: Call) -> Sequence[Row]:
        block = self._blocks[call.block]
        rows: Sequence[Row] = await self._connection.fetch(block.text, *block.arguments(call.arguments))
        return rows

    async def _cost(self, call: Call) -> int:
        block = self._blocks[call.block]
        if call.block not in self._prepared:
            await self._connection.execute(f"prepare the_{call.block} as {block.text}")
            self._prepared.add(call.block)
        values = ", ".join(_literal(value) for value in block.arguments(call.arguments))
        execute = f"execute the_{call.block} ({values})" if values else f"execute the_{call.block}"
        plan = await self._connection.fetchval(f"explain (analyze, buffers, format json) {execute}")
        root = json.loads(plan)[0]["Plan"]
        return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])


class Instructions:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._blocks = sqlite_blocks("ostinato")

    def reading(self, position: Position) -> Flow[Page]:
        return sqlite_reading.paging(position, PAGE)

    async def drive(self, flow: Flow[T]) -> tuple[T, int]:
        cost = 0

        def counted() -> None:
            nonlocal cost
            cost += 1

        self._connection.set_progress_handler(counted, 1)
        try:
            call = next(flow)
            while True:
                rows = self._connection.execute(self._blocks[call.block].text, dict(call.arguments)).fetchall()
                call = flow.send(rows)
        except StopIteration as end:
            return end.value, cost
        finally:
            self._connection.set_progress_handler(None, 0)


def _literal(value: object) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"


# --- what is there --------------------------------------------------------------------------------------------------


async def fill(database: Database, bulks: int, *, size: int = BULK) -> None:
    """Events, in a transaction for each bulk."""
    moment = "0" if database.dialect == "sqlite" else "now()"
    series = f"with recursive n(n) as (values (1) union all select n + 1 from n where n < {size}) "
    unique = "hex(randomblob(8))" if database.dialect == "sqlite" else "gen_random_uuid()::text"
    for _ in range(bulks):
        await database.query(
            "insert into ostinato_events (id, type, payload, occurred_at, recorded_at) "
            f"{series} select {unique}, 'price.changed', '{{}}', {moment}, {moment} from n"
        )


async def park(database: Database, first: int, end: int) -> None:
    """An event of each of so many entities."""
    moment = "0" if database.dialect == "sqlite" else "now()"
    series = f"with recursive n(n) as (values ({first}) union all select n + 1 from n where n + 1 < {end}) "
    await database.query(
        "insert into ostinato_parked "
        "(subscription, sequence_no, event_id, entity_type, entity_id, code, message, parked_at) "
        f"{series} select 'all', n, 'x', 'product', cast(n as text), 'filter', 'no', {moment} from n"
    )
