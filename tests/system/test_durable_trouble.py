"""Durable functions in trouble: stopped, frozen, without a database, without room. Each has one outcome, and what was
done before is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from msgspec import json

from ostinato import App
from ostinato.testing.postgres import PostgresServer
from tests.system.conftest import PREFERRED, prepare
from tests.system.databases import Database, PostgresDatabase, all_ended, run_row, until
from tests.system.durability import TABLE, check, steps, table
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew

LARGE = 300_000
NO_ROOM = """
    create function no_room() returns trigger language plpgsql as
    $$ begin raise exception 'could not extend file: No space left on device' using errcode = 'disk_full'; end $$;
    create trigger no_room before insert or update on ostinato.steps for each row
        when (length(new.output) > 1000) execute function no_room();
    create trigger no_room before insert on durable for each row
        when (length(new.value) > 1000) execute function no_room()
"""
ROOM = "drop function no_room cascade"


@pytest.fixture(autouse=True)
def rows(database: Database) -> None:
    database.query(TABLE)


# --- stopping -------------------------------------------------------------------------------------------------------


async def test_a_step_that_is_cut_short_by_a_shutdown_goes_on_elsewhere(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """The run is given back with its attempt; the step before is remembered, and this one begins again."""
    leaving = await crew.start("durable", shutdown_grace="100ms")
    handle = await app.enqueue("slow_step", {})
    await log.heard("inside", pid=leaving.pid)

    leaving.terminate()
    assert await leaving.exit_code() == 0
    assert run_row(database, handle.id, "state, attempt, worker") == ("ready", 0, None)
    await crew.start("durable")
    gates.open("go")

    await all_ended(database)
    assert run_row(database, handle.id, "state, attempt, lease_no") == ("completed", 1, 2)
    effects = check(database, log, attempts=1)
    assert {step: len(lines) for (_, step), lines in effects.of.items()} == {"first": 1, "second": 1}


# --- freezing -------------------------------------------------------------------------------------------------------


async def freeze_and_take_over(app: App, crew: Crew, log: Log, *, tx: bool, faults: list[str]) -> tuple[str, int]:
    """A worker stands still in a step past its lease, another has begun the step, and the first goes on."""
    frozen = await crew.start("durable", lease="1s", faults=faults)
    handle = await app.enqueue("stubborn", {"tx": tx})
    await log.heard("inside", pid=frozen.pid)
    frozen.freeze()
    await crew.start("durable", lease="1s")
    await log.heard("inside", lease_no=2)
    frozen.thaw()
    return handle.id, frozen.pid


@pytest.mark.parametrize("tx", [False, True], ids=["plain", "tx"])
async def test_a_frozen_worker_saves_no_step_after_its_lease(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates, tx: bool
):
    """It does not stop when told to, and does the step to its end: neither the memo nor its rows are accepted."""
    run_id, frozen = await freeze_and_take_over(app, crew, log, tx=tx, faults=[])

    await log.heard("StaleWriteRefused", pid=frozen)
    assert steps(database, "status") == []
    assert database.query("select * from durable") == []
    assert log.find("got") == []

    gates.open("go")
    await all_ended(database)
    assert run_row(database, run_id, "state, lease_no") == ("completed", 2)
    check(database, log)
    assert [line["lease_no"] for line in log.find("got")] == [2]


@pytest.mark.parametrize("tx", [False, True], ids=["plain", "tx"])
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_without_the_fence_a_frozen_worker_does_save_its_step(
    app: App, crew: Crew, database: Database, log: Log, tx: bool
):
    """The proof that the test above can fail: the same with the fence taken out of the frozen worker's statements."""
    await freeze_and_take_over(app, crew, log, tx=tx, faults=["without_fence"])

    [stale] = await log.heard("got", lease_no=1)
    assert [json.decode(output) for (output,) in steps(database, "output")] == [stale["value"]]


# --- a database that goes away --------------------------------------------------------------------------------------


class TestRestart:
    """PostgreSQL is restarted without warning; SQLite has nothing that could be."""

    @pytest.fixture
    def server(self) -> Iterator[PostgresServer]:
        with PostgresServer(PREFERRED, fsync=True) as server:
            yield server

    @pytest.fixture
    def database(self, server: PostgresServer) -> Database:
        database = PostgresDatabase(server.create_database("radio"))
        prepare(database)
        return database

    async def test_a_restart_between_two_steps_costs_nothing(
        self, app: App, crew: Crew, database: Database, log: Log, gates: Gates, server: PostgresServer
    ):
        """The run has a single attempt. It goes on where it was, in the worker that it was in."""
        await crew.start("durable")
        handle = await app.enqueue("two", {})
        await log.heard("between")

        await asyncio.to_thread(server.restart, "immediate")
        gates.open("go")

        await all_ended(database, timeout=20)
        assert run_row(database, handle.id, "state, attempt, lease_no") == ("completed", 1, 1)
        effects = check(database, log, attempts=1)
        assert {step: len(lines) for (_, step), lines in effects.of.items()} == {"first": 1, "second": 1}

    async def test_a_step_that_ends_while_the_database_is_away_is_saved_when_it_is_back(
        self, app: App, crew: Crew, database: Database, log: Log, gates: Gates, server: PostgresServer
    ):
        """What was done is known in the worker, and nowhere else: it tries until it is told."""
        await crew.start("durable")
        handle = await app.enqueue("slow_step", {})
        await log.heard("inside")
        await asyncio.to_thread(server.stop, "immediate")

        gates.open("go")
        await log.heard("StoreTroubled", service="steps")
        await asyncio.to_thread(server.start)

        await all_ended(database, timeout=20)
        assert run_row(database, handle.id, "state, attempt, lease_no") == ("completed", 1, 1)
        assert len(log.find("effect", step="second")) == 1
        check(database, log, attempts=1)


# --- a database without room ----------------------------------------------------------------------------------------


async def test_a_result_for_which_there_is_no_room_is_saved_when_there_is(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """The step is not done again, and the attempt goes on. SQLite's file may not grow; PostgreSQL answers as it does
    on a full disk."""
    await crew.start("durable")
    handle = await app.enqueue("fill", {"size": LARGE, "tx": False})
    await run_out_of_room(database, log, gates)

    await log.heard("StoreTroubled", service="steps")
    assert run_row(database, handle.id, "state, attempt, lease_no") == ("running", 1, 1)
    make_room(database, gates)

    await all_ended(database)
    assert run_row(database, handle.id, "state, attempt, lease_no") == ("completed", 1, 1)
    assert len(log.find("effect", step="large")) == 1
    check(database, log, attempts=1)


async def test_a_transaction_for_which_there_is_no_room_is_tried_again(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """Nothing of it is kept, so that it can be done again; nobody is to blame, and no attempt is used up."""
    await crew.start("durable")
    handle = await app.enqueue("fill", {"size": LARGE, "tx": True})
    await run_out_of_room(database, log, gates)

    interrupted = f"select count(*) >= 2 from {table(database, 'attempts')} where code = 'store_unavailable'"
    await until(lambda: bool(database.query(interrupted)[0][0]), True)
    make_room(database, gates)

    await all_ended(database)
    assert run_row(database, handle.id, "state, attempt") == ("completed", 1)
    assert len(log.find("effect", step="small")) == 1
    check(database, log, attempts=1)


async def run_out_of_room(database: Database, log: Log, gates: Gates) -> None:
    await log.heard("between")
    if database.dialect == "postgresql":
        database.query(NO_ROOM)
    gates.open("go")


def make_room(database: Database, gates: Gates) -> None:
    if database.dialect == "postgresql":
        database.query(ROOM)
    gates.open("room")


# --- a result that cannot be kept -----------------------------------------------------------------------------------


async def test_a_result_that_cannot_be_stored_is_the_steps_failure(app: App, crew: Crew, database: Database, log: Log):
    """For good: doing it again would not help. The function may catch it; otherwise its run has failed."""
    await crew.start("durable")
    uncaught = await app.enqueue("opaque", {"catch": False})
    caught = await app.enqueue("opaque", {"catch": True})

    await all_ended(database)
    assert run_row(database, uncaught.id, "state, attempt, lease_no") == ("failed", 1, 1)
    assert run_row(database, caught.id, "state, attempt, lease_no") == ("completed", 1, 1)
    assert await caught.result() == "unserialisable_result"
    for status, error in steps(database, "status, error"):
        assert (status, json.decode(error)["code"]) == ("failed", "unserialisable_result")
    assert len(log.find("effect")) == 2
    check(database, log, attempts=1)
