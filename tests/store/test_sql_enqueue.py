"""Enqueuing by plain SQL, on PostgreSQL: the same door, keys, caps and wake-ups as from Python."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec import Raw, json, structs

from ostinato.errors import InvalidInput, InvalidOption, QueueFull, UnknownFunction
from ostinato.ids import new_id
from ostinato.model.run import State
from ostinato.store.ports import DeclaredFunction, DeclaredQueue, Rung, queue_topic
from tests.store.databases import Database, only_postgres
from tests.store.samples import DECLARED, FUNCTION, QUEUE, a_worker, claim, view
from tests.store.test_listening import Ear

pytestmark = only_postgres

GUIDE = Path(__file__).parents[2] / "docs/guides/sql.md"
ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Any]:
    """A connection of somebody who has no library of ours."""
    async with database.connection() as connection:
        yield connection


async def enqueue(connection: Any, request: Any) -> list[tuple[str, bool]]:
    rows = await connection.fetch("select id, created from ostinato.enqueue($1::jsonb)", json.encode(request).decode())
    return [(row["id"], row["created"]) for row in rows]


async def refused(connection: Any, request: Any) -> asyncpg.PostgresError:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await enqueue(connection, request)
    return caught.value


# --- what it makes --------------------------------------------------------------------------------------------------


async def test_a_run_by_its_function_alone(database: Database, connection: Any):
    """The function's queue is used, the input is empty, and the run says that it came by SQL."""
    [(run_id, created)] = await enqueue(connection, {"function": FUNCTION})

    run = await view(database.store, run_id)
    assert created
    assert (State.READY, QUEUE, {}, "sql", 0) == (run.state, run.queue, run.input, run.invoked_by, run.priority)
    assert (None, None, None) == (run.key, run.timeout, run.metadata)


async def test_everything_that_can_be_said(database: Database, connection: Any):
    """Each field reaches the run."""
    request = {
        "function": "elsewhere",
        "input": {"track": 7, "tags": ["a", None]},
        "key": "track:7",
        "unique": "1d",
        "queue": "mail",
        "delay": "1h 30m",
        "priority": -600,
        "timeout": "500ms",
        "metadata": {"tenant": "acme"},
    }
    [(run_id, _)] = await enqueue(connection, request)

    run = await view(database.store, run_id)
    assert ("elsewhere", "mail", State.HELD, "not_due") == (run.function, run.queue, run.state, run.reason)
    assert ({"track": 7, "tags": ["a", None]}, {"tenant": "acme"}) == (run.input, run.metadata)
    assert ("track:7", -600, 0.5) == (run.key, run.priority, run.timeout)
    assert timedelta(minutes=90) == run.run_at - run.created_at
    [(seconds,)] = await database.query(
        "select extract(epoch from until - ostinato.clock())::integer from ostinato_keys"
    )
    assert 86390 <= seconds <= 86400


@pytest.mark.parametrize("at", ["2031-01-31T09:00:00Z", "2031-01-31 10:00:00.000+01:00", "2031-01-31T04:00-0500"])
async def test_an_instant(database: Database, connection: Any, at: str):
    """`run_at` is ISO 8601 with a time zone, whatever that of the session is."""
    await connection.execute("set timezone = 'Asia/Tokyo'")

    [(run_id, _)] = await enqueue(connection, {"function": FUNCTION, "run_at": at})

    assert datetime(2031, 1, 31, 9, tzinfo=UTC) == (await view(database.store, run_id)).run_at


async def test_an_instant_of_the_databases_own(database: Database, connection: Any):
    """What jsonb_build_object makes of a timestamptz is understood."""
    row = await connection.fetchrow(
        "select e.id, at from (select now() + interval '1 day' as at) t, "
        "ostinato.enqueue(jsonb_build_object('function', 'mix', 'run_at', at)) e"
    )
    assert row["at"] == (await view(database.store, row["id"])).run_at


async def test_nulls_are_not_given(database: Database, connection: Any):
    """As columns that are null give them."""
    nothing = dict.fromkeys(("input", "key", "unique", "queue", "delay", "run_at", "priority", "timeout", "metadata"))

    [(run_id, created)] = await enqueue(connection, {"function": FUNCTION, **nothing})

    assert created
    assert (await view(database.store, run_id)).metadata is None


async def test_what_the_function_declares_applies(database: Database, connection: Any):
    """Its queue and its priority, unless the request says otherwise; its timeout is asked for when it starts."""
    declared = DeclaredFunction("urgent", "mail", attempts=1, timeout=5.0, retry=Raw(b"[]"), priority=60)
    await database.store.declare([declared], [])

    (given, _), (own, _) = await enqueue(connection, [{"function": "urgent"}, {"function": "urgent", "priority": 0}])

    assert ("mail", 60) == ((run := await view(database.store, given)).queue, run.priority)
    assert 0 == (await view(database.store, own)).priority


async def test_many_come_back_in_order(database: Database, connection: Any):
    """The ids of an array are in its order, sort by time, and are ULIDs like those of Python."""
    before = new_id()
    answers = [await enqueue(connection, [{"function": FUNCTION, "input": {"n": n}} for n in range(500)])]
    answers += [await enqueue(connection, {"function": FUNCTION}) for _ in range(5)]

    ids = [run_id for answer in answers for run_id, _ in answer]
    assert ids == sorted(set(ids))
    assert all(ULID.fullmatch(run_id) for run_id in ids)
    assert before[:9] <= ids[0][:9] <= ids[-1][:9] <= new_id()[:9]
    rows = await database.query("select (input->>'n')::integer from ostinato_runs where input ? 'n' order by id")
    assert [(n,) for n in range(500)] == rows


async def test_ids_of_the_same_millisecond_come_in_order(connection: Any):
    """A trigger that fires for each row makes many in one."""
    ids = await connection.fetchval("select array(select ostinato.new_ids(1) from generate_series(1, 300))")
    assert ids == sorted(set(ids))
    assert len({run_id[:10] for run_id in ids}) < len(ids)


async def test_nothing_makes_nothing(database: Database, connection: Any):
    """Null, as jsonb_agg gives it for no rows, and an empty array."""
    assert [] == await enqueue(connection, [])
    assert [] == await connection.fetch("select * from ostinato.enqueue(null)")
    assert 0 == await database.count("runs")


# --- keys and caps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unique", [None, "active", "failed", "forever", "1d", 60])
async def test_a_key_that_is_taken_gives_the_run_that_holds_it(database: Database, connection: Any, unique: Any):
    """One run, however often it is asked for; also inside one array, and from Python."""
    request = {"function": FUNCTION, "key": "k", "unique": unique}
    [(first, created)] = await enqueue(connection, request)

    again = await enqueue(connection, [request, {"function": FUNCTION}, request])

    assert created
    assert [(first, False), (first, False)] == [again[0], again[2]]
    assert again[1][1]
    assert 2 == await database.count("runs")


async def test_a_forced_run_gets_the_key(database: Database, connection: Any):
    """It is new, and the key is its own; false and null are as if it had not been said."""
    request = {"function": FUNCTION, "key": "k"}
    [(first, _)] = await enqueue(connection, request)
    [(second, created)] = await enqueue(connection, {**request, "force": True})

    assert (True, False) == (created, first == second)
    assert [(second, False)] == await enqueue(connection, {**request, "force": False})
    assert [(second, False)] == await enqueue(connection, {**request, "force": None})


async def test_a_run_has_the_time_that_its_function_declares(database: Database, connection: Any):
    """Also where the queue is named."""
    await database.store.declare([structs.replace(DECLARED, start_timeout=60.0, finish_timeout=600.0)], [])
    await enqueue(connection, [{"function": FUNCTION}, {"function": FUNCTION, "queue": "mail", "delay": 30}])

    seconds = "extract(epoch from start_by - run_at)::integer, extract(epoch from finish_by - run_at)::integer"
    assert [(60, 600)] * 2 == await database.query(f"select {seconds} from ostinato_runs")


async def test_a_key_is_free_again_when_its_time_is_over(database: Database, connection: Any):
    """A period counts from the enqueue, by the database's clock."""
    request = {"function": FUNCTION, "key": "k", "unique": "1h"}
    [(first, _)] = await enqueue(connection, request)
    await database.advance(3599)
    assert [(first, False)] == await enqueue(connection, request)

    await database.advance(2)

    [(second, created)] = await enqueue(connection, request)
    assert created
    assert second != first


async def test_a_cap_refuses(database: Database, connection: Any):
    """A full queue takes nothing more, and the error says what may be done."""
    await database.store.declare([], [DeclaredQueue(QUEUE, max_waiting=2)])
    await enqueue(connection, [{"function": FUNCTION}, {"function": FUNCTION}])

    error = await refused(connection, {"function": FUNCTION})

    assert ("OS002", 2) == (error.sqlstate, await database.count("runs"))
    assert "raise max_waiting" in str(error)


# --- wake-ups and transactions --------------------------------------------------------------------------------------


async def test_it_wakes_who_sleeps_when_it_commits(database: Database, connection: Any):
    """The bell rings with the commit."""
    ear = Ear(database)
    await ear.listener.start()
    try:
        await ear.working()
        await ear.armed(queue_topic(QUEUE))
        ear.forget()
        async with connection.transaction():
            await enqueue(connection, {"function": FUNCTION})
        assert await ear.next(Rung) == Rung(QUEUE)
    finally:
        await ear.listener.stop()


async def test_a_rollback_leaves_nothing(database: Database, connection: Any):
    """Neither a run nor a key, also of a savepoint."""
    transaction = connection.transaction()
    await transaction.start()
    await enqueue(connection, {"function": FUNCTION, "key": "a"})
    await transaction.rollback()
    async with connection.transaction():
        savepoint = connection.transaction()
        await savepoint.start()
        await enqueue(connection, {"function": FUNCTION, "key": "b"})
        await savepoint.rollback()

    assert (0, 0) == (await database.count("runs"), await database.count("keys"))


async def test_from_a_trigger(database: Database, connection: Any):
    """For each row, and for all rows of a statement; a statement that concerns no rows enqueues nothing."""
    await connection.execute(
        """
        create table tracks (id integer primary key, title text);
        create function each_track() returns trigger language plpgsql as $$
        begin
            perform ostinato.enqueue(jsonb_build_object('function', 'mix', 'key', 'row:' || new.id,
                                                        'input', jsonb_build_object('track', new.id)));
            return null;
        end $$;
        create function all_tracks() returns trigger language plpgsql as $$
        begin
            perform ostinato.enqueue((
                select jsonb_agg(jsonb_build_object('function', 'mix', 'input', to_jsonb(t))) from fresh t));
            return null;
        end $$;
        create trigger each_track after insert on tracks for each row execute function each_track();
        create trigger all_tracks after insert on tracks referencing new table as fresh
            for each statement execute function all_tracks();
        """
    )
    await connection.execute("insert into tracks select n, 'x' from generate_series(1, 3) n")
    await connection.execute("insert into tracks select 9, 'x' where false")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute("insert into tracks values (4, 'x'), (1, 'x')")

    assert 6 == await database.count("runs")
    assert 3 == await database.count("runs", "input ? 'title'")
    assert [("row:1",), ("row:2",), ("row:3",)] == await database.query("select key from ostinato_keys order by key")


async def test_a_worker_claims_it(database: Database, connection: Any):
    """It is a run like any other."""
    [(run_id, _)] = await enqueue(connection, {"function": FUNCTION, "input": {"n": 1}})

    [claimed] = await claim(database.store, worker=await a_worker(database.store))

    assert (run_id, FUNCTION, {"n": 1}) == (claimed.id, claimed.function, json.decode(claimed.input))


# --- what it refuses ------------------------------------------------------------------------------------------------

DEEP = json.decode(b'{"a":' * 201 + b"1" + b"}" * 201)


BAD_REQUESTS: list[tuple[str, Any, str]] = [
    ("OS001", {"function": "remix"}, 'no function is named "remix"'),
    ("OS003", 7, "a request must be an object and is 7"),
    ("OS003", [{"function": FUNCTION}, "x"], '[1]: a request must be an object and is "x"'),
    ("OS003", {}, "function is missing"),
    ("OS003", {"function": ""}, 'function is "" and must be the name'),
    ("OS003", {"function": 5}, "function is 5"),
    ("OS003", {"function": "x" * 201, "queue": "q"}, "must be the name of a function"),
    ("OS003", {"function": FUNCTION, "inputs": {}}, 'unknown field "inputs"; fields are delay, force, function,'),
    ("OS003", {"function": FUNCTION, "rank": None}, 'unknown field "rank"'),
    ("OS004", {"function": FUNCTION, "input": [1]}, 'input of "mix" must be an object and is [1]'),
    ("OS004", {"function": FUNCTION, "input": {"a": "x" * 1048569}}, "has 1048577 bytes as JSON and may"),
    ("OS004", {"function": FUNCTION, "input": DEEP}, "nested deeper than 200 levels"),
    ("OS004", {"function": FUNCTION, "input": {"n": Raw(b"9" * 4300)}}, "a number of more than 4214 digits"),
    ("OS003", {"function": FUNCTION, "priority": 601}, "priority is 601 and must be a whole number"),
    ("OS003", {"function": FUNCTION, "priority": -601}, "priority is -601"),
    ("OS003", {"function": FUNCTION, "priority": 1.5}, "priority is 1.5"),
    ("OS003", {"function": FUNCTION, "priority": "1"}, 'priority is "1"'),
    ("OS003", {"function": FUNCTION, "key": ""}, "must be text of 1 to 500 characters"),
    ("OS003", {"function": FUNCTION, "key": "x" * 501}, "must be text of 1 to 500 characters"),
    ("OS003", {"function": FUNCTION, "key": 42}, "key is 42"),
    ("OS003", {"function": FUNCTION, "key": "k", "force": "yes"}, 'force is "yes" and must be true or false'),
    ("OS003", {"function": FUNCTION, "unique": "forever"}, "needs a key"),
    ("OS003", {"function": FUNCTION, "key": "k", "unique": "sometimes"}, 'must be "active", "failed", "forever"'),
    ("OS003", {"function": FUNCTION, "key": "k", "unique": "1 lightyear"}, "unique is"),
    ("OS003", {"function": FUNCTION, "key": "k", "unique": True}, "unique is true"),
    ("OS003", {"function": FUNCTION, "queue": "a:b"}, "queue is"),
    ("OS003", {"function": FUNCTION, "queue": "a\nb"}, "queue is"),
    ("OS003", {"function": FUNCTION, "queue": "x" * 101}, "queue is"),
    ("OS003", {"function": FUNCTION, "queue": ""}, "queue is"),
    ("OS003", {"function": FUNCTION, "delay": "soon"}, 'delay is "soon" and must be a duration'),
    ("OS003", {"function": FUNCTION, "delay": -1}, "must be from zero to a thousand years"),
    ("OS003", {"function": FUNCTION, "delay": "1001w 9999999d"}, "must be from zero to a thousand years"),
    ("OS003", {"function": FUNCTION, "delay": [1]}, "must be a duration"),
    ("OS003", {"function": FUNCTION, "timeout": 0}, "must be longer than zero"),
    ("OS003", {"function": FUNCTION, "run_at": "2031-01-31T09:00:00"}, "must be an instant with its time zone"),
    ("OS003", {"function": FUNCTION, "run_at": "2031-02-31T09:00:00Z"}, "must be an instant"),
    ("OS003", {"function": FUNCTION, "run_at": "infinity"}, "must be an instant"),
    ("OS003", {"function": FUNCTION, "run_at": 5}, "must be an instant"),
    ("OS003", {"function": FUNCTION, "run_at": "2031-01-31T09:00:00Z", "delay": 1}, "give delay or run_at, not"),
    ("OS003", {"function": FUNCTION, "metadata": [1]}, "metadata is [1] and must be an object"),
    ("OS004", {"function": FUNCTION, "metadata": {"a": "x" * 16384}}, "metadata has"),
]  # fmt: skip


async def test_bad_requests_change_nothing(database: Database, connection: Any):
    """Each is refused with what was given and a remedy; in an array it takes the others along."""
    for code, request, said in BAD_REQUESTS:
        error = await refused(connection, request)

        assert code == error.sqlstate, request
        assert said in str(error), request
        assert error.hint, request
    assert (0, 0) == (await database.count("runs"), await database.count("keys"))


@pytest.mark.parametrize("key", ["x" * 500, "ü" * 500])
async def test_the_longest_key(connection: Any, key: str):
    """Characters count, not bytes."""
    assert (await enqueue(connection, {"function": FUNCTION, "key": key}))[0][1]


async def test_the_largest_input(connection: Any):
    """The blanks that jsonb is written with do not count: what Python takes is taken."""
    numbers = list(range(100_000, 249_795))
    assert 1048572 <= len(json.encode({"n": numbers})) <= 1048576
    assert (await enqueue(connection, {"function": FUNCTION, "input": {"n": numbers}}))[0][1]


async def test_a_named_queue_needs_no_known_function(database: Database, connection: Any):
    """As from Python: a worker of that queue will know it."""
    [(run_id, _)] = await enqueue(connection, {"function": "remix", "queue": "mail"})

    assert ("remix", "mail") == ((run := await view(database.store, run_id)).function, run.queue)


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"function": "remix"}, UnknownFunction),
        ({"function": FUNCTION, "priority": 601}, InvalidOption),
        ({"function": FUNCTION, "input": 1}, InvalidInput),
    ],
)
async def test_through_our_transactions_its_errors_are_ours(database: Database, request_: Any, kind: type[Exception]):
    """`tx.fetch` raises what `tx.enqueue` would."""
    async with database.store.begin() as tx:
        with pytest.raises(kind):
            await tx.fetch("select * from ostinato.enqueue($1)", request_)


async def test_a_full_queue_through_our_transactions(database: Database):
    """So does a cap."""
    await database.store.declare([], [DeclaredQueue(QUEUE, max_waiting=1)])
    async with database.store.begin() as tx:
        with pytest.raises(QueueFull):
            await tx.fetch("select * from ostinato.enqueue($1)", [{"function": FUNCTION}] * 2)


# --- the guide ------------------------------------------------------------------------------------------------------


async def test_the_guides_sql_runs(database: Database, connection: Any):
    """Every block of SQL in the guide, in order."""
    functions = ("greet", "ship", "enrich_track")
    await database.store.declare(
        [DeclaredFunction(name, QUEUE, attempts=1, timeout=5.0, retry=Raw(b"[]")) for name in functions], []
    )
    blocks = re.findall(r"^```sql\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

    for block in blocks:
        await connection.execute(block)

    assert len(blocks) >= 4
    assert {(name,) for name in functions} == set(await database.query("select distinct function from ostinato_runs"))
