"""Inserting runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import Raw, json

from ostinato.errors import QueueFull, UnknownFunction
from ostinato.ids import new_id
from ostinato.model.run import State
from ostinato.store.ports import DeclaredQueue, Store
from tests.store.databases import Database
from tests.store.samples import QUEUE, a_run, a_worker, accepted, claim, claimed_runs, completed, enqueue, runs, view


async def test_a_run_is_ready_in_the_queue_of_its_function(store: Store):
    """A run without options may start at once, in the queue that its function was declared for."""
    seen = await view(store, await enqueue(store, input=Raw(b'{"track":"42"}')))

    assert (seen.state, seen.queue, seen.input) == (State.READY, QUEUE, {"track": "42"})
    assert seen.run_at == seen.created_at


async def test_a_run_keeps_what_it_was_given(store: Store):
    """Every option of a run is kept as it was given."""
    given = a_run(queue="night", priority=-7, key="k", timeout=2.5, metadata=Raw(b'{"by":"me"}'), invoked_by="event:1")
    await accepted(store, given)

    seen = await view(store, given.id)

    assert (seen.queue, seen.priority, seen.key, seen.timeout) == ("night", -7, "k", 2.5)
    assert (seen.metadata, seen.invoked_by) == ({"by": "me"}, "event:1")


@pytest.mark.parametrize(
    "text",
    ['{"a":[1,{"b":null}],"c":"\\"\\\\ é \\ud83c\\udfb5 \\u2028"}', '{"n":0.30000000000000004}', "[true,false]", "{}"],
)
async def test_input_comes_back_as_it_was(store: Store, text: str):
    """The input a worker gets is the JSON that was given, to the last digit."""
    await enqueue(store, input=Raw(text.encode()))
    (run,) = await claim(store, worker=await a_worker(store))

    assert json.decode(text) == json.decode(run.input)


async def test_ten_thousand_runs_are_inserted_at_once(store: Store):
    """A bulk of ten thousand is one commit."""
    bulk = runs(10_000)

    await accepted(store, *bulk)

    (count,) = await store.views.counts()
    assert (count.state, count.count) == (State.READY, 10_000)


async def test_a_bulk_keeps_its_order(store: Store):
    """Runs of one bulk are claimed in the order of the list."""
    bulk = runs(20)
    await accepted(store, *bulk)

    claimed = await claim(store, worker=await a_worker(store))

    assert [run.id for run in bulk] == [run.id for run in claimed]


async def test_a_delayed_run_is_held_until_it_is_due(store: Store):
    """A delay counts from the database's now."""
    seen = await view(store, await enqueue(store, delay=90.0))

    assert (seen.state, seen.reason, seen.status) == (State.HELD, "not_due", "pending")
    assert timedelta(seconds=90) == seen.run_at - seen.created_at


async def test_a_run_for_the_future_is_held(store: Store):
    """A moment in the future is kept to the microsecond."""
    moment = datetime(2100, 1, 31, 23, 59, 59, 123457, tzinfo=UTC)

    seen = await view(store, await enqueue(store, run_at=moment.isoformat()))

    assert (State.HELD, moment) == (seen.state, seen.run_at)


async def test_a_run_for_the_past_is_ready_and_comes_first(store: Store):
    """A moment in the past is when the run was due, so it precedes what is due now."""
    await enqueue(store)
    early = await enqueue(store, run_at="2020-02-29T12:00:00+01:00")

    first, _ = await claim(store, worker=await a_worker(store))

    assert early == first.id
    assert datetime(2020, 2, 29, 11, tzinfo=UTC) == (await view(store, early)).run_at


async def test_a_moment_before_1970_is_1970(store: Store):
    """Times before the epoch all sort as the epoch."""
    run_id = await enqueue(store, run_at="1815-12-10T00:00:00+00:00")

    assert datetime(1970, 1, 1, tzinfo=UTC) == (await view(store, run_id)).run_at


async def test_priority_shifts_a_run_in_time(store: Store):
    """A run sorts as if it had been due that many seconds earlier, or later when it is negative."""
    low, usual, high = runs(1, priority=-5)[0], a_run(), a_run(priority=5)
    await accepted(store, low, usual, high)
    later = a_run()
    await accepted(store, later)

    claimed = await claim(store, worker=await a_worker(store))

    assert [high.id, usual.id, later.id, low.id] == [run.id for run in claimed]


async def test_an_unknown_function_is_refused(store: Store):
    """A run by name alone needs a function that was declared; the whole bulk is refused with it."""
    bulk = [*runs(3), a_run(function="mxi"), a_run(key="k")]

    with pytest.raises(UnknownFunction, match="mxi"):
        await store.commit(bulk)

    assert await store.views.counts() == []


async def test_an_unknown_function_with_a_queue_is_accepted(store: Store):
    """Who names the queue knows the function; a worker will declare it."""
    seen = await view(store, await enqueue(store, function="new", queue="night"))

    assert (seen.function, seen.queue) == ("new", "night")


async def test_a_full_queue_refuses_the_whole_bulk(store: Store):
    """Above the cap nothing is written, not even the keys."""
    await store.declare([], [DeclaredQueue(QUEUE, max_waiting=5)])
    await accepted(store, *runs(3), a_run(delay=60.0))

    with pytest.raises(QueueFull, match="may hold 5 waiting runs, has 4 and was given 2 more"):
        await store.commit([a_run(key="k"), a_run()])

    assert sum(count.count for count in await store.views.counts()) == 4
    assert (await store.commit([a_run(key="k")])).existing == {}


async def test_a_cap_counts_waiting_runs_only(store: Store):
    """What runs or has ended leaves room."""
    await store.declare([], [DeclaredQueue(QUEUE, max_waiting=2)])
    first, _ = await claimed_runs(store, 2)
    await accepted(store, completed(first))

    await accepted(store, *runs(2))


async def test_a_full_queue_leaves_others_alone(store: Store):
    """A cap is of one queue."""
    await store.declare([], [DeclaredQueue("night", max_waiting=1)])

    await accepted(store, *runs(5), a_run(queue="night"))


async def test_a_cap_that_is_lifted_is_gone(store: Store):
    """A declaration replaces the one before."""
    await store.declare([], [DeclaredQueue(QUEUE, max_waiting=1)])
    await store.declare([], [DeclaredQueue(QUEUE)])

    await accepted(store, *runs(3))


async def test_an_id_is_used_once(database: Database):
    """A run that is given twice is an error, and the rest of its commit is undone."""
    store, twice = database.store, new_id()
    await accepted(store, a_run(id=twice))

    with pytest.raises(Exception, match=r"(?i)unique"):
        await store.commit([a_run(), a_run(id=twice)])

    assert await database.count("runs") == 1
