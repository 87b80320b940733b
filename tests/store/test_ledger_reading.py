"""Reading the ledger: nothing is skipped and nothing comes twice, whatever commits late, rolls back or is restored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from msgspec import Raw

from ostinato.errors import LedgerMoved
from ostinato.ids import new_id
from ostinato.model.change import CursorMoved, EventRecorded
from ostinato.model.event import Event, Page, Position, position_in
from ostinato.store.base import FlowStore
from ostinato.store.flows import Call, Flow
from ostinato.store.ports import DeclaredDrainer, Store, Transaction
from tests.store.databases import Database, only_postgres

DRAINER = "radio"
PAGE = 1000
SEVERAL_PAGES = 3_500


# --- samples --------------------------------------------------------------------------------------------------------


def an_event(title: str, **fields: Any) -> EventRecorded:
    """An event that is told from others by its type."""
    return EventRecorded(**{"id": new_id(), "type": title, "payload": Raw(b"{}"), **fields})


async def record(store: Store, *titles: str) -> None:
    """In one transaction."""
    await store.commit([an_event(title) for title in titles])


async def declare(store: Store, name: str = DRAINER, position: Position | None = None) -> None:
    beginning = (await store.place()).beginning
    await store.declare_drainers([DeclaredDrainer(name, "**", "tests", (position or beginning).text())])


async def drain(store: Store, name: str = DRAINER, *, limit: int = PAGE) -> list[str]:
    """One pass: the titles of its page."""
    async with store.draining(name, limit) as taken:
        assert taken is not None
        await moved(taken.transaction, taken.page, name)
        await taken.transaction.commit()
        return titles(taken.page.events)


async def moved(transaction: Transaction, page: Page, name: str = DRAINER) -> None:
    await transaction.apply([CursorMoved(name, page.end.text(), len(page.events))])


async def drain_all(store: Store, name: str = DRAINER, *, limit: int = PAGE) -> list[str]:
    """Pass after pass, until there is nothing left and the store knows it."""
    found: list[str] = []
    while page := await drain(store, name, limit=limit):
        found += page
    assert not await store.undrained(name)
    return found


async def read_all(store: Store, position: Position, *, limit: int = PAGE) -> tuple[list[str], Position]:
    """As one reads who keeps his position as a text, between the pages."""
    found: list[str] = []
    while (page := await store.read_on(position_in(position.text()), limit)).events:
        found += titles(page.events)
        position = page.end
    return found, position


def titles(events: Sequence[Event]) -> list[str]:
    return [event.type for event in events]


# --- what is read, and when -----------------------------------------------------------------------------------------


async def test_events_come_in_order_and_once(store: Store):
    """A drainer that begins at the beginning gets all there is, and then what is new."""
    await record(store, "a", "b")
    await declare(store)
    await record(store, "c")

    assert ["a", "b", "c"] == await drain_all(store)

    await record(store, "d")
    assert await store.undrained(DRAINER)
    assert ["d"] == await drain_all(store)


async def test_a_window_whose_last_events_are_gone_ends_all_the_same(database: Database, store: Store):
    """Retention may remove them while it is read; what comes after it is not held up, nor forgotten."""
    await record(store, *"abcdef")
    await declare(store)
    reader = await store.read_on((await store.place()).beginning, 2)
    first = [*await drain(store, limit=2), *await drain(store, limit=2)]
    reader = await store.read_on(reader.end, 2)
    await forget(database, "e", "f")
    await record(store, "g")

    found: list[str] = []
    while await store.undrained(DRAINER):
        found += await drain(store, limit=2)
    assert (["a", "b", "c", "d"], ["g"]) == (first, found)

    position, read = reader.end, list[str]()
    while (page := await store.read_on(position, 2)).end != position:
        position, read = page.end, read + titles(page.events)
    assert ["g"] == read


async def forget(database: Database, *titles: str) -> None:
    """As retention does."""
    gone = f"delete from ostinato_events where type in ({', '.join(map(repr, titles))})"
    if database.dialect == "postgresql":
        async with database.connection() as connection, connection.transaction():
            await connection.execute("set local ostinato_ledger.retention = 'on'")
            await connection.execute(gone.replace("ostinato_", "ostinato.", 1))
    else:
        await database.query("insert into ostinato_retention values (1)")
        await database.query(gone)
        await database.query("delete from ostinato_retention")


async def test_who_begins_now_gets_what_is_recorded_from_now_on(store: Store):
    """What is there already is none of his business."""
    await record(store, "before")
    await declare(store, position=(await store.place()).now)
    token = (await store.place()).now
    await record(store, "after")

    assert ["after"] == await drain_all(store)
    assert ["after"] == (await read_all(store, token))[0]


async def test_now_is_before_what_ones_own_transaction_has_recorded(database: Database, store: Store):
    """It is not committed yet, so nobody has read it."""
    async with store.begin() as transaction:
        await transaction.apply([an_event("own")])
        await later_transactions(database)
        place = await transaction.ask(store.locating())  # type: ignore[attr-defined]
        await transaction.commit()

    if database.dialect == "postgresql":  # on SQLite nobody can record before it is committed
        assert ["own"] == (await read_all(store, place.now))[0]


async def test_what_is_rolled_back_never_appears(store: Store):
    """Neither with its transaction nor with its savepoint; what a savepoint kept does."""
    await declare(store)
    async with store.begin() as transaction:
        await transaction.apply([an_event("undone")])
    async with store.begin() as transaction:
        await transaction.execute("savepoint one")
        await transaction.apply([an_event("undone too")])
        await transaction.execute("rollback to savepoint one")
        await transaction.execute("savepoint two")
        await transaction.apply([an_event("kept")])
        await transaction.execute("release savepoint two")
        await transaction.commit()

    assert ["kept"] == await drain_all(store)


@only_postgres
@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_what_commits_late_is_not_skipped(database: Database, store: Store, isolation: str):
    """An event with a lower number, committed after a higher one was read, at any isolation."""
    await declare(store)
    async with database.connection() as connection:
        async with connection.transaction(isolation=isolation):
            await insert(connection, "late")
            await record(store, "early")
            assert ["early"] == await drain_all(store)

        assert await store.undrained(DRAINER)
        assert ["late"] == await drain_all(store)


@only_postgres
async def test_an_unrelated_transaction_stalls_nobody(database: Database, store: Store):
    """However long it has been writing."""
    await declare(store)
    async with database.connection() as connection, connection.transaction():
        await connection.fetchval("select pg_current_xact_id()::text")
        for title in ("a", "b"):
            await record(store, title)
            assert [title] == await drain_all(store)


@only_postgres
async def test_who_asks_for_an_entitys_order_gets_it(database: Database, store: Store):
    """Also if the transaction that comes second in the entity's order has begun first, and the third is faster."""
    await declare(store)
    entity = {"entity_type": "track", "entity_id": "42", "ordered": True}
    async with store.begin() as second:
        await second.apply([an_event("begun")])
        await store.commit([an_event("first", **entity)])
        await second.apply([an_event("second", **entity)])
        third = asyncio.create_task(store.commit([an_event("third", **entity)]))
        while not third.done() and not await database.query("select from pg_locks where not granted"):
            pass
        assert ["first"] == await drain_all(store)
        await second.commit()
        await third

    assert ["begun", "second", "third"] == await drain_all(store)


async def test_what_a_pass_records_itself_comes_in_the_next(store: Store):
    """It is invisible to the pass, and no part of what the pass has read."""
    await declare(store)
    await record(store, "a")

    for title, own in (("a", "b"), ("b", "c")):
        async with store.draining(DRAINER, PAGE) as taken:
            assert taken is not None
            assert [title] == titles(taken.page.events)
            await taken.transaction.apply([an_event(own)])
            await moved(taken.transaction, taken.page)
            await taken.transaction.commit()

    assert ["c"] == await drain_all(store)


@only_postgres
async def test_so_does_what_a_transaction_records_before_it_takes_the_drainer(database: Database, store: Store):
    """Its own number is then below the snapshot's end, and PostgreSQL leaves it out of what is in progress."""
    await declare(store)
    async with store.begin() as transaction:
        await transaction.apply([an_event("own")])
        await later_transactions(database)
        await record(store, "other")
        page = await transaction.ask(store.taking(DRAINER, PAGE))  # type: ignore[attr-defined]
        assert ["other"] == titles(page.events)
        await moved(transaction, page)
        await transaction.commit()

    assert ["own"] == await drain_all(store)


# --- large windows --------------------------------------------------------------------------------------------------


async def test_pages_of_a_large_window_are_complete_and_disjoint(database: Database, store: Store):
    """While others record, also with lower numbers than those that are being read."""
    await declare(store)
    token = (await store.place()).beginning
    await record(store, *(f"old {n}" for n in range(SEVERAL_PAGES)))
    async with AsyncExitStack() as stack:
        late = await begin_late(stack, database, 10)
        await record(store, *(f"older {n}" for n in range(SEVERAL_PAGES)))
        found: list[str] = []
        for n in range(2 * SEVERAL_PAGES // PAGE):
            found += await drain(store)
            await record(store, f"new {n}")
            if late:
                await late.pop().commit()
        for transaction in late:
            await transaction.commit()
    found += await drain_all(store)

    everything, _ = await read_all(store, token)
    assert len(everything) == len(set(everything))
    assert sorted(everything) == sorted(found)
    assert found[:SEVERAL_PAGES] == [f"old {n}" for n in range(SEVERAL_PAGES)]
    assert len(found) >= 2 * SEVERAL_PAGES + 7


async def test_a_pass_that_fails_is_made_again(store: Store):
    """In the middle of a window, and in one that is smaller than a page."""
    await declare(store)
    await record(store, *"abcdefg")
    for limit in (3, 3, 10):
        async with store.draining(DRAINER, limit) as taken:
            assert taken is not None
            await moved(taken.transaction, taken.page)
            failed = titles(taken.page.events)

        assert failed == await drain(store, limit=limit)


@pytest.mark.parametrize("limit", [3, 5, 10])
async def test_a_reader_may_stop_after_any_event(store: Store, limit: int):
    """Inside a window that is larger than a page, as large, or smaller: it goes on with the next event."""
    await record(store, *"abcde")
    position, found = (await store.place()).beginning, []
    for _ in "abcde":
        page = await store.read_on(position_in(position.text()), limit)
        found.append(page.events[0].type)
        position = page.after(1)

    assert list("abcde") == found
    assert ([], position) == await read_all(store, position)


# --- after a restore ------------------------------------------------------------------------------------------------

FAR = 5_000_000_000
"""A transaction's number in a cluster that is much older than the tests'."""


class Restored:
    """What a restore from another cluster leaves: rows that name the transactions of that one."""

    def __init__(self, database: Database, first: int) -> None:
        self._database, self._first = database, first

    def snapshot(self, begin: int, end: int, *open_: int) -> str:
        numbers = ",".join(str(self._first + each) for each in open_)
        return f"{self._first + begin}:{self._first + end}:{numbers}"

    async def bring(self, events: dict[str, int], position: Position) -> None:
        """Events by title, with the transactions that recorded them, and a drainer."""
        async with self._database.connection() as connection:
            for title, xid in events.items():
                await connection.execute(
                    "insert into ostinato.events (id, type, payload, occurred_at, recorded_at, xid) "
                    "values ($1, $2, '{}', now(), now(), $3::text::xid8)",
                    *(new_id(), title, str(self._first + xid)),
                )
            await connection.execute(
                "insert into ostinato.drainers (name, glob, origin, position, lineage, created_at) "
                "values ($1, '**', 'tests', $2, 'elsewhere', now())",
                *(DRAINER, position.text()),
            )
        await self.notice()

    async def notice(self) -> None:
        """The ledger's row was written by the restore."""
        await self._database.query("update ostinato_ledger set lineage = 'elsewhere', written_by = '3'")


@pytest.fixture(params=["older", "of the same age"])
async def restored(request: pytest.FixtureRequest, database: Database) -> Restored:
    """From a cluster that is older than this one; or of the same age, so that numbers soon mean something here."""
    ((now,),) = await database.query("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    return Restored(database, FAR if request.param == "older" else now + 20)


@only_postgres
async def test_after_a_restore_nothing_is_missed_and_nothing_repeated(
    database: Database, store: Store, restored: Restored
):
    """What the snapshot had not seen comes, what it had seen does not, and what is recorded here does, however."""
    read = Position(after=restored.snapshot(0, 10, 3, 5))
    await restored.bring({"seen": 1, "open": 3, "seen too": 9, "open too": 5, "unseen": 10, "unseen too": 30}, read)
    async with store.begin() as transaction:
        await transaction.execute("savepoint one")
        await transaction.apply([an_event("in a savepoint")])
        await transaction.execute("release savepoint one")
        await transaction.commit()
    await record(store, "here")

    assert await store.undrained(DRAINER)
    found = await drain_all(store, limit=2)
    assert ["open", "open too", "unseen", "unseen too", "in a savepoint", "here"] == found

    await later_transactions(database, 60)
    await record(store, "later")
    assert ["later"] == await drain_all(store)


@only_postgres
async def test_after_a_restore_the_lag_is_what_is_still_to_come(database: Database, store: Store, restored: Restored):
    """Neither what the other cluster's readers had seen counts, nor what came along as if it were new."""
    read = Position(after=restored.snapshot(0, 4), until=restored.snapshot(0, 20, 9), last=3, end=6)
    await restored.bring({"seen": 1, "read": 5, "read too": 8, "open": 9, "unread": 7, "unread too": 6}, read)
    await declare(store, "new")
    await record(store, "here", "here too")
    for name in (DRAINER, "new"):
        await drain(store, name, limit=1)
        ((position,),) = await database.query(f"select position from ostinato_drainers where name = '{name}'")
        lag = await store.lag(position_in(position), 100)
        await later_transactions(database, 60)
        assert lag == len(await drain_all(store, name, limit=2))
    assert 8 == await store.lag((await store.place()).beginning, 100)


@only_postgres
async def test_a_restore_in_the_middle_of_a_window(store: Store, restored: Restored):
    """Of the window what was read of it does not come again."""
    read = Position(after=restored.snapshot(0, 2), until=restored.snapshot(0, 9, 4), last=4, end=5)
    in_window = {"read": 3, "open at its end": 4, "read too": 8, "in window": 7}
    await restored.bring({"seen": 1, **in_window, "beyond": 9}, read)
    await record(store, "here")

    assert ["open at its end", "in window", "beyond", "here"] == await drain_all(store)


@only_postgres
async def test_who_begins_after_a_restore_gets_all_of_it_once(database: Database, store: Store, restored: Restored):
    """Though the transactions that recorded it are still to come here, by their numbers."""
    await restored.bring({"a": 1, "b": 10, "c": 3}, Position(after=restored.snapshot(0, 20)))
    await declare(store, "new")
    before = await store.place()
    await record(store, "here")

    assert ["a", "b", "c", "here"] == await drain_all(store, "new", limit=2)
    found, position = await read_all(store, before.beginning, limit=2)
    assert ["a", "b", "c", "here"] == found
    assert ["here"] == (await read_all(store, before.now))[0]

    await later_transactions(database, 60)
    assert [] == await drain_all(store, "new")
    assert ([], position) == await read_all(store, position)


@only_postgres
async def test_a_restored_ledger_has_another_lineage_and_keeps_it(database: Database, store: Store, restored: Restored):
    """So that whoever keeps a position himself can see that it does not fit any more."""
    before = (await store.place()).lineage
    await restored.notice()

    after = (await store.place()).lineage
    await record(store, "here")
    await database.query("vacuum (full, freeze) ostinato_ledger")

    assert before != after
    assert after == (await store.place()).lineage


@only_postgres
async def test_a_copy_of_the_files_keeps_its_lineage(database: Database, store: Store):
    """The test's database is one: copied from a template, whose transactions are the same cluster's."""
    ((lineage, restored_to),) = await database.query("select lineage, restored_to from ostinato_ledger")
    await record(store, "here")

    assert 0 == restored_to
    assert (await store.place()).lineage.startswith(f"{lineage}/")


@only_postgres
async def test_the_ledger_has_one_row(database: Database):
    """Data alone, restored into a schema that has one already, must not bring a second."""
    with pytest.raises(asyncpg.UniqueViolationError):
        await database.query("insert into ostinato_ledger select * from ostinato_ledger")


@only_postgres
async def test_a_second_restore_in_the_middle_of_the_first_is_refused(
    database: Database, store: Store, restored: Restored
):
    """Two clusters' numbers are too many to tell apart; the error says what to do, and nothing is written."""
    await restored.bring({"a": 1, "b": 2, "c": 3}, Position(after=restored.snapshot(0, 1)))
    assert ["a"] == await drain(store, limit=1)
    ((before,),) = await database.query("select position from ostinato_drainers")
    await restored.notice()

    with pytest.raises(LedgerMoved, match="drainers reset radio"):
        await drain(store)
    assert [(before,)] == await database.query("select position from ostinato_drainers")


@only_postgres
async def test_looking_is_one_statement(store: Store):
    """Drainers look before and after each pass."""
    assert isinstance(store, FlowStore)
    await declare(store)
    for expected in (False, True):
        asked: list[Call] = []
        assert expected == await store.read(_noting(store.peeking(DRAINER), asked))
        assert ["peek_drainer"] == [call.block for call in asked]
        await record(store, "here")


def _noting(flow: Flow[bool], asked: list[Call]) -> Flow[bool]:
    try:
        call = next(flow)
        while True:
            asked.append(call)
            call = flow.send((yield call))
    except StopIteration as end:
        return bool(end.value)


@only_postgres
async def test_a_restored_ledger_without_events(store: Store, restored: Restored):
    """All that is recorded here comes."""
    await restored.bring({}, Position(after=restored.snapshot(0, 20)))
    await record(store, "here")

    assert ["here"] == await drain_all(store)


# --- what others do -------------------------------------------------------------------------------------------------


async def insert(connection: Any, title: str) -> None:
    """Records in the caller's own transaction, on PostgreSQL."""
    given = f'[{{"id": "{new_id()}", "type": "{title}", "payload": {{}}}}]'
    await connection.execute("select ostinato.insert_events($1::text::jsonb)", given)


async def later_transactions(database: Database, count: int = 3) -> None:
    """Transactions that begin now and end."""
    if database.dialect == "postgresql":
        async with database.connection() as connection:
            for _ in range(count):
                await connection.fetchval("select pg_current_xact_id()::text")


async def begin_late(stack: AsyncExitStack, database: Database, count: int) -> list[Any]:
    """Transactions that have recorded and are not committed; where there can be such."""
    late = []
    for number in range(count if database.dialect == "postgresql" else 0):
        connection = await stack.enter_async_context(database.connection())
        transaction = connection.transaction()
        await transaction.start()
        await insert(connection, f"late {number}")
        late.append(transaction)
    return late
