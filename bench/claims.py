"""Buffers per claim while an old transaction pins the vacuum horizon: the cost of claiming has to stay flat.

A transaction at REPEATABLE READ with an xid of its own is opened first and held. Then a backlog is worked off in steps;
before each step the very statement with which the worker would claim next is run under EXPLAIN (ANALYZE, BUFFERS) and
rolled back. Nothing that died since the start can be removed, so a claim that walks dead entries grows with every step.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, cast

import asyncpg

from bench.contenders import Contender
from bench.roles import Control, Result, Task

CLAIM_LIMIT = 10

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class StepwiseContender(Contender, Protocol):
    """The seam: a contender that can claim step by step, with whatever its worker remembers between claims."""

    async def next_claim(self, limit: int) -> tuple[str, tuple[Any, ...]]:
        """Give the statement and arguments with which the worker would claim up to `limit` runs now."""

    async def advance(self, count: int) -> None:
        """Claim and complete `count` runs as the worker does."""


async def measure_claims(task: Task, control: Control) -> Result:
    count, steps = task.options["count"], task.options["steps"]
    async with _stepwise(task) as queue, _pinned_horizon(task.target.url), _connected(task.target.url) as observer:
        await control.ready()
        await queue.enqueue_many(range(count))
        await _buffers_of_next_claim(queue, observer)       # the first one also fills the connection's caches
        drained, buffers = [], []
        for step in range(steps):
            drained.append(step * count // steps)
            buffers.append(await _buffers_of_next_claim(queue, observer))
            await queue.advance(count // steps)
        return {"drained": drained, "buffers": buffers, "completed": await queue.completed()}


def _stepwise(task: Task) -> StepwiseContender:
    return cast(StepwiseContender, task.make())


async def _buffers_of_next_claim(queue: StepwiseContender, observer: Connection) -> int:
    statement, arguments = await queue.next_claim(CLAIM_LIMIT)
    transaction = observer.transaction()
    await transaction.start()
    try:
        explain = f"explain (analyze, buffers, format json) {statement}"
        plan = json.loads(await observer.fetchval(explain, *arguments))[0]["Plan"]
    finally:
        await transaction.rollback()
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@asynccontextmanager
async def _pinned_horizon(url: str) -> AsyncIterator[None]:
    async with _connected(url) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select pg_current_xact_id()::text")
        yield


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()
