"""Apps and clients in processes that fork, as web servers and task runners do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.system.databases import Database
from tests.system.processes import ROOT


def program(name: str, database: Database, *, python: str = sys.executable) -> str:
    """Runs one of tests/sync/forking.py to its end; nothing may be complained about, not even at exit."""
    ended = subprocess.run(
        [python, "-W", "error", "-m", "tests.sync.forking", name],
        cwd=ROOT,
        env={**os.environ, "OSTINATO_DATABASE_URL": database.url},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (0, "") == (ended.returncode, ended.stderr)
    return ended.stdout


def enqueued_by(database: Database) -> dict[str, int]:
    """How many runs there are of parents, children and so on."""
    name = "input ->> 'name'"
    rows = database.query(f"select {name}, count(*) from {database.runs} where function = 'greet' group by {name}")
    return dict(rows)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("preload", {"parent": 9, "child": 9}),
        ("prefork", {"parent": 10, "child": 30}),
        ("idle_children", {"parent": 2}),
        ("children_of_a_loop", {"parent": 5, "child": 9}),
        ("loop_at_rest", {"parent": 4, "child": 6}),
        ("forked_pool", {"parent": 6, "child": 18}),
        ("spawned_pool", {"parent": 6, "child": 18}),
        ("inside_a_transaction", {"parent": 2}),
        ("handlers_that_fork", {"grandchild": 3}),
        ("threads_at_the_end", {"parent": 1}),
    ],
)
def test_a_program_that_forks(name: str, expected: dict[str, int], database: Database):
    """Parent and children work side by side, each with connections of its own, and end without a complaint."""
    program(name, database)
    assert expected == enqueued_by(database)


def test_forks_while_threads_are_inside_calls(database: Database):
    """Every call that was under way in the parent ends there, and nothing acknowledged is lost."""
    acknowledged = program("busy_threads", database).split()
    assert {row[0] for row in database.query(f"select id from {database.runs}")} == set(acknowledged)
    assert 20 == enqueued_by(database)["child"]
    assert 20 < enqueued_by(database)["thread"]
