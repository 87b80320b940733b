"""Events in the store: keys under concurrency, commits in doubt, retention, and statements that stay cheap."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Raw

from ostinato.errors import StoreUnavailable
from ostinato.ids import new_id
from ostinato.model.change import Change, CursorMoved, EventParked, EventRecorded
from ostinato.model.event import Event
from ostinato.store.flows import Flow
from ostinato.store.ports import DeclaredDrainer, Store
from ostinato.store.postgres import PostgresStore
from ostinato.store.sqlite.store import load_blocks
from tests.store.databases import Database, SqliteDatabase, only_postgres
from tests.store.samples import a_run


def an_event(kind: str = "it.happened", **fields: Any) -> EventRecorded:
    return EventRecorded(**{"id": new_id(), "type": kind, "payload": Raw(b"{}"), **fields})


def events(count: int, **fields: Any) -> list[EventRecorded]:
    return [an_event(**fields) for _ in range(count)]


async def numbers(database: Database) -> list[int]:
    return [row[0] for row in await database.query("select sequence_no from ostinato_events order by 1")]


async def declare(store: Store, *names: str) -> None:
    """Drainers that begin at the beginning."""
    beginning = (await store.place()).beginning.text()
    await store.declare_drainers([DeclaredDrainer(name, "**", "external", beginning) for name in names])


async def drain(store: Store, name: str, limit: int = 1000) -> Sequence[Event]:
    """One pass of a drainer, which does nothing with its events."""
    async with store.draining(name, limit) as taken:
        assert taken is not None
        transaction, page = taken
        await transaction.apply([CursorMoved(name, page.end.text(), len(page.events))])
        await transaction.commit()
        return page.events


async def prune(store: Store, *, keep: float = 0.0, keep_unread: float | None = None, **more: int) -> int:
    asked = {"passed": 0, "limit": 100, **more}
    return len(await store.prune_events(keep=keep, keep_unread=keep_unread, **asked))


# --- keys and doubts ------------------------------------------------------------------------------------------------


async def test_one_event_for_a_key_however_many_record_it_at_once(database: Database, monkeypatch: pytest.MonkeyPatch):
    """In bulks of different orders too, which do not deadlock; everybody is told the same event."""
    monkeypatch.setattr("ostinato.store.postgres.store._TRIES", 1)
    other = await database.another()
    keys = [f"k{number}" for number in range(300)]
    bulks = [[an_event(idempotency_key=key) for key in (keys if turn % 2 else reversed(keys))] for turn in range(8)]
    stores = [database.store, other]
    await asyncio.gather(*(store.warm_up() for store in stores))  # else the first is done before others have connected
    committed = await asyncio.gather(*(stores[turn % 2].commit(bulk) for turn, bulk in enumerate(bulks)))

    told: dict[str, set[str]] = {}
    for bulk, answer in zip(bulks, committed, strict=True):
        for event in bulk:
            told.setdefault(str(event.idempotency_key), set()).add(answer.recorded.get(event.id, event.id))
    assert all(len(ids) == 1 for ids in told.values())
    assert len(told) == await database.count("events") == 300


@only_postgres
@pytest.mark.parametrize("commits", [True, False])
async def test_a_commit_whose_answer_was_lost(database: Database, monkeypatch: pytest.MonkeyPatch, commits: bool):
    """What was recorded is found, with the events that have the keys; what was not is reported, and not there."""
    store = database.store
    first = an_event(idempotency_key="used")
    await store.commit([first])
    again, fresh, keyed, run = an_event(idempotency_key="used"), an_event(), an_event(idempotency_key="new"), a_run()
    changes: list[Change] = [again, fresh, keyed, run] if commits else [again, fresh, keyed]
    write = PostgresStore.write

    async def lose(self: Any, flow: Flow[Any], *, single: bool = False) -> Any:
        if commits:
            await write(self, flow, single=single)
        raise StoreUnavailable("the connection is gone")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresStore, "write", lose)
        if commits:
            committed = await store.commit(changes)
            assert committed.recorded == {again.id: first.id}
        else:
            with pytest.raises(StoreUnavailable):
                await store.commit(changes)
    assert (await database.count("events"), await database.count("runs")) == ((3, 1) if commits else (1, 0))


# --- retention ------------------------------------------------------------------------------------------------------


async def test_only_what_was_kept_long_enough_goes(database: Database):
    """By the database's clock, the oldest first, a few at a time."""
    store = database.store
    await store.commit(events(5))
    await database.advance(100)
    await store.commit(events(3))

    assert await prune(store, keep=200) == 0
    assert await prune(store, keep=50, limit=2) == 2
    assert await prune(store, keep=50, passed=2) == 3
    assert len(await numbers(database)) == 3


async def test_what_a_drainer_has_yet_to_read_stays(database: Database):
    """Each of them, also in the middle of what it reads; unless the retention says how long."""
    store = database.store
    await declare(store, "fast", "slow")
    await store.commit(events(12))
    await database.advance(100)
    assert await prune(store) == 0
    assert len(await drain(store, "fast")) == 12
    assert await prune(store) == 0
    read = await drain(store, "slow", 5)
    assert await prune(store) == len(read) == 5
    assert await prune(store, keep_unread=200) == 0
    await store.commit(events(2))
    assert await prune(store, keep_unread=50) == 7
    assert len([*await drain(store, "slow"), *await drain(store, "slow")]) == 2
    assert await prune(store) == 0
    assert len(await drain(store, "fast")) == 2
    assert await prune(store) == 2


async def test_what_is_parked_stays(database: Database):
    """It can be retried; what is around it goes."""
    store = database.store
    parked = an_event()
    await store.commit([an_event(), parked, an_event()])
    (number,) = [event.sequence_no for event in await store.views.events([parked.id])]
    await store.commit([EventParked("s", number, parked.id, "mapper", "no")])
    await database.advance(1)

    assert await prune(store) == 2
    assert await numbers(database) == [number]


@only_postgres
async def test_what_a_late_commit_brings_is_not_lost(database: Database):
    """Its number is low, but the drainer that is further on has not read it."""
    store = database.store
    await declare(store, "slow")
    async with database.connection() as connection:
        async with connection.transaction():
            await connection.fetch("""select * from ostinato.record('{"type": "late"}')""")
            await store.commit(events(3))
            assert len(await drain(store, "slow")) == 3
        await database.advance(1)
        assert await prune(store) == 0
    assert [event.type for event in await drain(store, "slow")] == ["late"]
    assert await prune(store) == 4


@only_postgres
async def test_a_drainer_of_another_ledger_keeps_everything(database: Database):
    """Nobody knows what it has read before it has found its place here."""
    store = database.store
    await declare(store, "moved")
    await store.commit(events(2))
    await drain(store, "moved")
    await database.query("update ostinato_drainers set lineage = 'another/00000001'")
    await database.advance(1)
    assert await prune(store) == 0


async def test_a_number_is_never_given_again(database: Database):
    """When the last event is gone, the next one is not taken for it."""
    store = database.store
    await store.commit(events(3))
    (*_, last) = await numbers(database)
    await database.advance(1)
    assert await prune(store) == 3
    await store.commit(events(1))
    assert await numbers(database) > [last]


async def test_what_was_recorded_since_a_moment_is_found_from_there_on(database: Database):
    """From every moment, in a ledger with gaps, and in an empty one."""
    store = database.store
    assert await store.earlier("it.happened", since=0, after=0, limit=100) == []
    for count in (1, 3, 2, 5):
        await store.commit([an_event("something.else"), *events(count)])
        await database.advance(100)
        with suppress(ValueError):
            await refuse_some(store)
    found = await store.earlier("it.happened", since=0, after=0, limit=100)
    moments = sorted({event.recorded_micros for event in found})

    assert len(moments) == 4
    for moment in (0, *moments, *(each + 1 for each in moments)):
        expected = [event.id for event in found if event.recorded_micros >= moment]
        later = await store.earlier("it.happened", since=moment, after=0, limit=100)
        assert expected == [event.id for event in later]


async def refuse_some(store: Store) -> None:
    """Numbers that were taken and never used."""
    async with store.begin() as transaction:
        await transaction.apply(events(7))
        raise ValueError("rolled back")


# --- how it is executed ---------------------------------------------------------------------------------------------

PLANS = {
    "known_events": ["ostinato_events_id (id=?)", "ostinato_events_key (idempotency_key=?)"],
    "events_by_id": ["ostinato_events_id (id=?)"],
    "recent_events": ["INTEGER PRIMARY KEY (rowid>?)"],
    "recent_events_of_type": ["ostinato_events_type (type=? AND sequence_no>?)"],
    "recent_events_of_entity": ["ostinato_events_entity (entity_type=? AND entity_id=? AND sequence_no>?)"],
    "number_since": ["e USING INTEGER PRIMARY KEY (rowid=?)", "ostinato_events USING INTEGER PRIMARY KEY (rowid>?)"],
    "event_types": ["ostinato_events_type (type>?)"],
    "event_links": ["events_id (id=?)", "events_caused_by (caused_by=?)", "events_run (run_id=?)"],
    "run_links": ["ostinato_runs_of_event (invoked_by=?)", "ostinato_runs_of_run (invoked_by=?)"],
    "prune_events": ["v USING INTEGER PRIMARY KEY (rowid>?)", "ostinato_parked_event (sequence_no=?)"],
}  # fmt: skip


async def test_statements_walk_their_index_on_sqlite(file: SqliteDatabase):
    """However many events there are, none of them scans or sorts the ledger."""
    await file.store.commit(events(500))
    await file.query("analyze")
    blocks = load_blocks("ostinato")
    async with file.connection() as connection:
        connection.create_function("ostinato_now", 0, lambda: 0)
        for name, wanted in PLANS.items():
            given = dict.fromkeys(blocks[name].parameters)
            plan = [row[3] for row in connection.execute(f"explain query plan {blocks[name].text}", given)]
            missing = [each for each in wanted if not any(each in line for line in plan)]
            assert not missing, (name, missing, plan)
            assert not any("SCAN ostinato_events" in line or "B-TREE" in line for line in plan), (name, plan)


@only_postgres
async def test_statements_walk_their_index_on_postgresql(database: Database):
    """The same for those of which a generic plan could go wrong."""
    await database.store.commit(events(2000, caused_by="event:x", run_id="r"))
    async with database.connection() as connection:
        await connection.execute("analyze ostinato.events")
        for statement in (
            "select type from ostinato.events where type > 'a' order by type limit 1",
            "select 1 from ostinato.events where sequence_no >= 5 order by sequence_no limit 1",
            "select 1 from ostinato.runs where substr(invoked_by, 1, 6) = 'event:' and invoked_by = any('{event:x}')",
            "select 1 from ostinato.runs where substr(invoked_by, 1, 4) = 'run:' and invoked_by = any('{run:x}')",
        ):
            await connection.execute("set enable_seqscan = off")
            plan = "\n".join(row[0] for row in await connection.fetch(f"explain {statement}"))
            assert "Index" in plan, plan
            assert "Seq Scan" not in plan, plan
            assert "Filter" not in plan, plan


async def test_types_are_counted_by_their_latest_events(database: Database, store: Store):
    """Along the index of types, whatever else there is: a rare type is not looked for among the others."""
    await store.commit([an_event("rare", source="s"), *(an_event(f"often{number % 3}") for number in range(6000))])
    if database.dialect == "postgresql":
        async with database.connection() as connection:
            await connection.execute("analyze ostinato.events")
            statement = "select count(*) from ostinato.event_counts(10)"
            (plan, *_), *_ = await connection.fetch(f"explain (analyze, buffers, costs off, format json) {statement}")
            (plan, *_), *_ = await connection.fetch(f"explain (analyze, buffers, costs off, format json) {statement}")
        assert 100 > json.loads(plan)[0]["Plan"]["Shared Hit Blocks"]
    counted = [(each.type, each.source, each.count, each.more) for each in await store.views.event_counts(count_to=10)]
    assert [*((f"often{number}", None, 10, True) for number in range(3)), ("rare", "s", 1, False)] == counted


# --- when it was


async def test_a_moment_is_found_without_looking_at_all_there_is(database: Database, store: Store):
    """By halving; a few events that were recorded a little out of order are neither missed nor mistaken."""
    seconds = {n: n + 20 * (n % 50 == 0) for n in range(1, 3001)}
    early = "(n + 20 * (n % 50 = 0))" if database.dialect == "sqlite" else "(n + 20 * (n % 50 = 0)::integer)"
    moment = f"1000000 * {early}" if database.dialect == "sqlite" else f"to_timestamp({early})"
    await database.query(
        "insert into ostinato_events (id, type, payload, occurred_at, recorded_at) "
        "with recursive n(n) as (values (1) union all select n + 1 from n where n < 3000) "
        f"select 'e' || n, 'tick', '{{}}', {moment}, {moment} from n"
    )
    for second in (0, 90, 1500, 1510, 2990):
        first = min(n for n, moment in seconds.items() if moment >= second)
        assert 0 <= first - 1 - await store.number_before(second * 1_000_000) <= 81
        page = await store.read_on(await store.position_at(second * 1_000_000), 10)
        assert first == page.events[0].sequence_no
    assert [] == (await store.read_on(await store.position_at(9_999_000_000), 10)).events
