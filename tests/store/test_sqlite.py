"""What only the store on SQLite has to get right: one writer, its thread, and a file that others use too."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ostinato.errors import ConfigError, QueueFull, StoreError, StoreUnavailable, TransactionMisused, UnknownFunction
from ostinato.ids import new_id
from ostinato.model.change import Committed
from ostinato.store.ports import DeclaredQueue, Store
from ostinato.store.sqlite import SqliteStore, connecting, writer
from ostinato.store.sqlite.naming import path_of
from ostinato.store.sqlite.store import load_blocks
from ostinato.store.sqlite.watch import FAST_FOR, FASTEST, SLOWEST, pause_after
from tests.store.databases import SqliteDatabase
from tests.store.samples import (
    DECLARED,
    QUEUE,
    a_run,
    a_worker,
    accepted,
    claim,
    claimed_runs,
    completed,
    enqueue,
    failed,
    runs,
)

T = TypeVar("T")


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """A file with the schema and one declared function, and a store that is open."""
    file = SqliteDatabase(f"sqlite:///{tmp_path}/radio.db")
    await file.open()
    await file.store.declare([DECLARED], [])
    yield file
    await file.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every transaction of a writer."""
    begun: list[int] = []
    begin = connecting.begin

    def counted(*arguments: Any) -> None:
        begun.append(1)
        begin(*arguments)

    monkeypatch.setattr(writer, "begin", counted)
    return begun


async def together(store: Store, *commits: Any) -> list[Any]:
    """The answers to what was asked for while the writer was busy, and which is therefore one batch."""
    async with store.begin():
        tasks = [outside(commit) for commit in commits]
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


def outside(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that does not know of the transaction around it, like those of other people."""
    return asyncio.create_task(work, context=Context())


# --- group commit ---------------------------------------------------------------------------------------------------


async def test_what_waits_shares_a_commit(file: SqliteDatabase, begun: list[int]):
    """A hundred enqueues that came while the writer was busy are one transaction."""
    answers = await together(file.store, *(file.store.commit([a_run()]) for _ in range(100)))

    assert [Committed()] * 100 == answers
    assert 100 == await file.count("runs")
    assert 2 == len(begun)  # the one that kept it busy, and theirs


async def test_different_errands_share_a_commit(file: SqliteDatabase, begun: list[int]):
    """Claims, settlements and leases go together as well."""
    store = file.store
    worker = await a_worker(store)
    one, two = await claimed_runs(store, 2, worker=worker)
    begun.clear()

    answers = await together(
        store,
        store.commit([completed(one)]),
        store.renew(worker, stopping=False),
        store.commit([completed(two)]),
        claim(store, worker=worker),
    )

    assert [Committed(), True, Committed(), []] == answers
    assert 2 == len(begun)


async def test_a_failing_errand_fails_alone(file: SqliteDatabase):
    """One that is refused, among others in the same commit, hurts nobody and leaves nothing."""
    store = file.store
    good, bad, other = a_run(), [a_run(key="k"), a_run(function="mxi")], a_run()

    answers = await together(store, store.commit([good]), store.commit(bad), store.commit([other]))

    assert [Committed(), Committed()] == [answers[0], answers[2]]
    assert isinstance(answers[1], UnknownFunction)
    assert {good.id, other.id} == await store.views.existing([good.id, other.id, *(run.id for run in bad)])
    assert 0 == await file.count("keys")


async def test_a_cap_refuses_the_last_of_a_batch(file: SqliteDatabase):
    """Insertions that are done as one are refused one by one: what fits comes in."""
    store = file.store
    await store.declare([], [DeclaredQueue(QUEUE, max_waiting=3)])

    answers = await together(store, *(store.commit(runs(2)) for _ in range(3)))

    assert Committed() == answers[0]
    assert [True, True] == [isinstance(answer, QueueFull) for answer in answers[1:]]
    assert 2 == await file.count("runs")


async def test_keys_hold_within_a_batch(file: SqliteDatabase):
    """Of insertions that are done as one, each learns of its own keys only."""
    store = file.store
    first, second, free = a_run(key="k"), a_run(key="k"), a_run(key="l")

    answers = await together(store, *(store.commit([run]) for run in (first, second, free)))

    assert [{}, {second.id: first.id}, {}] == [answer.existing for answer in answers]


async def test_a_cancelled_caller_does_not_undo_its_commit(file: SqliteDatabase):
    """A commit that is under way is waited for, and then the cancelling goes on."""
    run = a_run()
    async with file.store.begin():
        task = outside(file.store.commit([run]))
        await asyncio.sleep(0)
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert {run.id} == await file.store.views.existing([run.id])


# --- threads and event loops ----------------------------------------------------------------------------------------


async def test_several_event_loops_share_a_store(file: SqliteDatabase):
    """Threads with event loops of their own, and this one, use the same store at the same time."""

    async def produce() -> None:
        for _ in range(20):
            await accepted(file.store, a_run())
            assert await file.store.views.counts()

    threads = [threading.Thread(target=lambda: asyncio.run(produce())) for _ in range(4)]
    for thread in threads:
        thread.start()
    await produce()
    for thread in threads:
        await asyncio.to_thread(thread.join)

    assert 100 == await file.count("runs")


async def test_a_plain_thread_can_use_the_desks(file: SqliteDatabase):
    """Without an event loop, work is submitted and its future waited for."""
    store: Any = file.store

    count = await asyncio.to_thread(
        lambda: store._reader.submit(lambda connection: connection.execute("select 41 + 1").fetchone()).result(10)
    )

    assert (42,) == count


async def test_a_closed_store_opens_again(file: SqliteDatabase):
    """Closing ends the threads; whoever asks next starts them."""
    before = threading.active_count()
    await enqueue(file.store)
    await file.store.close()
    assert before >= threading.active_count()

    await enqueue(file.store)

    assert 2 == await file.count("runs")


async def test_the_loop_that_left_is_not_missed(file: SqliteDatabase):
    """An event loop that was closed before its answer came disturbs nobody."""
    store: Any = file.store

    async def leave_early() -> None:
        store._writer.ask(lambda connection: None)

    async with store.begin():
        await asyncio.to_thread(asyncio.run, leave_early())

    await accepted(store, a_run())


async def test_the_keeper_does_not_queue_up(file: SqliteDatabase):
    """A lease is renewed long before everything that the writer has to do is done."""
    store = file.store
    worker = await a_worker(store)
    await accepted(store, *runs(3000))
    async with store.keeper() as leases:
        claims = [asyncio.create_task(claim(store, 1, worker=worker)) for _ in range(2000)]
        await asyncio.sleep(0)

        assert await leases.renew(worker, stopping=False)

        assert not all(task.done() for task in claims)
        await asyncio.gather(*claims)


def run_python(script: str, *arguments: str) -> asyncio.Task[Any]:
    async def run() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, *arguments, stderr=asyncio.subprocess.PIPE
        )
        _, complaints = await process.communicate()
        return process.returncode, complaints.decode()

    return asyncio.create_task(run())


PRODUCER = """
import asyncio, sys
from msgspec import Raw
from ostinato.ids import new_id
from ostinato.model.change import RunInserted
from ostinato.store.sqlite import SqliteStore

async def main(url, count):
    store = SqliteStore(url, synchronous="OFF")
    await store.open()
    for _ in range(int(count)):
        await store.commit([RunInserted(new_id(), "mix", Raw(b"{}"), queue="default")])
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""

FORKING = """
import asyncio, os, sys
from msgspec import Raw
from ostinato.ids import new_id
from ostinato.model.change import RunInserted
from ostinato.store.sqlite import SqliteStore

def enqueue(store, count):
    async def some():
        for _ in range(count):
            await store.commit([RunInserted(new_id(), "mix", Raw(b"{}"), queue="default")])
            await store.views.counts()
    asyncio.run(some())

store = SqliteStore(sys.argv[1])
asyncio.run(store.open())
enqueue(store, 3)
if (child := os.fork()) == 0:
    enqueue(store, 5)
    os._exit(0)
enqueue(store, 7)
asyncio.run(store.close())
assert os.waitpid(child, 0)[1] == 0
if os.fork() == 0:
    enqueue(store, 11)
    asyncio.run(store.close())
    os._exit(0)
assert os.wait()[1] == 0
"""


async def test_processes_take_turns(file: SqliteDatabase):
    """Several processes that write one file at the same time all succeed, on a file that none of them made before."""
    url = file.url.replace(".db", "-new.db")

    answers = await asyncio.gather(*(run_python(PRODUCER, url, "60") for _ in range(3)))

    assert [(0, "")] * 3 == answers
    assert 180 == await SqliteDatabase(url).count("runs")


async def test_a_store_survives_a_fork(file: SqliteDatabase):
    """Parent and child go on with the same store object, each with connections of its own; nothing is lost."""
    assert (0, "") == await run_python(FORKING, file.url)

    assert 3 + 5 + 7 + 11 == await file.count("runs")
    assert [("ok",)] == await file.query("pragma integrity_check")


# --- the file -------------------------------------------------------------------------------------------------------


async def test_commits_are_durable_by_default(tmp_path: Path):
    """A write-ahead log, flushed at every commit: what was acknowledged survives a power loss."""
    store = SqliteStore(f"sqlite:///{tmp_path}/radio.db")
    await store.open()
    async with store.begin() as tx:
        settings = [await tx.fetchval(f"pragma {name}") for name in ("journal_mode", "synchronous")]
    await store.close()

    assert ["wal", 2] == settings


async def test_reading_leaves_no_transaction_open(file: SqliteDatabase):
    """An open reader would starve the checkpoint: after any read the whole log can be written back."""
    await accepted(file.store, *runs(50))
    await file.store.views.counts()
    await file.store.next_due(QUEUE)

    async with file.connection() as connection:
        busy, pages, written = connection.execute("pragma wal_checkpoint(truncate)").fetchone()

    assert (0, 0, 0) == (busy, pages, written)


async def test_a_claim_of_nothing_writes_nothing(file: SqliteDatabase):
    """Idle workers do not wake each other: looking in vain is not a commit that others see."""
    worker = await a_worker(file.store)
    async with file.connection() as connection:
        (before,) = connection.execute("pragma data_version").fetchone()
        assert [] == await claim(file.store, worker=worker)
        assert 0 == await file.store.release_due(QUEUE, 10)
        (after,) = connection.execute("pragma data_version").fetchone()

    assert before == after


async def test_a_lock_that_is_held_too_long_is_an_error(file: SqliteDatabase):
    """After the limit of its patience the store says who is in the way; later it goes on as if nothing had been."""
    store = SqliteStore(file.url, synchronous="OFF", patience=0.05)
    async with file.connection() as connection:
        connection.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match="locked by another writer"):
            await store.commit([a_run()])
        with pytest.raises(StoreUnavailable, match="locked by another writer"):
            await store.begin().__aenter__()
        connection.execute("rollback")

    await accepted(store, a_run())
    await store.close()


async def test_a_lock_that_is_held_shortly_is_waited_for(file: SqliteDatabase):
    """A writer elsewhere only delays ours."""
    async with file.connection() as connection:
        connection.execute("begin immediate")
        task = asyncio.create_task(file.store.commit([a_run()]))
        await file.store.views.counts()
        assert not task.done()
        connection.execute("commit")

        assert Committed() == await task


async def test_a_full_disk_is_an_error(file: SqliteDatabase):
    """When there is no room, the batch fails as a whole; once there is room again, work goes on."""
    store = file.store
    async with store.begin() as tx:
        pages = await tx.fetchval("pragma page_count")
        await tx.fetchval(f"pragma max_page_count = {pages}")

    answers = await together(store, store.commit(runs(500)), store.commit(runs(500)))

    assert [True, True] == [isinstance(answer, StoreUnavailable) for answer in answers]
    assert 0 == await file.count("runs")
    async with store.begin() as tx:
        await tx.fetchval("pragma max_page_count = 1000000")
    await accepted(store, *runs(500))


async def test_a_missing_folder_is_an_error(tmp_path: Path):
    """The error names the file, and comes for reads, writes and migrations alike."""
    store = SqliteStore(f"sqlite:///{tmp_path}/missing/radio.db")

    for use in (store.open(), store.commit([a_run()]), store.views.counts(), store.migrations().up()):
        with pytest.raises(StoreUnavailable, match=r"missing/radio\.db cannot be used"):
            await use
    await store.close()


async def test_a_file_of_another_kind_is_an_error(tmp_path: Path):
    """A text file is not overwritten."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a rather long text " * 100)
    store = SqliteStore(str(path))

    with pytest.raises(StoreError, match="not an SQLite database"):
        await store.open()
    await store.close()
    assert path.read_text().startswith("not a database")


# --- transactions ---------------------------------------------------------------------------------------------------


async def exhaust(transaction: Any) -> str:
    """Uses a transaction until it is refused; answers why."""
    while True:
        try:
            await transaction.fetch("select 1")
        except TransactionMisused as error:
            return str(error)


async def test_a_transaction_may_not_last_long(file: SqliteDatabase):
    """Past its limit it is rolled back, so that others can write, and every later use says why."""
    run = a_run()
    async with file.store.begin(limit=0.05) as tx:
        await tx.apply([run])
        assert "lasted longer than 0.05 s and was rolled back" in await exhaust(tx)
        with pytest.raises(TransactionMisused, match=r"lasted longer than 0\.05 s"):
            await tx.commit()
        await accepted(file.store, a_run())

    assert set() == await file.store.views.existing([run.id])


async def test_a_long_statement_is_interrupted(file: SqliteDatabase):
    """The limit holds inside a statement too."""
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"

    async with file.store.begin(limit=0.05) as tx:
        with pytest.raises(TransactionMisused, match=r"lasted longer than 0\.05 s"):
            await tx.fetch(endless)

    await accepted(file.store, a_run())


async def test_others_wait_for_a_transaction(file: SqliteDatabase):
    """What is written meanwhile comes after it, in no matter which task."""
    run = a_run()
    async with file.store.begin() as tx:
        task = outside(file.store.commit([run]))
        await tx.fetch("select 1")
        assert not task.done()
        await tx.commit()
    await task

    assert {run.id} == await file.store.views.existing([run.id])


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.commit([a_run()]),
        lambda store: store.cancel([new_id()], "not wanted"),
        lambda store: store.begin().__aenter__(),
        lambda store: asyncio.create_task(store.commit([a_run()])),
    ],
    ids=["commit", "verb", "transaction", "task"],
)
async def test_writing_past_ones_own_transaction_is_refused(file: SqliteDatabase, write: Callable[[Store], Any]):
    """It would wait for itself; the error says what to use instead, and the transaction goes on."""
    async with file.store.begin() as tx:
        with pytest.raises(TransactionMisused, match=r"tx\.enqueue"):
            await write(file.store)
        await tx.apply([a_run()])
        await tx.commit()
        await accepted(file.store, a_run())

    await accepted(file.store, a_run())
    assert 3 == await file.count("runs")


async def test_reading_inside_a_transaction_is_fine(file: SqliteDatabase):
    """Reads have connections of their own."""
    async with file.store.begin():
        assert [] == await file.store.views.counts()


async def test_another_file_can_be_written_inside_a_transaction(file: SqliteDatabase, tmp_path: Path):
    """The lock is of one file."""
    other = SqliteStore(f"sqlite:///{tmp_path}/other.db", synchronous="OFF")
    await other.open()
    async with file.store.begin() as tx, other.begin() as inner:
        await inner.apply([a_run(queue=QUEUE)])
        await inner.commit()
        await accepted(other, a_run(queue=QUEUE))
        with pytest.raises(TransactionMisused):
            await file.store.commit([a_run()])
        await tx.apply([a_run()])
    await other.close()


@pytest.mark.parametrize("statement", ["commit", "  COMMIT;", "-- really\nend", "/* so */ rollback", "begin"])
async def test_a_transaction_ends_with_its_block(file: SqliteDatabase, statement: str):
    """Statements that would end it are refused: what they wrote would be torn apart from what we write."""
    async with file.store.begin() as tx:
        with pytest.raises(TransactionMisused, match=r"leave \w+ out"):
            await tx.execute(statement)
        await tx.apply([a_run()])
        await tx.commit()

    assert 1 == await file.count("runs")


async def test_savepoints_are_the_users(file: SqliteDatabase):
    """Part of a transaction may be undone."""
    async with file.store.begin() as tx:
        await tx.execute("create table tracks (title)")
        await tx.execute("savepoint half")
        await tx.execute("insert into tracks values ('no')")
        await tx.execute("rollback to half")
        await tx.execute("release half")
        assert [] == await tx.fetch("select * from tracks")


async def test_who_gave_up_waiting_holds_no_lock(file: SqliteDatabase):
    """A task cancelled before its transaction began leaves the writer free."""
    async with file.store.begin():
        task = outside(_begin(file.store))
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await accepted(file.store, a_run())


async def _begin(store: Store) -> None:
    async with store.begin():
        raise AssertionError("was cancelled before")


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/radio.db", "/var/lib/radio.db"),
        ("sqlite:///radio.db", str(Path.cwd() / "radio.db")),
        ("sqlite+aiosqlite:///radio.db", str(Path.cwd() / "radio.db")),
        ("radio.db", str(Path.cwd() / "radio.db")),
    ],
)
def test_a_url_names_a_file(url: str, path: str):
    """Three slashes are relative to where the process started, four are absolute."""
    assert path == path_of(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://radio.db", "mysql:///x"])
def test_a_url_must_name_a_file(url: str):
    """Memory is not durable, and two slashes name a host."""
    with pytest.raises(ConfigError):
        path_of(url)


@pytest.mark.parametrize("schema", ["", "a-b", "1a", 'x"y', "sqlite_", "a b"])
def test_a_schema_is_a_plain_name(schema: str, tmp_path: Path):
    """It begins the names of tables."""
    with pytest.raises(ConfigError, match="plain name"):
        SqliteStore(f"sqlite:///{tmp_path}/radio.db", schema=schema)


async def test_two_schemas_live_in_one_file(file: SqliteDatabase):
    """Each has its own tables and indexes."""
    other = SqliteStore(file.url, schema="night", synchronous="OFF")
    await other.open()
    await other.declare([DECLARED], [])
    await accepted(other, *runs(2))
    await accepted(file.store, a_run())

    assert [2] == [count.count for count in await other.views.counts()]
    assert [(2,)] == await file.query("select count(*) from night_runs")
    assert 1 == await file.count("runs")
    await other.close()


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """RETURNING came with 3.35."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))

    with pytest.raises(ConfigError, match=r"needs 3\.35\.0 or newer"):
        SqliteStore(f"sqlite:///{tmp_path}/radio.db")


def test_a_wrong_durability_is_refused(tmp_path: Path):
    """Only what SQLite knows."""
    with pytest.raises(ConfigError, match="synchronous='sometimes' must be one of OFF, NORMAL, FULL, EXTRA"):
        SqliteStore(f"sqlite:///{tmp_path}/radio.db", synchronous="sometimes")


def test_looking_slows_down():
    """Two milliseconds for ten seconds, then less and less often, down to fifty milliseconds."""
    assert [FASTEST, FASTEST] == [pause_after(0), pause_after(FAST_FOR)]
    assert FASTEST < pause_after(2 * FAST_FOR) < pause_after(3 * FAST_FOR) < SLOWEST
    assert SLOWEST == pause_after(3600)


# --- plans ----------------------------------------------------------------------------------------------------------

PLANS = {
    "claim": "ostinato_runs_ready (queue=? AND suspect=? AND (due,id)>(?,?))",
    "complete_runs": "sqlite_autoindex_ostinato_runs_1 (id=?)",
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
    """Whatever the table's size and statistics, no statement of the engine scans or sorts the runs."""
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
    assert not any(line.startswith("SCAN ostinato_runs") for line in plan), plan
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
