"""How SQLite executes our statements."""

from __future__ import annotations

import itertools

import pytest

from ostinato.store.ports import Store
from ostinato.store.sqlite import SqliteStore
from ostinato.store.sqlite.store import load_blocks
from tests.store.databases import SqliteDatabase
from tests.store.samples import (
    a_run,
    a_worker,
    accepted,
    claim,
    completed,
    failed,
    runs,
)

PLANS = {
    "claimable": "ostinato_runs_ready (queue=? AND suspect=? AND (due,id)>(?,?))",
    "claim": "INTEGER PRIMARY KEY (rowid=?)",
    "claimed": "INTEGER PRIMARY KEY (rowid=?)",
    "completable": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "complete_runs": "INTEGER PRIMARY KEY (rowid=?)",
    "settle_runs": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "start_runs": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "release_due": "ostinato_runs_held (queue=? AND run_at<?)",
    "next_due": "ostinato_runs_held (queue=?)",
    "cancel_runs": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "cancelled_of": "ostinato_runs_running (worker=?)",
    "lock_orphans": "ostinato_runs_running (worker=?)",
    "free_keys": "ostinato_keys_run (run_id=?)",
    "key_holders": "sqlite_autoindex_ostinato_keys_1 (function=? AND key=?)",
    "retry_runs": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "prune_runs": "ostinato_runs_ended (state=? AND ended_at<?)",
    "prune_keys": "ostinato_keys_until (until<?)",
    "outcomes": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "overdue": "ostinato_runs_finish_by (finish_by<?)",
    "watched_runs": "ostinato_runs_watched (function=?)",
    "ends": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "fenced_runs": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "save_steps": "sqlite_autoindex_ostinato_runs_1 (id=?)",
    "step_memos": "PRIMARY KEY (run_id=?)",
    "end_children": "PRIMARY KEY (run_id=? AND id=?)",
    "meet_waits": "PRIMARY KEY (run_id=? AND id=?)",
    "wake_runs": "sqlite_autoindex_ostinato_runs_1 (id=?)",
}


async def many_runs(store: Store) -> None:
    """Runs in every state, with keys and attempts."""
    keyed = [a_run(key=f"k{number}", unique="until", unique_for=60.0 + number) for number in range(200)]
    await accepted(store, *keyed, *runs(200, delay=60.0))
    for _ in range(2):
        claimed = await claim(store, 80, worker=await a_worker(store))
        await accepted(store, *map(completed, claimed[:30]), *map(failed, claimed[30:50]))


@pytest.mark.parametrize("analyzed", ["never", "when small", "when large"])
@pytest.mark.parametrize("name", sorted(PLANS))
async def test_statements_walk_their_index(file: SqliteDatabase, name: str, analyzed: str):
    """Whatever the table's size and statistics, no statement of the engine scans or sorts the runs or their steps."""
    if analyzed == "when large":
        await many_runs(file.store)
    if analyzed != "never":
        await file.query("analyze")
    block = load_blocks("ostinato")[name]
    async with file.connection() as connection:
        connection.create_function("ostinato_now", 0, lambda: 0)
        plan = [
            row[3] for row in connection.execute(f"explain query plan {block.text}", dict.fromkeys(block.parameters))
        ]

    assert any(line.endswith(PLANS[name]) for line in plan), plan
    assert not any(line.startswith(("SCAN ostinato_runs", "SCAN ostinato_steps")) for line in plan), plan
    if name != "lock_orphans":  # at most the orphans of one death
        assert not any("TEMP B-TREE" in line for line in plan), plan


async def test_the_clock_is_asked_once_a_statement(file: SqliteDatabase):
    """A statement has one now, however many rows it touches; every call costs a change of threads."""
    ticks = itertools.count(10**15)
    store = SqliteStore(file.url, synchronous="OFF", clock=lambda: next(ticks))
    await store.commit(runs(100))
    await store.close()

    assert [(10**15, 100)] == await file.query("select run_at, count(*) from ostinato_runs group by run_at")
    assert 10**15 + 1 == next(ticks)
