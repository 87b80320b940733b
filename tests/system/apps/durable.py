"""Durable functions that log each effect, and what they were told each step's result is."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from secrets import token_hex
from typing import Any

from ostinato import App, Retry, Run, Tx
from ostinato.errors import StepFailed
from tests.system import points
from tests.system.gates import passed
from tests.system.log import tell

app = App()

PATIENT = Retry(*["0s"] * 50)
LEAVE_A_ROW = "insert into durable (run_id, step, value, lease_no) values ($1, $2, $3, $4)"


def begin(run: Run) -> None:
    tell("began", run=run.id, lease_no=run.lease_no, attempt=run.attempt)


def effect(run: Run, step: str) -> str:
    """Happens outside of the database, and is different every time."""
    points.reach("before effect", step)
    value = f"{step} {token_hex(8)}"
    tell("effect", run=run.id, step=step, value=value, key=run.idempotency_key(step), lease_no=run.lease_no)
    points.reach("after effect", step)
    return value


def got(run: Run, step: str, value: Any) -> None:
    tell("got", run=run.id, step=step, value=value, lease_no=run.lease_no)


# --- five steps -----------------------------------------------------------------------------------------------------


async def write(tx: Tx, run: Run, step: str) -> str:
    """Happens in the database, together with the memo."""
    value = f"{step} {token_hex(8)}"
    points.reach("before effect", step)
    await tx.execute(LEAVE_A_ROW, run.id, step, value, run.lease_no)
    points.reach("after effect", step)
    return value


@app.function(retry=PATIENT)
async def five(run: Run, item: int) -> list[str]:
    """Two plain steps, one of them in a thread, two that commit with their memo, and one that records an event."""
    begin(run)

    async def fetch() -> str:
        value = effect(run, "fetch")
        await asyncio.sleep(random.uniform(0, 0.02))
        return value

    def parse() -> str:
        return effect(run, "parse")

    async def store(tx: Tx, step: str) -> str:
        return await write(tx, run, step)

    found: list[str] = []
    for step in ("fetch", "parse", "store", "announce", "file"):
        if step == "fetch":
            value = await run.step(step, fetch)
        elif step == "parse":
            value = await run.step(step, parse)
        elif step == "announce":
            value = await run.send(step, "item.stored", {"item": item}, entity=("item", str(item)))
        else:
            value = await run.options(tx=True).step(step, store, step)
        got(run, step, value)
        found.append(value)
    return found


# --- many at once ---------------------------------------------------------------------------------------------------


@app.function(retry=PATIENT)
async def catalogue(run: Run, items: int, longest: float) -> list[list[Any]]:
    """Fetches and saves all items at once, in no particular order."""
    begin(run)
    chance = random.Random(run.lease_no)

    async def fetch(item: int) -> list[Any]:
        await asyncio.sleep(chance.uniform(0, longest))
        return [item, effect(run, f"fetch {item}")]

    async def save(item: int, fetched: list[Any]) -> list[Any]:
        await asyncio.sleep(chance.uniform(0, longest))
        return [item, fetched, effect(run, f"save {item}")]

    async def both(item: int) -> list[Any]:
        await asyncio.sleep(chance.uniform(0, longest))
        fetched = await run.step("fetch", fetch, item)
        got(run, f"fetch {item}", fetched)
        saved: list[Any] = await run.step("save", save, item, fetched)
        got(run, f"save {item}", saved)
        return saved

    return list(await asyncio.gather(*(both(item) for item in range(items))))


# --- waiting --------------------------------------------------------------------------------------------------------


@app.function
async def nap(run: Run, seconds: float) -> None:
    await run.sleep("nap", seconds)


@app.function
async def expect(run: Run, n: int) -> Any:
    """Says when it will begin to wait, and does."""
    if run.lease_no == 1:
        at = time.monotonic() + NOTICE
        tell("about to wait", n=n, when=at)
        await asyncio.sleep(at - time.monotonic())
    event = await run.wait_for("answer", f"answer.{n % TYPES}", match={"$.payload.n": n}, timeout=LONG_ENOUGH)
    tell("resumed", n=n, lease_no=run.lease_no)
    return None if event is None else event.payload["n"]


TYPES = 20
NOTICE = 0.03
LONG_ENOUGH = 20.0


# --- trouble --------------------------------------------------------------------------------------------------------


@app.function(retry=Retry.none())
async def two(run: Run) -> list[str]:
    """Waits at the gate between its two steps."""
    begin(run)

    async def one_of(step: str) -> str:
        return effect(run, step)

    first = await run.step("first", one_of, "first")
    got(run, "first", first)
    tell("between", run=run.id, lease_no=run.lease_no)
    await passed("go")
    second = await run.step("second", one_of, "second")
    got(run, "second", second)
    return [first, second]


@app.function
async def slow_step(run: Run) -> list[str]:
    """Waits at the gate in its second step."""
    begin(run)

    async def first() -> str:
        return effect(run, "first")

    async def second() -> str:
        tell("inside", run=run.id, lease_no=run.lease_no)
        await passed("go")
        return effect(run, "second")

    one = await run.step("first", first)
    got(run, "first", one)
    two = await run.step("second", second)
    got(run, "second", two)
    return [one, two]


@app.function
async def stubborn(run: Run, tx: bool) -> str:
    """Goes on with its step although it was told to stop."""
    begin(run)

    async def plain() -> str:
        await told_to_stop()
        return effect(run, "plain")

    async def in_transaction(tx: Tx) -> str:
        return await write(tx, run, "tx")

    async def told_to_stop() -> None:
        tell("inside", run=run.id, lease_no=run.lease_no)
        with suppress(asyncio.CancelledError):
            await passed("go")

    if not tx:
        value = await run.step("plain", plain)
        got(run, "plain", value)
        return value
    await told_to_stop()
    value = str(await run.options(tx=True).step("tx", in_transaction))
    got(run, "tx", value)
    return value


@app.function
async def opaque(run: Run, catch: bool) -> str:
    """Its step returns what cannot be stored."""
    begin(run)

    async def connect() -> object:
        effect(run, "connect")
        return object()

    try:
        await run.step("connect", connect)
    except StepFailed as error:
        if not catch:
            raise
        return error.code
    return "stored"


@app.function(retry=Retry("0s"))
async def fill(run: Run, size: int, tx: bool) -> int:
    """A small step, and a large one for which there is no room before the test makes some."""
    begin(run)

    async def small() -> str:
        return effect(run, "small")

    async def large() -> str:
        return effect(run, "large") + "x" * size

    async def row(tx: Tx) -> str:
        value = "row " + "x" * size
        await tx.execute(LEAVE_A_ROW, run.id, "row", value, run.lease_no)
        return value

    got(run, "small", await run.step("small", small))
    if run.lease_no == 1:
        await fill_the_disk()
        tell("between", run=run.id)
        await passed("go")
    value = await (run.options(tx=True).step("row", row) if tx else run.step("large", large))
    return len(value)


async def fill_the_disk() -> None:
    """On SQLite, as far as this process can tell."""
    if os.environ["OSTINATO_DATABASE_URL"].startswith("sqlite"):
        async with app.transaction() as tx:
            await tx.execute(f"pragma max_page_count = {await tx.fetchval('pragma page_count')}")
        _emptying.append(asyncio.create_task(_empty_the_disk()))


async def _empty_the_disk() -> None:
    await passed("room")
    async with app.transaction() as tx:
        await tx.execute("pragma max_page_count = 1000000")


_emptying: list[asyncio.Task[None]] = []
