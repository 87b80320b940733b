"""Buffers per claim while an old transaction pins the vacuum horizon: the cost of claiming has to stay flat.

A transaction at REPEATABLE READ with an xid of its own is opened first and held. Then a backlog is worked off
in steps; before each step the very statement with which the worker would claim next is prepared as the worker
prepares it, run under EXPLAIN (ANALYZE, BUFFERS), and rolled back. Nothing that died since the start can be
removed, so a claim that walks dead entries costs more with every step.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from bench.contenders import Contender

if TYPE_CHECKING:
    import asyncpg

    from bench.roles import Control, Result, Task

    Connection = asyncpg.Connection[asyncpg.Record]

CLAIM_LIMIT = 1  # the walk to the first run is what grows; each further run adds the same everywhere

Statement = tuple[str, tuple[Any, ...]]


class StepwiseContender(Contender, Protocol):
    """The seam: a contender that can claim step by step, with whatever its worker remembers between claims."""

    @property
    def claim_session(self) -> Mapping[str, str]:
        """The settings of the connection on which the worker claims."""

    async def next_claims(self, limit: int) -> dict[str, Statement]:
        """Give, by the label to report, the statement with which the worker would claim, and its arguments."""

    async def advance(self, count: int) -> None:
        """Claim and complete `count` runs as the worker does."""


async def measure_claims(task: "Task", control: "Control") -> "Result":
    count, steps = task.options["count"], task.options["steps"]
    queue = cast(StepwiseContender, task.make())
    url = task.target.url
    async with queue, _pinned_horizon(url), _connected(url, queue.claim_session) as observer:
        await control.ready()
        await queue.enqueue_many(range(count))
        await _measure_next(queue, observer)  # the first one also fills the connection's caches
        series = []
        for _ in range(steps):
            series.append(await _measure_next(queue, observer))
            await queue.advance(count // steps)
        drained = [step * (count // steps) for step in range(steps)]
        buffers = {label: [step[label] for step in series] for label in series[0]}
        return {"drained": drained, "buffers": buffers, "completed": await queue.completed()}


async def _measure_next(queue: StepwiseContender, observer: "Connection") -> dict[str, int]:
    claims = await queue.next_claims(CLAIM_LIMIT)
    return {label: await _buffers(observer, *claim) for label, claim in claims.items()}


async def _buffers(observer: "Connection", statement: str, arguments: tuple[Any, ...]) -> int:
    """Go through PREPARE: a parameter given to EXPLAIN directly would be planned as a constant."""
    values = ", ".join(_literal(argument) for argument in arguments)
    transaction = observer.transaction()
    await transaction.start()
    await observer.execute(f"prepare claim as {statement}")
    try:
        explained = await observer.fetchval(f"explain (analyze, buffers, format json) execute claim ({values})")
    finally:
        await observer.execute("deallocate claim")
        await transaction.rollback()
    plan = json.loads(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _literal(argument: object) -> str:
    match argument:
        case bool():
            return "true" if argument else "false"
        case int():
            return f"({argument})"
        case str():
            return "'" + argument.replace("'", "''") + "'"
    raise TypeError(f"no literal for {argument!r}")


@asynccontextmanager
async def _pinned_horizon(url: str) -> AsyncIterator[None]:
    async with _connected(url, {}) as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select pg_current_xact_id()::text")
        yield


@asynccontextmanager
async def _connected(url: str, settings: Mapping[str, str]) -> "AsyncIterator[Connection]":
    import asyncpg

    connection = await asyncpg.connect(url, server_settings=dict(settings))
    try:
        yield connection
    finally:
        await connection.close()
