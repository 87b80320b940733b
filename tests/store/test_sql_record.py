"""Recording by plain SQL, on PostgreSQL: the same door, keys and wake-ups as from Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from msgspec import json

from ostinato.errors import InvalidInput, InvalidOption
from ostinato.model.event import Event
from ostinato.store.ports import LEDGER, EventsRecorded
from tests.store.databases import Database, only_postgres
from tests.store.test_listening import Ear

pytestmark = only_postgres


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Any]:
    """A connection of somebody who has no library of ours."""
    async with database.connection() as connection:
        yield connection


async def record(connection: Any, request: Any) -> list[tuple[str, bool]]:
    rows = await connection.fetch("select id, created from ostinato.record($1::jsonb)", json.encode(request).decode())
    return [(row["id"], row["created"]) for row in rows]


async def seen(database: Database, event_id: str) -> Event:
    (event,) = await database.store.views.events([event_id])
    return event


async def test_everything_that_can_be_said(database: Database, connection: Any):
    """Each field reaches the event."""
    request = {
        "type": "price.changed",
        "payload": {"price": 7.5, "tags": ["a", None]},
        "entity": ["product", "42"],
        "idempotency_key": "k",
        "caused_by": "sync:tier=gold",
        "source": "shop",
        "occurred_at": "2027-01-31T10:00:00.5+01:00",
        "ordered": True,
    }
    [(event_id, created)] = await record(connection, request)

    event = await seen(database, event_id)
    assert created
    assert (event.type, event.payload, event.entity) == ("price.changed", request["payload"], ("product", "42"))
    assert (event.idempotency_key, event.caused_by, event.source) == ("k", "sync:tier=gold", "shop")
    assert event.occurred_at == datetime(2027, 1, 31, 9, 0, 0, 500_000, tzinfo=UTC)


async def test_what_is_not_said(database: Database, connection: Any):
    """The payload is an empty object, unless it is null; nulls and false are as if they were not there."""
    bare = {"type": "it.happened", "entity": None, "source": None, "ordered": False}
    (first, _), (second, _) = await record(connection, [bare, {"type": "it.happened", "payload": None}])

    event = await seen(database, first)
    assert (event.payload, (await seen(database, second)).payload) == ({}, None)
    assert (event.entity, event.source, event.idempotency_key, event.run_id) == (None, None, None, None)
    assert event.occurred_at == event.recorded_at
    assert await record(connection, []) == await connection.fetch("select * from ostinato.record(null)") == []


async def test_a_key_that_was_used_gives_the_event_that_has_it(database: Database, connection: Any):
    """Also within an array, and from Python's events."""
    [(first, _)] = await record(connection, {"type": "a", "idempotency_key": "k"})
    requests = [{"type": "a", "idempotency_key": key} for key in ("new", "k", "new")]
    answers = await record(connection, requests)

    assert [created for _, created in answers] == [True, False, False]
    assert (answers[1][0], answers[2][0]) == (first, answers[0][0])
    assert await database.count("events") == 2


async def test_it_wakes_who_sleeps_when_it_commits(database: Database, connection: Any):
    """The bell rings with the commit; a rollback leaves nothing."""
    ear = Ear(database)
    await ear.listener.start()
    try:
        await ear.working()
        await ear.armed(LEDGER)
        ear.forget()
        transaction = connection.transaction()
        await transaction.start()
        await record(connection, {"type": "undone", "idempotency_key": "k"})
        await transaction.rollback()
        async with connection.transaction():
            await record(connection, {"type": "done", "idempotency_key": "k"})
        assert await ear.next(EventsRecorded) == EventsRecorded()
    finally:
        await ear.listener.stop()
    assert await database.query("select type from ostinato_events") == [("done",)]


async def test_an_order_that_is_asked_for_waits_for_the_entity(database: Database, connection: Any):
    """The second gets its number after the first has committed; others do not wait."""
    request = {"type": "moved", "entity": ["truck", "1"], "ordered": True}
    async with database.connection() as other:
        transaction = connection.transaction()
        await transaction.start()
        await record(connection, request)
        await other.execute("set lock_timeout = '50ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await record(other, request)
        await record(other, {**request, "entity": ["truck", "2"]})
        await record(other, {**request, "ordered": False})
        await transaction.commit()
        await record(other, request)
    assert await database.count("events") == 4


async def test_who_waited_for_the_entity_was_recorded_after_those_who_did_not(database: Database, connection: Any):
    """Numbers and moments go together: a drainer that begins at a moment looks for its number by halving."""
    request = {"type": "moved", "entity": ["truck", "1"], "ordered": True}
    async with database.connection() as other, database.connection() as third:
        transaction = connection.transaction()
        await transaction.start()
        await record(connection, request)
        waiting = asyncio.create_task(record(other, request))
        is_waited = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        while not await third.fetchval(is_waited):  # noqa: ASYNC110 (nobody is told who waits for a lock)
            await asyncio.sleep(0.005)
        await record(third, {"type": "passed"})
        await transaction.commit()
        await waiting
    rows = await database.query("select type from ostinato_events order by recorded_at")
    assert rows == await database.query("select type from ostinato_events order by sequence_no")
    assert rows == [("moved",), ("passed",), ("moved",)]


BAD = [
    ("OS003", {"type": "a", "occurred_at": "9999-12-31T23:59:59-05:00"}, "must be an instant with its time zone"),
    ("OS003", {"type": "a", "occurred_at": "0001-01-01T00:00:00+05:00"}, "must be an instant with its time zone"),
    ("OS003", 7, "a request must be an object and is 7"),
    ("OS003", [{"type": "a"}, "x"], '[1]: a request must be an object and is "x"'),
    ("OS003", {}, "type is missing"),
    ("OS003", {"type": "price.*"}, 'type is "price.*" and must be 1 to 200 printable characters without * and spaces'),
    ("OS003", {"type": "a b"}, 'type is "a b"'),
    ("OS003", {"type": "x" * 201}, "must be 1 to 200 printable"),
    ("OS003", {"type": "a", "typ": 1}, 'unknown field "typ"; fields are caused_by, entity, idempotency_key,'),
    ("OS004", {"type": "a", "payload": "x" * 1048575}, 'payload of "a" has 1048577 bytes as JSON and may'),
    ("OS004", {"type": "a", "payload": json.decode(b"[" * 202 + b"]" * 202)}, "nested deeper than 200 levels"),
    ("OS003", {"type": "a", "entity": "product"}, 'entity is "product" and must be a pair of texts'),
    ("OS003", [{"type": "a", "entity": ["product", 42]}], "[0]: id of entity is 42 and must be text of 1 to 500"),
    ("OS003", {"type": "a", "entity": ["", "1"]}, 'type of entity is "" and must be text of 1 to 100'),
    ("OS003", {"type": "a", "idempotency_key": "x" * 501}, "must be text of 1 to 500 characters"),
    ("OS003", {"type": "a", "caused_by": 1}, "caused_by is 1"),
    ("OS003", {"type": "a", "source": ""}, 'source is ""'),
    ("OS003", {"type": "a", "occurred_at": "2031-01-31T09:00:00"}, "must be an instant with its time zone"),
    ("OS003", {"type": "a", "ordered": True}, "ordered needs an entity"),
    ("OS003", {"type": "a", "ordered": "yes", "entity": ["a", "b"]}, 'ordered is "yes" and must be true or false'),
]  # fmt: skip


async def test_bad_requests_change_nothing(database: Database, connection: Any):
    """Each is refused with what was given and a remedy; in an array it takes the others along."""
    for code, request, said in BAD:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await record(connection, request)
        error = caught.value
        assert (code, said in str(error), bool(error.hint)) == (error.sqlstate, True, True), error
    assert await database.count("events") == 0


async def test_through_our_transactions_its_errors_are_ours(database: Database):
    """`tx.fetch` raises what `tx.record` would."""
    for request, kind in (({"type": "a b"}, InvalidOption), ({"type": "a", "payload": "x" * 2_000_000}, InvalidInput)):
        async with database.store.begin() as tx:
            with pytest.raises(kind):
                await tx.fetch("select * from ostinato.record($1)", request)
