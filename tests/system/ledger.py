"""The processes of the ledger's tests: `python -m tests.system.ledger write|drain|follow|keys|passes …`.

Whoever writes an event of an entity first counts the entity's version up, in the same transaction, whose lock on that
row lasts until its end. So the versions of an entity are its true order: a reader has to find 1, 2, 3, … of each.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from msgspec import Raw, json

from ostinato import App, ids
from ostinato.engine.ledger.dispatching import Dispatcher
from ostinato.engine.ledger.draining import drain_page
from ostinato.errors import StoreError
from ostinato.ids import new_id
from ostinato.model.change import CursorMoved, EventRecorded
from ostinato.model.event import WORKFLOW_RUNNER, Event, position_in
from ostinato.store.ports import Store, Transaction
from ostinato.store.postgres import reading as postgres_reading
from ostinato.store.postgres.transaction import PostgresTransaction
from ostinato.store.sqlite import reading as sqlite_reading
from ostinato.store.sqlite.transaction import SqliteTransaction
from tests.system.gates import passed
from tests.system.log import tell

SHARED = [f"track {number}" for number in range(8)]
WRITERS = [f"writer {number}" for number in range(4)]
DRAINERS = ["billing", "mailing", "search"]
READERS = [*DRAINERS, "token", "naive"]
KEYS = [f"price.changed:{number}" for number in range(120)]

POINTS = ["before the take", "before the read", "before the dispatch", "after it"]
POINTS += ["before the commit", "after the commit"]
"""Where a pass is killed."""

_BUMP = "update entities set version = version + 1 where id = $1 returning version"
_VERSION = "select version from entities where id = $1"
_SEE = "insert into seen (reader, entity, version) values ($1, $2, $3)"
_KEEP = "update tokens set token = $2 where reader = $1"
_KEPT = "select token from tokens where reader = $1"
_NAIVE = """
    select sequence_no, entity_id, payload from ostinato.events where sequence_no > $1 order by sequence_no limit 100
"""
_NAP = 0.005


class AbortedError(Exception):
    """A pass that somebody gives up in the middle."""


def store_of(app: App) -> Store:
    """The store of an app that is open."""
    store = app._site.opened()
    assert store is not None
    return store


async def record_next(transaction: Transaction, entity: str) -> None:
    """The entity's next event. Its number is taken while its row is locked."""
    version = await transaction.fetchval(_BUMP, entity)
    payload = Raw(json.encode({"version": version}))
    await transaction.apply([EventRecorded(new_id(), "track.changed", payload, "any", entity)])


async def see(transaction: Transaction, reader: str, events: list[tuple[str, int]]) -> None:
    for entity, version in events:
        await transaction.execute(_SEE, reader, entity, version)


def versions(events: list[Event]) -> list[tuple[str, int]]:
    return [(str(event.entity_id), event.payload["version"]) for event in events]


# --- writers --------------------------------------------------------------------------------------------------------


async def write(store: Store, *names: str) -> None:
    """Several writers, each with a connection of its own."""
    count, longest = int(os.environ["SYSTEM_TRANSACTIONS"]), float(os.environ["SYSTEM_LONGEST"])
    async with asyncio.TaskGroup() as writers:
        for name in names:
            chance = random.Random(name)
            writers.create_task(_write(store, name, chance, count, longest))
    tell("written")


async def _write(store: Store, name: str, chance: random.Random, count: int, longest: float) -> None:
    for _ in range(count):
        await persistently(lambda: _transact(store, name, chance, longest))


async def _transact(store: Store, name: str, chance: random.Random, longest: float) -> None:
    """A transaction of up to 80 ms: some have begun to write long before they come to their entity, some take a part
    of it back, some take all."""
    entity = chance.choice(SHARED)
    async with store.begin() as transaction:
        if chance.random() < 0.3:
            await record_next(transaction, name)
        await asyncio.sleep(chance.uniform(0, longest / 2))
        if chance.random() < 0.2:
            await transaction.execute("savepoint doubt")
            await record_next(transaction, entity)
            await transaction.execute("rollback to savepoint doubt")
        await transaction.execute("savepoint sure")
        await record_next(transaction, entity)
        await transaction.execute("release savepoint sure")
        await asyncio.sleep(chance.uniform(0, longest / 2))
        if chance.random() > 0.1:
            await transaction.commit()


async def persistently(work: Callable[[], Awaitable[Any]]) -> Any:
    """Until it could be done, whatever becomes of the server meanwhile."""
    while True:
        try:
            return await work()
        except StoreError:
            await asyncio.sleep(0.02)


# --- readers --------------------------------------------------------------------------------------------------------


async def drain(store: Store, name: str) -> None:
    """Notes what it was given, in the transaction that moves the drainer; sometimes it records an event itself."""
    chance = random.Random()
    while True:
        try:
            if not await persistently(lambda: _pass(store, name, chance)):
                await asyncio.sleep(_NAP)
        except AbortedError:
            pass


async def _pass(store: Store, name: str, chance: random.Random) -> bool:
    async with store.draining(name, chance.choice([5, 50, 500])) as taken:
        if taken is None or not taken.page.events:
            return False
        transaction, page = taken
        await see(transaction, name, versions(list(page.events)))
        news = any(event.entity_id not in DRAINERS for event in page.events)
        if news and (chance.random() < 0.3 or not await transaction.fetchval(_VERSION, name)):
            await record_next(transaction, name)
        if chance.random() < 0.1:
            raise AbortedError
        await transaction.apply([CursorMoved(name, page.end.text(), len(page.events))])
        await transaction.commit()
        return True


async def follow(store: Store, *readers: str) -> None:
    """Those who keep their own position: the token, and on PostgreSQL the number that does not suffice."""
    steps = [partial(_STEPS[reader], store) for reader in readers]
    while True:
        progress = [await persistently(step) for step in steps]
        if not any(progress):
            await asyncio.sleep(_NAP)


async def _follow_token(store: Store) -> bool:
    async with store.begin() as transaction:
        token = await transaction.fetchval(_KEPT, "token")
    page = await store.read_on(position_in(token), 50)
    if page.events:
        async with store.begin() as transaction:
            await see(transaction, "token", versions(list(page.events)))
            await transaction.execute(_KEEP, "token", page.end.text())
            await transaction.commit()
    return bool(page.events)


async def _follow_numbers(store: Store) -> bool:
    async with store.begin() as transaction:
        last = int(await transaction.fetchval(_KEPT, "naive"))
        if rows := await transaction.fetch(_NAIVE, last):
            await see(transaction, "naive", [(row["entity_id"], row["payload"]["version"]) for row in rows])
            await transaction.execute(_KEEP, "naive", str(rows[-1]["sequence_no"]))
            await transaction.commit()
        return bool(rows)


_STEPS = {"token": _follow_token, "naive": _follow_numbers}


# --- the same keys --------------------------------------------------------------------------------------------------


async def keys(store: Store) -> None:
    """Records the same keys as its twin at the same moment: in bulks, and one by one, in an order of its own."""
    tell("ready")
    await passed("go")
    mine = random.Random(os.getpid()).sample(KEYS, len(KEYS))
    bulks = [mine[:40], mine[40:80], *([key] for key in mine[80:])]
    for bulk in bulks:
        events = [EventRecorded(new_id(), "price.changed", Raw(b"{}"), idempotency_key=key) for key in bulk]
        committed = await store.commit(events)
        for event in events:
            tell("recorded", key=event.idempotency_key, id=committed.recorded.get(event.id, event.id))
    tell("written")


# --- a pass that is killed ------------------------------------------------------------------------------------------


def passes(make_app: Callable[[], App]) -> None:
    """One process after the other, each killed at another point of a pass; forked, since starting one takes longer."""
    for point in POINTS:
        if (child := os.fork()) == 0:
            asyncio.run(_until_killed(make_app(), point))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        tell("ended", point=point, killed=os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
    asyncio.run(_until_killed(make_app(), None))
    tell("drained")


async def _until_killed(app: App, point: str | None) -> None:
    async with app:
        store = store_of(app)
        kinds = ("price.changed", "noise", "price.set", "noise")
        await store.commit([EventRecorded(new_id(), kind, Raw(b'{"n":1}')) for kind in kinds])
        if point is not None:
            _die_at(point)
        dispatcher = Dispatcher(store, app._site.door, app.registry.functions)
        while (await drain_page(store, WORKFLOW_RUNNER, dispatcher, limit=3)).processed:
            pass


def _die_at(point: str) -> None:
    match point:
        case "before the take":
            for module in (postgres_reading, sqlite_reading):
                setattr(module, "taking", _die)  # noqa: B010 - not every module has one, as far as types are known
        case "before the read":
            for module in (postgres_reading, sqlite_reading):
                setattr(module, "paging", _die)  # noqa: B010
        case "before the dispatch":
            Dispatcher.consume = _die  # type: ignore[method-assign]
        case "after it":
            _then_die(Dispatcher, "consume")
        case "before the commit":
            for kind in (PostgresTransaction, SqliteTransaction):
                kind.commit = _die  # type: ignore[method-assign]
        case "after the commit":
            for kind in (PostgresTransaction, SqliteTransaction):
                _then_die(kind, "commit")


def _die(*_: object, **__: object) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(kind: type, name: str) -> None:
    method = getattr(kind, name)

    async def and_die(*arguments: Any) -> None:
        await method(*arguments)
        _die()

    setattr(kind, name, and_die)


# --- the process ----------------------------------------------------------------------------------------------------


async def _act(action: Callable[..., Awaitable[None]], arguments: list[str]) -> None:
    app = App()
    async with app:
        await action(store_of(app), *arguments)


def _set_the_clock_back(seconds: float) -> None:
    behind = SimpleNamespace(time_ns=lambda: time.time_ns() - int(seconds * 1e9))
    ids.time = behind  # type: ignore[attr-defined, assignment]


def _end_with_the_test() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    name, *arguments = sys.argv[1:]
    if name == "passes":
        passes(App)
        return
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    if behind := float(os.environ.get("SYSTEM_BEHIND", "0")):
        _set_the_clock_back(behind)
    actions: dict[str, Callable[..., Awaitable[None]]] = {
        "write": write,
        "drain": drain,
        "follow": follow,
        "keys": keys,
    }
    asyncio.run(persistently(lambda: _act(actions[name], arguments)))


if __name__ == "__main__":
    main()
