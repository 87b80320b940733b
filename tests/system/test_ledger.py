"""The ledger under everything that can happen to it: nothing is lost or comes twice, entities keep their order."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec import Raw, json

from ostinato import App
from ostinato.ids import new_id
from ostinato.model.change import CursorMoved, EventRecorded
from ostinato.model.event import WORKFLOW_RUNNER, Subscription
from ostinato.store.ports import DeclaredDrainer, DeclaredFunction, Store
from ostinato.testing.postgres import PostgresServer
from ostinato.testing.postgres.binaries import binaries_of
from tests.system import gates as gate_files
from tests.system import log as log_lines
from tests.system.conftest import PREFERRED, prepare
from tests.system.databases import Database, PostgresDatabase, until
from tests.system.gates import Gates
from tests.system.ledger import DRAINERS, KEYS, POINTS, READERS, SHARED, WRITERS, store_of
from tests.system.log import Log
from tests.system.processes import ROOT

TABLES = (
    "create table entities (id text primary key, version integer not null)",
    "create table tokens (reader text primary key, token text not null)",
    "create table seen (place {}, reader text not null, entity text not null, version integer not null)",
)
PLACES = {"postgresql": "bigserial primary key", "sqlite": "integer primary key autoincrement"}
TRANSACTIONS = {"postgresql": "50", "sqlite": "40"}
LONGEST = {"postgresql": "0.08", "sqlite": "0.004"}
"""On SQLite a transaction keeps everybody else from writing."""
RESTARTS = 2
KILLS = 4


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that may be restarted."""
    with PostgresServer(PREFERRED) as server:
        yield server


@pytest.fixture
def restartable(server: PostgresServer) -> Database:
    database = PostgresDatabase(server.create_database("radio"))
    prepare(database)
    return database


class Programs:
    """Processes of `tests.system.ledger` on one database; they end with the test."""

    def __init__(self, log: Log, gates: Gates) -> None:
        self._log, self._gates = log, gates
        self._started: list[subprocess.Popen[bytes]] = []
        self.errors = gates.folder / "programs.log"

    def start(self, database: Database, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **{f"SYSTEM_{name.upper()}": value for name, value in settings.items()},
            "OSTINATO_DATABASE_URL": database.url,
            log_lines.VARIABLE: str(self._log.writable),
            gate_files.VARIABLE: str(self._gates.folder),
        }
        with self.errors.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.ledger", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[self._log.writable],
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


@pytest.fixture
async def programs(log: Log, gates: Gates, request: pytest.FixtureRequest) -> AsyncIterator[Programs]:
    programs = Programs(log, gates)
    yield programs
    programs.close()
    if programs.errors.exists():
        request.node.add_report_section("teardown", "programs", programs.errors.read_text(errors="replace")[-5000:])


class Readers:
    """The readers' processes, of which any may be killed; another takes its place."""

    def __init__(self, database: Database, programs: Programs) -> None:
        self._database, self._programs = database, programs
        follow = ["follow", "token", "naive"] if database.dialect == "postgresql" else ["follow", "token"]
        commands = [*(["drain", name] for name in DRAINERS), follow]
        self._processes = [(command, programs.start(database, *command)) for command in commands]

    def kill_one(self, chance: random.Random) -> None:
        place = chance.randrange(len(self._processes))
        command, process = self._processes[place]
        process.kill()
        process.wait()
        self._processes[place] = (command, self._programs.start(self._database, *command))


async def furnish(app: App, database: Database) -> None:
    """The tables of writers and readers, and the drainers at the beginning."""
    for statement in TABLES:
        database.query(statement.format(PLACES[database.dialect]))
    for entity in [*SHARED, *WRITERS, *DRAINERS]:
        database.query(f"insert into entities values ('{entity}', 0)")
    store = store_of(app)
    beginning = (await store.place()).beginning.text()
    await store.declare_drainers([DeclaredDrainer(name, "**", "tests", beginning) for name in DRAINERS])
    database.query(f"insert into tokens values ('token', '{beginning}'), ('naive', '0')")


def written(database: Database) -> dict[str, int]:
    """How many events each entity has."""
    return {entity: version for entity, version in database.query("select id, version from entities") if version}


def found(database: Database, reader: str) -> dict[str, list[int]]:
    """What a reader was given of each entity, in its order."""
    given = defaultdict(list)
    for entity, version in database.query(f"select entity, version from seen where reader = '{reader}' order by place"):
        given[entity].append(version)
    return dict(given)


def count(database: Database) -> dict[str, int]:
    counted = dict(database.query("select reader, count(*) from seen group by reader"))
    return {reader: counted.get(reader, 0) for reader in READERS if reader != "naive"}


async def all_is_read(database: Database) -> None:
    """Until every reader has been given as many events as there are."""

    def missing() -> set[int]:
        return {sum(written(database).values()) - read for read in count(database).values()}

    await until(missing, {0}, timeout=20)


def assert_exactly(database: Database) -> None:
    """Nothing lost, nothing twice, nothing inverted: of each entity 1, 2, 3, … by every reader."""
    expected = {entity: list(range(1, version + 1)) for entity, version in written(database).items()}
    assert set(SHARED) | set(DRAINERS) <= expected.keys()
    for reader in [*DRAINERS, "token"]:
        assert expected == found(database, reader), reader


@contextmanager
def unrelated_transaction(database: Database) -> Iterator[None]:
    """A transaction of somebody else that has written and does not end."""
    with psycopg.connect(database.url) as connection:
        connection.execute("create table if not exists unrelated (n integer)")
        connection.commit()
        connection.execute("insert into unrelated values (1)")
        yield
        connection.rollback()


def start_writers(database: Database, programs: Programs) -> list[subprocess.Popen[bytes]]:
    """Two processes; the clock of one is two seconds behind."""
    settings = {"transactions": TRANSACTIONS[database.dialect], "longest": LONGEST[database.dialect]}
    return [
        programs.start(database, "write", *WRITERS[:2], **settings),
        programs.start(database, "write", *WRITERS[2:], behind="2", **settings),
    ]


async def progress(database: Database, events: int) -> None:
    """Until one of the readers has been given so many more."""
    before = max(count(database).values())
    await until(lambda: max(count(database).values()) >= before + events, True)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_every_reader_gets_every_event_once_and_in_order(
    app: App, database: Database, programs: Programs, log: Log
):
    """On SQLite: writers that roll back, drainers that record events themselves, readers that are killed."""
    await furnish(app, database)
    readers, chance = Readers(database, programs), random.Random(4)
    start_writers(database, programs)
    for _ in range(KILLS):
        await progress(database, 20)
        readers.kill_one(chance)

    await log.heard("written", count=2, timeout=30)
    await all_is_read(database)
    assert_exactly(database)


@pytest.mark.timeout(90)
async def test_so_do_those_on_a_server_that_is_restarted(
    restartable: Database, server: PostgresServer, programs: Programs, log: Log
):
    """Late commits, rollbacks, savepoints, a clock that is behind, a long transaction, restarts, and killed readers.

    A reader that goes by numbers alone loses events in the same run, which shows what the others are spared."""
    database = restartable
    async with App(database.url) as app:
        await furnish(app, database)
    readers, chance = Readers(database, programs), random.Random(4)
    start_writers(database, programs)
    for _ in range(RESTARTS):
        await progress(database, 30)
        readers.kill_one(chance)
        await progress(database, 30)
        await asyncio.to_thread(server.restart, "immediate")
    with unrelated_transaction(database):
        await log.heard("written", count=2, timeout=30)
        await all_is_read(database)

    assert_exactly(database)
    assert sum(map(len, found(database, "naive").values())) < sum(written(database).values())


async def test_two_processes_record_the_same_keys(database: Database, programs: Programs, log: Log, gates: Gates):
    """In bulks and one by one: one event for each key, whose id both are told."""
    programs.start(database, "keys")
    programs.start(database, "keys")
    await log.heard("ready", count=2)

    gates.open("go")
    await log.heard("written", count=2)

    table = "ostinato.events" if database.dialect == "postgresql" else "ostinato_events"
    events = dict(database.query(f"select idempotency_key, id from {table}"))
    assert sorted(KEYS) == sorted(events)
    assert Counter({(key, events[key]): 2 for key in KEYS}) == Counter(
        (line["key"], line["id"]) for line in log.find("recorded")
    )


async def test_a_pass_that_is_killed_anywhere_starts_one_run_for_each_event(
    app: App, database: Database, programs: Programs, log: Log
):
    """Before and after it takes the drainer, reads, dispatches and commits; the next one goes on where it stands."""
    store = store_of(app)
    await store.declare([DeclaredFunction("mix", "default", attempts=1, timeout=60.0, retry=Raw(b"[]"))], [])
    await store.declare_subscriptions([Subscription(name="prices", glob="price.*", function="mix", origin="code")])
    beginning = (await store.place()).beginning.text()
    await store.declare_drainers([DeclaredDrainer(WORKFLOW_RUNNER, "**", "built-in", beginning)])

    programs.start(database, "passes")
    await log.heard("drained")

    assert dict.fromkeys(POINTS, True) == {line["point"]: line["killed"] for line in log.find("ended")}
    events, drainers = (
        f"ostinato{'.' if database.dialect == 'postgresql' else '_'}{table}" for table in ("events", "drainers")
    )
    matching = database.query(f"select 'event:' || type || ':' || id, 1 from {events} where type like 'price.%'")
    started = database.query(f"select invoked_by, count(*) from {database.runs} group by invoked_by")
    assert 2 * (len(POINTS) + 1) == len(matching)
    assert sorted(matching) == sorted(started)
    assert [(4 * (len(POINTS) + 1),)] == database.query(f"select processed from {drainers}")


# --- dump and restore -----------------------------------------------------------------------------------------------


async def drain(store: Store, name: str, *, limit: int, passes: int = 1000) -> list[int]:
    """The `n` of what a drainer is given, in so many passes or until there is nothing left."""
    given: list[int] = []
    for _ in range(passes):
        async with store.draining(name, limit) as taken:
            assert taken is not None
            if not taken.page.events:
                break
            moved = CursorMoved(name, taken.page.end.text(), len(taken.page.events))
            await taken.transaction.apply([moved])
            await taken.transaction.commit()
            given += [event.payload["n"] for event in taken.page.events]
    return given


async def record(store: Store, numbers: range) -> None:
    await store.commit([EventRecorded(new_id(), "counted", Raw(json.encode({"n": n}))) for n in numbers])


def copy(source: str, target: str, folder: Path) -> None:
    """By way of pg_dump and psql."""
    _, binaries = binaries_of(PREFERRED)
    dump = folder / "dump.sql"
    subprocess.run([binaries / "pg_dump", "--file", dump, source], check=True)
    restore: list[str | Path] = [
        binaries / "psql",
        "-qX",
        "-v",
        "ON_ERROR_STOP=1",
        "-o",
        os.devnull,
        "-f",
        dump,
        target,
    ]
    subprocess.run(restore, check=True)


def use_up_transactions(url: str, until_: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"do $$ begin while pg_current_xact_id()::text::bigint < {until_} loop commit; end loop; end $$".encode()
        )


def next_transaction(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row: Any = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
        return int(row[0])


async def test_a_dump_is_restored_into_a_younger_cluster(server: PostgresServer, tmp_path: Path):
    """Drainers notice, and go on: nothing is missed and nothing repeated, neither then nor when the numbers of
    transactions reach those that came along. A drainer that begins there gets everything once."""
    source = server.create_database("radio")
    await App(source).migrations().up()
    use_up_transactions(source, next_transaction(source) + 3000)
    async with App(source) as app:
        store = store_of(app)
        beginning = (await store.place()).beginning.text()
        await store.declare_drainers([DeclaredDrainer(name, "**", "tests", beginning) for name in DRAINERS])
        await record(store, range(50))
        await drain(store, "billing", limit=100)
        await record(store, range(50, 150))
        halfway = await drain(store, "mailing", limit=40, passes=2)

    with PostgresServer(PREFERRED) as younger:
        target = younger.create_database("radio")
        copy(source, target, tmp_path)
        assert next_transaction(target) < next_transaction(source)
        async with App(target) as app:
            store = store_of(app)
            await record(store, range(150, 160))
            assert list(range(50, 160)) == await drain(store, "billing", limit=40)
            assert list(range(160)) == halfway + await drain(store, "mailing", limit=40)
            await store.declare_drainers([DeclaredDrainer("new", "**", "tests", beginning)])
            assert list(range(160)) == await drain(store, "new", limit=40)

            use_up_transactions(target, next_transaction(source))
            await record(store, range(160, 170))
            for name in ("billing", "mailing", "new"):
                assert list(range(160, 170)) == await drain(store, name, limit=40)
            assert list(range(170)) == await drain(store, "search", limit=40)
