"""Connections that break, and connections that are all taken: a worker goes on, and loses nothing."""

from __future__ import annotations

import time

import pytest

from ostinato import App
from tests.system.databases import Database, all_ended, assert_one_effect_each, run_row, states
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.processes import Crew

TRANSACTIONS = 10
"""As many as there are connections for them."""


async def test_a_claim_whose_answer_was_lost_is_given_back(app: App, crew: Crew, database: Database, log: Log):
    """The database thinks that the worker has the run, the worker knows nothing of it, and its lease goes on."""
    await crew.start("items", lease="1s", faults=["loses_the_answer_to_a_claim"])

    handle = await app.enqueue("work", {"item": 1})

    await log.heard("worked", timeout=8)
    await all_ended(database)
    assert run_row(database, handle.id, "state, attempt") == ("completed", 1)


async def test_a_start_that_could_not_be_written_down_is_not_a_start(
    app: App, crew: Crew, database: Database, log: Log
):
    """A run with a single attempt has not used it up when the database was gone before its handler began."""
    await crew.start("stopping", faults=["fails_to_mark_a_start"])

    handle = await app.enqueue("quick_once", {})

    await all_ended(database)
    assert run_row(database, handle.id, "state, attempt") == ("completed", 1)
    assert len(log.find("started once")) == 1


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_commits_that_break_together_do_not_wait_for_each_other(app: App, crew: Crew, database: Database):
    """Each asks whether it was committed after all, and needs a connection for that while others hold theirs."""
    await crew.start("items", faults=["breaks_ten_commits_together"])

    await app.enqueue_many("write", [{"item": n} for n in range(2 * TRANSACTIONS)])

    await all_ended(database)
    assert states(database) == {"completed": 2 * TRANSACTIONS}
    assert_one_effect_each(database, range(2 * TRANSACTIONS))


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_transactions_that_take_long_do_not_keep_the_worker_from_its_duties(
    app: App, crew: Crew, database: Database, log: Log, gates: Gates
):
    """Handlers hold every connection that they can have; runs that become due are released all the same."""
    await crew.start("items")
    await app.enqueue_many("write_and_hold", [{"item": n} for n in range(2 * TRANSACTIONS)])
    await log.heard("written", count=TRANSACTIONS)
    began = time.monotonic()

    await app.enqueue("work", {"item": 1}, delay="100ms")

    [worked] = await log.heard("worked", timeout=10)
    assert worked["at"] - began < 3.0
    gates.open("go")
    await all_ended(database)
