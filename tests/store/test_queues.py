"""Queues: which there are, what is in them, and pausing them."""

from __future__ import annotations

import re

import pytest
from msgspec import Raw

from ostinato.model.run import State
from ostinato.model.view import EndedCount, QueueView
from ostinato.store.ports import DeclaredFunction, DeclaredQueue, Rung, Store, queue_topic
from ostinato.store.sqlite.store import load_blocks
from tests.store.databases import Database, SqliteDatabase, only_postgres
from tests.store.samples import (
    LEASE,
    QUEUE,
    a_claimed_run,
    a_run,
    a_worker,
    accepted,
    cancelled,
    claim,
    completed,
    enqueue,
    failed,
    runs,
    view,
)
from tests.store.test_listening import Ear, ear  # noqa: F401

ALL = 2**62


async def the_queue(store: Store, name: str = QUEUE, *, count_to: int = ALL) -> QueueView:
    (queue,) = await store.views.queues([name], count_to=count_to)
    return queue


# --- which there are


async def test_queues_are_known_from_everything_that_names_them(store: Store):
    """Rows of their own, functions, workers, and runs that are held, ready or running."""
    await store.declare([DeclaredFunction("f", "of-a-function", 1, 1.0, Raw(b"[]"))], [DeclaredQueue("declared")])
    await store.register("W", name="studio", queues={"of-a-worker": 1}, lease=LEASE)
    await accepted(store, a_run(queue="of-a-ready-run"), a_run(queue="of-a-held-run", delay=60.0))
    await enqueue(store, queue="of-a-running-run")
    await claim(store, worker="W", queue="of-a-running-run")

    assert await store.views.queue_names() == [
        "declared",
        QUEUE,
        "of-a-function",
        "of-a-held-run",
        "of-a-ready-run",
        "of-a-running-run",
        "of-a-worker",
    ]


async def test_names_are_listed_once_however_many_runs_they_have(store: Store):
    """Stepping from name to name leaves none out, whatever lies between."""
    names = [f"q{number:02}" for number in range(30)]
    await accepted(store, *(run for name in names for run in runs(3, queue=name)), *runs(3, queue="q07", delay=60.0))

    assert [QUEUE, *names] == await store.views.queue_names()


async def test_what_is_over_names_no_queue(store: Store):
    """Neither a worker that has retired, nor a run that has ended."""
    await store.register("W", name="studio", queues={"served": 1}, lease=LEASE)
    run_id = await enqueue(store, queue="used")
    await store.cancel([run_id], "not wanted")
    await store.retire("W")

    assert await store.views.queue_names() == [QUEUE]


# --- what is in them


async def test_a_queue_is_counted(store: Store):
    """What is ready, held and running, and nothing of other queues or of the past; queues come in order."""
    await accepted(store, *runs(5), *runs(3, delay=60.0), a_run(queue="night"))
    run, other, *_ = await claim(store, 4, worker=await a_worker(store))
    await accepted(store, completed(run), failed(other))

    queue = await the_queue(store)

    assert (queue.ready, queue.held, queue.running) == (1, 3, 2)
    counted = [(each.name, each.ready) for each in await store.views.queues(["night", QUEUE], count_to=ALL)]
    assert counted == [(QUEUE, 1), ("night", 1)]


async def test_counting_ends_where_it_is_told_to(store: Store):
    """So that a look at a queue with millions of runs costs no more than one with thousands."""
    await accepted(store, *runs(5), *runs(5, delay=60.0))

    queue = await the_queue(store, count_to=3)

    assert (queue.ready, queue.held) == (3, 3)


async def test_an_unknown_queue_is_empty(store: Store):
    """Asking for it is no error here."""
    assert QueueView(name="nowhere") == await the_queue(store, "nowhere")


async def test_the_longest_wait_counts_from_when_a_run_was_due(database: Database):
    """By the database's clock; neither held runs nor running ones wait for a worker."""
    store = database.store
    await enqueue(store, delay=1000.0)
    assert (await the_queue(store)).longest_wait is None
    await enqueue(store)
    await database.advance(100.0)
    await enqueue(store, priority=600)

    assert (await the_queue(store)).longest_wait == pytest.approx(100.0, abs=5.0)


async def test_a_suspect_waits_too(database: Database):
    """A run whose worker died may be the one that has waited longest, and is counted."""
    store = database.store
    worker = await a_worker(store)
    await a_claimed_run(store, worker=worker)
    await database.advance(LEASE + 1)
    assert await store.bury(worker, (await store.expired())[worker])
    await store.rescue(10)

    queue = await the_queue(store)

    assert queue.ready == 1
    assert queue.longest_wait == pytest.approx(LEASE + 1, abs=5.0)


async def test_slots_are_those_of_workers_that_work(database: Database):
    """Not of those that are dead, stopping, or have lost touch."""
    store = database.store
    lost = await a_worker(store)
    await database.advance(LEASE + 1)
    stopping, dead, *_ = [await a_worker(store) for _ in range(4)]
    await store.renew(stopping, stopping=True)
    await store.retire(dead)

    queue = await the_queue(store)

    assert (queue.slots, queue.workers) == (20, 2)
    assert await store.renew(lost, stopping=False)
    assert (await the_queue(store)).slots == 30


# --- pausing


async def test_pausing_touches_no_run(database: Database):
    """Claims look at the queue, so however many runs wait, nothing is rewritten, and all go on when it is resumed."""
    store, worker = database.store, await a_worker(database.store)
    await accepted(store, *runs(3), *runs(2, delay=60.0))
    before = await database.query("select * from ostinato_runs order by id")

    assert await store.pause(QUEUE)
    assert await claim(store, worker=worker) == []
    assert await database.query("select * from ostinato_runs order by id") == before
    assert await store.resume(QUEUE)

    assert len(await claim(store, worker=worker)) == 3


async def test_a_suspect_does_not_start_in_a_paused_queue(database: Database):
    """Pausing stops every way to start."""
    store = database.store
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker)
    await database.advance(LEASE + 1)
    assert await store.bury(worker, (await store.expired())[worker])
    await store.rescue(10)
    another = await a_worker(store)

    await store.pause(QUEUE)
    assert await store.claim_suspect(QUEUE, worker=another) is None
    await store.resume(QUEUE)

    suspect = await store.claim_suspect(QUEUE, worker=another)
    assert suspect is not None
    assert run.id == suspect.id


async def test_pausing_again_changes_nothing(store: Store):
    """The answers say whether it was needed; other queues are not concerned."""
    assert [await store.resume(QUEUE), await store.pause(QUEUE), await store.pause(QUEUE)] == [False, True, False]
    assert ((await the_queue(store)).paused, (await the_queue(store, "night")).paused) == (True, False)
    assert [await store.resume(QUEUE), await store.resume(QUEUE)] == [True, False]
    assert not (await the_queue(store)).paused


async def test_a_run_of_a_paused_queue_says_why_it_waits(store: Store):
    """Ready or held; a running one has no reason to give."""
    running = await a_claimed_run(store)
    ready, held = await enqueue(store), await enqueue(store, delay=60.0)
    await store.pause(QUEUE)

    assert [(await view(store, run)).held_because for run in (ready, held, running)] == ["paused", "paused", None]
    await store.resume(QUEUE)
    assert [(await view(store, run)).held_because for run in (ready, held)] == [None, "not_due"]


async def test_declaring_and_pausing_do_not_undo_each_other(store: Store):
    """A worker that starts says what the cap is, an operator whether the queue is paused."""
    await store.declare([], [DeclaredQueue(QUEUE, 7)])
    await store.pause(QUEUE)
    assert ((await the_queue(store)).paused, (await the_queue(store)).max_waiting) == (True, 7)

    await store.declare([], [DeclaredQueue(QUEUE, 8)])
    assert ((await the_queue(store)).paused, (await the_queue(store)).max_waiting) == (True, 8)

    await store.resume(QUEUE)
    assert ((await the_queue(store)).paused, (await the_queue(store)).max_waiting) == (False, 8)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_resuming_wakes_who_sleeps_on_the_queue(database: Database, ear: Ear, elsewhere: bool):  # noqa: F811
    """In this process and in others, and only if it was paused."""
    store = await database.another() if elsewhere else database.store
    await store.pause(QUEUE)
    await ear.armed(queue_topic(QUEUE))
    ear.forget()

    await store.resume(QUEUE)

    signal = await ear.next(Rung)
    assert isinstance(signal, Rung)
    assert signal.queue in (QUEUE, None)


# --- what ended


async def test_what_ended_lately_is_counted_by_queue_and_state(database: Database):
    """Between two moments, the second included."""
    store, worker = database.store, await a_worker(database.store, lease=1000.0)
    await accepted(store, *runs(6), a_run(queue="night"))
    first, *others = await claim(store, 6, worker=worker)
    await accepted(store, completed(first))
    await database.advance(10.0)
    since = await store.views.moment()
    await accepted(store, completed(others[0]), completed(others[1]), failed(others[2]), cancelled(others[3]))
    await accepted(store, completed((await claim(store, worker=worker, queue="night"))[0]))
    until = await store.views.moment()
    await database.advance(10.0)
    await accepted(store, completed(others[4]))

    async def ended(*between: int, limit: int = 100) -> set[EndedCount]:
        return set(await store.views.ended_lately(*between, limit=limit))

    assert await ended(since, until) == {
        EndedCount(QUEUE, State.COMPLETED, 2),
        EndedCount(QUEUE, State.FAILED, 1),
        EndedCount(QUEUE, State.CANCELLED, 1),
        EndedCount("night", State.COMPLETED, 1),
    }
    assert sum(count.count for count in await ended(0, until + 10**9, limit=3)) == 5


async def test_the_latest_failures_come_first(database: Database):
    """However long ago they were."""
    store = database.store
    worker, ids = await a_worker(store, lease=1000.0), []
    for _ in range(3):
        run = await a_claimed_run(store, worker=worker)
        await accepted(store, failed(run))
        ids.append(run.id)
        await database.advance(1.0)
    await accepted(store, completed(await a_claimed_run(store, worker=worker)))

    latest = await store.views.latest_failures(2)

    assert [failure.id for failure in latest] == [ids[2], ids[1]]
    assert latest[0].error is not None
    assert (latest[0].function, latest[0].queue, latest[0].error.message) == ("mix", QUEUE, "out of tune")


# --- plans

BLOCKS = ("queue_names", "queues", "ended_lately", "latest_failures")
"""What live views ask for every second."""
WALKS = ("ready_runs", "held_runs", "running_runs", "ended_runs", "lock_runs", "purge_runs")

BOUNDS = {
    "ended_lately": ["ostinato_runs_ended (state=? AND ended_at>? AND ended_at<?)"] * 3,
    "latest_failures": ["ostinato_runs_ended (state=? AND ended_at>?)"],
    "ready_runs": ["ostinato_runs_ready (queue=? AND suspect=? AND (due,id)>(?,?))"],
    "held_runs": ["ostinato_runs_held (queue=? AND run_at>?)"],
    "ended_runs": ["ostinato_runs_ended (state=? AND ended_at>? AND ended_at<?)"],
    "lock_runs": ["sqlite_autoindex_ostinato_runs_1 (id=?)"],
    "purge_runs": ["sqlite_autoindex_ostinato_runs_1 (id=?)"],
}
"""Where SQLite begins and ends in an index."""

FILL = {
    "postgresql": """
        insert into ostinato_runs (id, function, queue, state, run_at, due, invoked_by, created_at, ended_at, input)
        select lpad(n::text, 26, '0'), 'mix', 'q' || (n % 5)::text, s, now(), n, 'api', now(),
               case when s in ('completed', 'failed') then now() - n * interval '1 second' end, '{}'
        from (select n, case when n % 100 = 0 then 'ready' when n % 101 = 0 then 'held'
                             when n % 50 = 0 then 'failed' else 'completed' end as s
              from generate_series(1, 20000) n) made""",
    "sqlite": """
        insert into ostinato_runs (id, function, queue, state, run_at, due, invoked_by, created_at, ended_at, input)
        with recursive n (n) as (select 1 union all select n + 1 from n where n < 20000)
        select printf('%026d', n), 'mix', 'q' || (n % 5), s, n, n, 'api', n,
               case when s in ('completed', 'failed') then n end, '{}'
        from (select n, case when n % 100 = 0 then 'ready' when n % 101 = 0 then 'held'
                             when n % 50 = 0 then 'failed' else 'completed' end as s from n)""",
}

ARGUMENTS = {
    "names": "'[\"q1\"]'",
    "limit": "1000",
    "since": "1",
    "until": "1800000000000000",
    "after": "1",
    "after_id": "''",
    "queue": "'q1'",
    "suspect": "false",
    "function": "'mix'",
    "key": "null",
    "code": "null",
    "state": "'completed'",
    "ids": "'[\"1\"]'",
}


@only_postgres
@pytest.mark.parametrize("analyzed", [False, True])
async def test_nothing_scans_the_runs_on_postgresql(database: Database, analyzed: bool):
    """A live view beside many ended runs, and walks through them, follow indexes, whatever is known of the table."""
    await database.query(FILL["postgresql"])
    if analyzed:
        await database.query("vacuum analyze ostinato_runs")
    async with database.connection() as connection:
        await connection.execute("set plan_cache_mode = force_generic_plan")
        for name in (*BLOCKS, *WALKS):
            block = database.store.blocks[name]  # type: ignore[attr-defined]
            await connection.execute(f"prepare {name} as {block.text}")
            given = ", ".join(ARGUMENTS[parameter] for parameter in block.parameters)
            plan = await connection.fetch(f"explain execute {name}" + (f"({given})" if given else ""))
            text = "\n".join(row[0] for row in plan)
            assert "Seq Scan on runs" not in text, f"{name}\n{text}"
            if name in ("ended_lately", "ended_runs"):
                assert re.search(r"Index Cond: .*ended_at >=? .*ended_at <= ", text), f"{name}\n{text}"
            assert name not in BLOCKS or "runs_pkey" not in text, f"{name}\n{text}"


@pytest.mark.parametrize("analyzed", [False, True])
async def test_nothing_scans_the_runs_on_sqlite(file: SqliteDatabase, analyzed: bool):
    """The same there; an index of running runs may be read from end to end, since it has as many entries as there are
    slots."""
    await file.query(FILL["sqlite"])
    if analyzed:
        await file.query("analyze")
    blocks = load_blocks("ostinato")
    async with file.connection() as connection:
        connection.create_function("ostinato_now", 0, lambda: 0)
        for name in (*BLOCKS, *WALKS):
            values = dict.fromkeys(blocks[name].parameters)
            plan = [row[3] for row in connection.execute(f"explain query plan {blocks[name].text}", values)]
            scans = [line for line in plan if line.startswith(("SCAN ostinato_runs", "SCAN r "))]
            assert all("ostinato_runs_running" in line for line in scans), (name, plan)
            searches = [line.partition(" USING INDEX ")[2] for line in plan if line.startswith("SEARCH")]
            assert BOUNDS.get(name, searches) == searches, (name, plan)
