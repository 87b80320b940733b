"""Roles: what each may do and what not, statement by statement, and real processes that work with no more than that."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from click.testing import CliRunner, Result
from msgspec import json

from ostinato import App
from ostinato.cli import main
from ostinato.errors import ConfigError, NotMigrated, StoreError, UnknownFunction
from ostinato.resources.doctor import Level
from ostinato.testing.postgres import Server
from tests.system.databases import PostgresDatabase, all_ended, effects, run_row, states
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew

INSERT = "insert into ostinato.runs (id, function, queue, state, run_at, due, invoked_by, created_at, input{}) values "
ROW = "(gen_random_uuid(), 'work', 'default', 'ready', now(), 0, 'api', now(), '{}'"


def enqueuing(**fields: object) -> str:
    """An enqueue as anybody would type it."""
    request = {"function": "work", "input": {"item": 1}, **fields}
    return f"select * from ostinato.enqueue('{json.encode(request).decode()}')"


def recording(**fields: object) -> str:
    """A record as anybody would type it."""
    request = {"type": "it.happened", "payload": {"item": 1}, **fields}
    return f"select * from ostinato.record('{json.encode(request).decode()}')"


PRUNING = "select set_config('ostinato_ledger.retention', 'on', true); delete from ostinato.events"


class Roles(NamedTuple):
    """Names of roles that may log in. The stranger was given nothing."""

    producer: str
    worker: str
    reader: str
    stranger: str


@pytest.fixture(scope="session")
def roles(system_server: Server) -> Iterator[Roles]:
    """Roles belong to the whole server, so they are made once."""
    made = Roles(*(f"{kind}_{secrets.token_hex(4)}" for kind in Roles._fields))
    with psycopg.connect(system_server.dsn(), autocommit=True) as connection:
        for role in made:
            connection.execute(f'create role "{role}" login'.encode())
        yield made
        for role in made:
            connection.execute(f'drop role "{role}"'.encode())


@pytest.fixture
def database(postgres_database: PostgresDatabase) -> PostgresDatabase:
    return postgres_database


@pytest.fixture
async def granted(database: PostgresDatabase, roles: Roles) -> PostgresDatabase:
    """A database with a known function, on which the roles were given what they need."""
    await give(database, roles)
    database.query(
        "insert into ostinato.functions (name, queue, attempts, timeout, retry, declared_at) "
        "values ('work', 'default', 1, 60, '{}', now())"
    )
    database.query(enqueuing(key="there", unique="forever"))
    database.query(recording(idempotency_key="there"))
    return database


async def give(database: PostgresDatabase, roles: Roles) -> None:
    migrations = App(database.url).migrations()
    await migrations.grant(producers=[roles.producer], workers=[roles.worker], readers=[roles.reader])


def url_of(database: PostgresDatabase, role: str) -> str:
    """The same database, as another role."""
    parts = urlsplit(database.url)
    return parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()


async def run_cli(*args: str) -> Result:
    """The program, in a thread, since it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, main, list(args), prog_name="ostinato")


# --- role by statement -----------------------------------------------------------------------------------------------

PRODUCER, WORKER, READER = "producer", "worker", "reader"
ALL = (PRODUCER, WORKER, READER)

MATRIX: list[tuple[str, tuple[str, ...]]] = [
    # enqueuing
    (enqueuing(), (PRODUCER, WORKER)),
    (enqueuing(key="k", unique="1d"), (PRODUCER, WORKER)),
    (enqueuing(key="k", force=True), (PRODUCER, WORKER)),
    (enqueuing(queue="mail", delay="1h", priority=5), (PRODUCER, WORKER)),
    (INSERT.format("") + ROW + ")", (PRODUCER, WORKER)),
    (INSERT.format(", worker") + ROW + ", 'w')", (WORKER,)),
    (INSERT.format(", output") + ROW + ", '1')", (WORKER,)),
    (INSERT.format(", lease_no") + ROW + ", 7)", (WORKER,)),
    # recording, and looking at events
    (recording(), (PRODUCER, WORKER)),
    (recording(idempotency_key="k", entity=["product", "1"], ordered=True), (PRODUCER, WORKER)),
    (recording(idempotency_key="there"), (PRODUCER, WORKER)),
    ("select id, idempotency_key from ostinato.events", ALL),
    ("select type, payload from ostinato.events", (WORKER, READER)),
    ("select last_value from ostinato.events_sequence", (WORKER, READER)),
    ("select * from ostinato.drainers", (WORKER, READER)),
    ("update ostinato.drainers set position = 'x'", (WORKER,)),
    ("select * from ostinato.subscriptions", (WORKER, READER)),
    ("update ostinato.subscriptions set enabled = false", (WORKER,)),
    ("select * from ostinato.parked", (WORKER, READER)),
    ("delete from ostinato.parked", (WORKER,)),
    ("select nextval('ostinato.subscriptions_changes')", (WORKER,)),
    (PRUNING, (WORKER,)),
    ("truncate ostinato.events", ()),
    # looking at runs
    ("select id, queue, state from ostinato.runs", ALL),
    ("select input from ostinato.runs", (WORKER, READER)),
    ("select output, error, metadata from ostinato.runs", (WORKER, READER)),
    ("select key from ostinato.runs", (WORKER, READER)),
    ("select 1 from ostinato.runs for update", (WORKER,)),
    ("select * from ostinato.attempts", (WORKER, READER)),
    # changing runs
    ("update ostinato.runs set state = 'cancelled'", (WORKER,)),
    ("update ostinato.runs set input = '{}'", (WORKER,)),
    ("delete from ostinato.runs", (WORKER,)),
    ("delete from ostinato.attempts", (WORKER,)),
    # keys
    ("select function, key, run_id from ostinato.keys", ALL),
    ("select mode, until from ostinato.keys", (WORKER, READER)),
    ("update ostinato.keys set run_id = 'x'", (WORKER,)),
    ("delete from ostinato.keys", (WORKER,)),
    ("select ostinato.drop_old_keys('[]')", (PRODUCER, WORKER)),
    # functions, queues, workers, schedules
    ("select name, queue, priority from ostinato.functions", ALL),
    ("select input_schema from ostinato.functions", (WORKER, READER)),
    ("update ostinato.functions set queue = 'x'", (WORKER,)),
    ("select name, max_waiting from ostinato.queues", ALL),
    ("insert into ostinato.queues (name) values ('mail')", (WORKER,)),
    ("update ostinato.queues set paused = true", (WORKER,)),
    ("select * from ostinato.workers", (WORKER, READER)),
    ("delete from ostinato.workers", (WORKER,)),
    ("select * from ostinato.schedules", (WORKER, READER)),
    ("update ostinato.schedules set paused = true", (WORKER,)),
    # the schema itself
    ("select version, name, checksum, applied_at from ostinato.migrations", ALL),
    ("insert into ostinato.migrations (version, name, checksum) values (999, 'x', 'x')", ()),
    ("update ostinato.migrations set checksum = 'x'", ()),
    ("delete from ostinato.migrations", ()),
    ("create table ostinato.mine (x integer)", ()),
    ("alter table ostinato.runs add column mine integer", ()),
    ("create index on ostinato.runs (function)", ()),
    ("drop table ostinato.attempts", ()),
    ("truncate ostinato.runs", ()),
    ("create function ostinato.mine() returns void language sql as ''", ()),
    ("create or replace function ostinato.clock() returns timestamptz language sql volatile return now()", ()),
    ("create rule mine as on insert to ostinato.runs do instead nothing", ()),
]  # fmt: skip


async def test_role_by_statement(granted: PostgresDatabase, roles: Roles):
    """Every statement, as every role: allowed or refused as the table says, and a stranger may do nothing at all."""
    wrong = []
    for kind in Roles._fields:
        connection = await asyncpg.connect(url_of(granted, getattr(roles, kind)))
        for statement, allowed in MATRIX:
            refusal = await attempt(connection, statement)
            if (refusal is None) != (kind in allowed):
                wrong.append((kind, statement, refusal or "was allowed"))
        await connection.close()
    assert wrong == []


async def attempt(connection: asyncpg.Connection, statement: str) -> str | None:
    """Executes it and undoes that; answers why it was refused, if it was for want of rights."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(statement)
        return None
    except asyncpg.InsufficientPrivilegeError as error:
        return str(error)
    finally:
        await transaction.rollback()


# --- really working -------------------------------------------------------------------------------------------------


@pytest.fixture
async def crew(granted: PostgresDatabase, roles: Roles, log: Log, gates: Gates) -> AsyncIterator[Crew]:
    """Workers that log in as the worker role. Users' own tables are theirs to grant."""
    granted.query(f'grant select, insert on effects to "{roles.worker}"')
    crew = Crew(PostgresDatabase(url_of(granted, roles.worker)), log, gates)
    yield crew
    await crew.close()


async def test_a_producer_and_a_worker_do_their_work(granted: PostgresDatabase, roles: Roles, crew: Crew):
    """Plain runs, keyed, many, delayed, with metadata, in a transaction: enqueued by one role, done by another."""
    granted.query("delete from ostinato.runs")
    worker = await crew.start("items", poll="30s")
    await worker.asleep()

    async with App(url_of(granted, roles.producer)) as producer:
        await producer.enqueue("write", {"item": 1})
        await producer.enqueue_many("write", [{"item": item} for item in range(2, 20)])
        first = await producer.enqueue("write", {"item": 20}, key="k", unique="1d", metadata={"a": 1}, priority=5)
        again = await producer.enqueue("write", {"item": 20}, key="k", unique="1d")
        await producer.enqueue("write", {"item": 21}, delay="10ms", queue="default", timeout="5m")
        async with producer.transaction() as tx:
            await tx.enqueue("write", {"item": 22})
            await tx.record("it.happened", entity=("item", "22"), ordered=True)
    await all_ended(granted)

    assert (first.id, False) == (again.id, again.created)
    assert list(range(1, 23)) == [item for _, item, _ in effects(granted)]


async def test_a_producer_with_its_own_connection(granted: PostgresDatabase, roles: Roles):
    """`conn=` takes a producer's rights as well."""
    connection = await asyncpg.connect(url_of(granted, roles.producer))
    async with App(url_of(granted, roles.producer)) as producer, connection.transaction():
        handle = await producer.enqueue("work", {"item": 1}, conn=connection, key="own")
        event = await producer.record("it.happened", conn=connection, idempotency_key="own")
        assert event == (await producer.record_many("it.happened", [{"idempotency_key": "own"}], conn=connection))[0]
    await connection.close()

    assert ("ready", "own") == run_row(granted, handle.id, "state, key")


async def test_a_producer_meets_caps_and_unknown_names(granted: PostgresDatabase, roles: Roles):
    """The refusals of the door are its own, not want of rights."""
    granted.query("insert into ostinato.queues (name, max_waiting) values ('small', 1)")
    async with App(url_of(granted, roles.producer)) as producer:
        await producer.enqueue("work", {"item": 1}, queue="small")
        with pytest.raises(Exception, match="may hold 1 waiting runs"):
            await producer.enqueue("work", {"item": 2}, queue="small")
        with pytest.raises(UnknownFunction, match="did you mean 'work'"):
            await producer.enqueue("wrok", {"item": 1})


async def test_what_a_producer_may_not_do_names_the_remedy(granted: PostgresDatabase, roles: Roles):
    """Results, views and cancelling are refused, with a way out, and change nothing."""
    async with App(url_of(granted, roles.producer)) as producer:
        handle = await producer.enqueue("work", {"item": 1})
        for forbidden in (handle.result(timeout=5), handle.status(), handle.cancel(), producer.runs.list()):
            with pytest.raises(StoreError, match=r"permission denied .* ostinato migrate grant"):
                await forbidden
    assert ("ready",) == run_row(granted, handle.id, "state")


async def test_workers_rescue_retry_and_cancel_with_their_rights(
    granted: PostgresDatabase, roles: Roles, crew: Crew, log: Log, gates: Gates
):
    """A worker is killed and another takes over; an app with a worker's rights cancels and retries."""
    granted.query("delete from ostinato.runs")
    victim = await crew.start("items", lease="1s")
    async with App(url_of(granted, roles.worker)) as app:
        held = await app.enqueue("hold", {"item": 1})
        await log.heard("holding", run=held.id)
        victim.kill()
        await crew.start("items", lease="1s")
        await log.heard("RunRescued", run_id=held.id)
        gates.open("go")
        assert await held.result(timeout=15) is None

        later = await app.enqueue("write", {"item": 2}, delay="1h")
        assert await later.cancel()
        await app.runs.retry(later.id)
        assert 2 == await later.result(timeout=15)
    assert {"completed": 2} == states(granted)


async def test_a_reader_reads_and_only_reads(granted: PostgresDatabase, roles: Roles):
    """The command line's views work for it; enqueuing is refused in one line."""
    url = url_of(granted, roles.reader)

    for reads in (["runs", "list"], ["workers", "list"], ["queues", "list"], ["migrate", "verify"]):
        result = await run_cli("--database-url", url, *reads)
        assert result.exit_code == 0, result.output
    result = await run_cli("--database-url", url, "enqueue", "work", '{"item": 1}')

    assert result.exit_code == 1
    assert "permission denied" in result.stderr
    assert "migrate grant" in result.stderr


RIGHTS = """
    select c.relname, c.relacl::text,
           array_agg(a.attname || a.attacl::text order by a.attnum) filter (where a.attacl is not null)
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relnamespace = 'ostinato'::regnamespace and c.relkind = 'r'
    group by c.oid, c.relname order by c.relname
"""

# --- granting -------------------------------------------------------------------------------------------------------


async def missing(database: PostgresDatabase, role: str | None = None) -> list[str]:
    """What the doctor says about grants, as the owner or as another role."""
    url = database.url if role is None else url_of(database, role)
    findings = await App(url).doctor.examine()
    return [finding.seen for finding in findings if finding.check == "grants" and finding.level is Level.ERROR]


async def test_granting_twice_changes_nothing(granted: PostgresDatabase, roles: Roles):
    """And the doctor finds nothing missing, whoever asks."""
    before = granted.query(RIGHTS)

    await give(granted, roles)

    assert before == granted.query(RIGHTS)
    assert [] == await missing(granted)
    for role in (roles.producer, roles.worker, roles.reader):
        assert [] == await missing(granted, role)


async def test_what_a_later_migration_adds_is_missed_and_then_granted(granted: PostgresDatabase, roles: Roles):
    """The doctor names the role, the table and the remedy; granting again heals it."""
    granted.query("create table ostinato.limits (id integer generated by default as identity)")
    granted.query("alter default privileges revoke execute on functions from public")
    granted.query("create function ostinato.admit() returns void language sql as ''")

    found = await missing(granted)

    assert [f"the reader {roles.reader} lacks select on the table limits"] == [f for f in found if roles.reader in f]
    assert len(found) == 2
    assert "execute on the function admit" in next(f for f in found if roles.worker in f)

    await give(granted, roles)
    assert [] == await missing(granted)


async def test_a_right_that_was_taken_away_is_missed(granted: PostgresDatabase, roles: Roles):
    """One column of a producer's is enough."""
    granted.query(f'revoke select (priority) on ostinato.functions from "{roles.producer}"')

    assert [f"the producer {roles.producer} lacks select on the table functions"] == await missing(granted)


async def test_a_role_without_any_rights_is_told(granted: PostgresDatabase, roles: Roles):
    """The doctor as a stranger cannot look at the schema, and says why."""
    findings = await App(url_of(granted, roles.stranger)).doctor.examine()

    assert any("permission denied for schema" in finding.seen for finding in findings)
    assert any(f"the role {roles.stranger} has no rights" in finding.seen for finding in findings)


async def test_the_printed_sql_does_the_same(database: PostgresDatabase, roles: Roles):
    """`--print` changes nothing; what it prints, executed by hand, grants everything."""
    flags = ["--producer", roles.producer, "--worker", roles.worker, "--reader", roles.reader]
    printed = await run_cli("--database-url", database.url, "migrate", "grant", *flags, "--print")
    assert printed.exit_code == 0
    assert [(None,)] == database.query("select nspacl from pg_namespace where nspname = 'ostinato'")

    connection = await asyncpg.connect(database.url)
    await connection.execute(printed.stdout)
    await connection.close()

    by_hand = database.query(RIGHTS)
    assert (await run_cli("--database-url", database.url, "migrate", "grant", *flags)).exit_code == 0
    assert by_hand == database.query(RIGHTS)
    assert [] == await missing(database)


async def test_only_the_owner_can_grant(granted: PostgresDatabase, roles: Roles):
    """Somebody else is refused, and nothing is half done."""
    with pytest.raises(StoreError, match="run this as the owner"):
        await App(url_of(granted, roles.worker)).migrations().grant(producers=[], workers=[], readers=[roles.stranger])
    assert any("has no rights" in said for said in await missing(granted, roles.stranger))


async def test_a_role_that_is_not_there(database: PostgresDatabase):
    """It is named, with the statement that makes it."""
    with pytest.raises(
        ConfigError, match=r"no role is named 'nobody\"s'; make it first: create role \"nobody\"\"s\" login"
    ):
        await App(database.url).migrations().grant(producers=['nobody"s'], workers=[], readers=[])


async def test_without_tables_nothing_is_granted(system_server: Server, roles: Roles):
    """The schema comes first."""
    with system_server.temporary_database() as url, pytest.raises(NotMigrated, match="ostinato migrate up"):
        await App(url).migrations().grant(producers=[roles.producer], workers=[], readers=[])


async def test_the_command_says_what_it_did(database: PostgresDatabase, roles: Roles):
    """A line for each role; without a role it is a mistake."""
    command = ["--database-url", database.url, "migrate", "grant"]

    flags = ["--producer", roles.producer, "--worker", roles.worker, "--reader", roles.reader]
    said = (await run_cli(*command, *flags)).stdout

    assert [
        f"{roles.producer} may enqueue",
        f"{roles.worker} may work",
        f"{roles.reader} may read",
    ] == said.splitlines()
    assert (await run_cli(*command)).exit_code == 2


@pytest.mark.parametrize("flags", [["--worker", "jobs"], ["--worker", "jobs", "--print"]])
async def test_sqlite_has_no_roles(sqlite_database: PostgresDatabase, flags: list[str]):
    """It says so, and what to use instead."""
    result = await run_cli("--database-url", sqlite_database.url, "migrate", "grant", *flags)

    assert result.exit_code == 1
    assert "SQLite has no roles" in result.stderr
