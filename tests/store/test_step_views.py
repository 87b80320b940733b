"""What people see of steps, and the copy of a run that begins at one of them; the same on every database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw, structs

from ostinato.model.change import StepSaved
from ostinato.model.run import Claimed, State
from ostinato.model.step import Kind, Status, StepError
from ostinato.model.view import RunFilter, StepView, labels, step_named
from ostinato.store.ports import Store
from tests.store.databases import Database
from tests.store.samples import (
    DECLARED,
    a_claimed_run,
    a_run,
    a_worker,
    accepted,
    claim,
    completed,
    failed,
    settled,
    view,
)


def saved(
    run: Claimed, name: str, place: int, status: str = "completed", *, kind: str = "step", **fields: Any
) -> StepSaved:
    return StepSaved(run.id, run.lease_no, f"id-{name}-{place}", name, place, kind, status, 0.5, **fields)


async def test_steps_are_seen_in_the_order_of_their_calls(store: Store):
    """Whatever they are and in whatever order they were saved, with their values as they were."""
    run = await a_claimed_run(store)
    await accepted(
        store,
        saved(
            run, "ask", 2, "pending", kind="event", awaits="hitl.*", wild=True, matches="x", delay=60.0, input='["a"]'
        ),
        saved(run, "fetch", 0, input='[["a\\u0000"],{}]', output='{"big":1e22,"text":"a\\u0000b","b":[1,null]}'),
        saved(run, "charge", 1, "failed", error='{"code":"ValueError","message":"no"}', retry_count=3),
        saved(run, "bill", 3, "pending", kind="invoke", child="01CHILD"),
    )

    fetch, charge, ask, bill = await store.views.steps(run.id)

    assert (fetch.id, fetch.name, fetch.index, fetch.kind, fetch.status) == (
        "id-fetch-0",
        "fetch",
        0,
        Kind.STEP,
        Status.COMPLETED,
    )
    assert ([["a\x00"], {}], {"big": 1e22, "text": "a\x00b", "b": [1, None]}) == (fetch.input, fetch.output)
    assert isinstance(fetch.output["big"], float)
    assert fetch.ended_at is not None
    assert timedelta(seconds=0.5) == fetch.ended_at - fetch.started_at
    assert (StepError("ValueError", "no"), 3, None) == (charge.error, charge.retry_count, charge.output)
    assert ("hitl.*", "x", None, Status.PENDING) == (ask.awaits, ask.matches, ask.ended_at, ask.status)
    assert ask.wake_at is not None
    assert timedelta(seconds=60.5) == ask.wake_at - ask.started_at
    assert (await view(store, run)).started_at == ask.since
    assert ("01CHILD", None) == (bill.child, bill.wake_at)
    assert [] == await store.views.steps("nobody")


async def test_a_run_counts_the_steps_that_have_not_ended(store: Store):
    """Where it is seen alone; a list does not count."""
    run = await a_claimed_run(store)
    assert (await view(store, run)).pending_steps == 0
    await accepted(store, saved(run, "a", 0), saved(run, "b", 1, "pending", delay=1.0), saved(run, "c", 2, "running"))
    assert (await view(store, run)).pending_steps == 2
    (listed,) = await store.views.runs(RunFilter())
    assert listed.pending_steps is None


async def test_children_are_seen_from_their_parent(store: Store):
    """And the parent from them."""
    parent = await a_claimed_run(store)
    children = [a_run(parent_run=parent.id, parent_step=f"s{number}") for number in range(2)]
    await accepted(store, *children, a_run())

    seen = await store.views.children(parent.id)

    assert [child.id for child in children] == [child.id for child in seen]
    assert {parent.id} == {child.parent for child in seen}
    assert (await view(store, children[0].id)).parent == parent.id
    assert (await view(store, parent)).parent is None


async def test_a_run_shows_the_event_that_started_it(store: Store):
    """By the id in what invoked it."""
    run = await a_claimed_run(store, invoked_by="event:price.changed:01K9")
    assert ((await view(store, run)).event_id, (await view(store, run)).version) == ("01K9", None)


# --- copies


async def test_a_copy_has_what_was_completed_before_a_place(store: Store):
    """It is another run of the same function and input, which remembers that, and nothing else."""
    worker = await a_worker(store)
    run = await a_claimed_run(
        store, worker=worker, key="k", priority=7, timeout=9.0, metadata=Raw(b'{"a":1}'), invoked_by="event:x:01K9"
    )
    await accepted(
        store,
        saved(run, "fetch", 0, output="1"),
        saved(run, "nap", 1, kind="sleep", output="null"),
        saved(run, "wait", 2, kind="event", output='{"id":"E"}', event_id="E", awaits="e"),
        saved(run, "bad", 3, "failed", error='{"code":"x","message":"y"}'),
        saved(run, "save", 4, output="2"),
        saved(run, "open", 5, "pending", delay=1.0),
    )
    await accepted(store, failed(run))

    assert await store.copy(run.id, copy="01COPY", place=4)

    original, copy = await view(store, run), await view(store, "01COPY")
    assert ("mix", {"n": 1}, {"a": 1}, 7, 9.0, "event:x:01K9") == (
        copy.function,
        copy.input,
        copy.metadata,
        copy.priority,
        copy.timeout,
        copy.invoked_by,
    )
    assert (State.READY, 0, None, run.id, None) == (copy.state, copy.attempt, copy.key, copy.copied_from, copy.error)
    assert copy.started_at is None
    assert (State.FAILED, None) == (original.state, original.copied_from)
    before = await store.views.steps(run.id)
    assert before[:3] == await store.views.steps("01COPY")
    assert 6 == len(before)
    (claimed,) = await claim(store, worker=worker)
    assert ("01COPY", 2, 1) == (claimed.id, claimed.lease_no, claimed.attempt)
    assert {"fetch", "nap", "wait"} == {step.name for step in before[:3]}
    assert ["id-fetch-0", "id-nap-1", "id-wait-2"] == sorted(memo.id for memo in await store.memos(["01COPY"]))


@pytest.mark.parametrize("ended", [False, None])
async def test_what_has_not_ended_is_not_copied(store: Store, ended: bool | None):
    """Nor what is not there; nothing is written."""
    run = await a_claimed_run(store)
    await accepted(store, saved(run, "fetch", 0))

    assert not await store.copy(run.id if ended is False else "nobody", copy="01COPY", place=9)

    assert await store.views.run("01COPY") is None
    assert [] == await store.views.steps("01COPY")


async def test_time_limits_of_a_copy_begin_with_it(database: Database):
    """As the function declares them now, whatever those of the original were; and so does what may cancel it."""
    store = database.store
    await store.declare([structs.replace(DECLARED, start_timeout=60.0, finish_timeout=90.0, cancel_on=Raw(b"[]"))], [])
    run = await a_claimed_run(store)
    await accepted(store, completed(run))
    assert await store.copy(run.id, copy="01COPY", place=0)
    unit = "1000000" if database.dialect == "sqlite" else "interval '1 s'"
    rows = await database.query(
        f"select start_by = created_at + 60 * {unit}, finish_by = created_at + 90 * {unit}, watched "
        "from ostinato_runs where id = '01COPY'"
    )
    assert [(True, True, True)] == [tuple(bool(each) for each in row) for row in rows]


async def test_a_cancelled_run_can_be_copied(store: Store):
    """It has ended, too."""
    run = await a_claimed_run(store)
    await accepted(store, settled(run, State.CANCELLED))
    assert await store.copy(run.id, copy="01COPY", place=0)


# --- names


def a_step(name: str, index: int) -> StepView:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    return StepView(id=f"id{index}", name=name, index=index, kind=Kind.STEP, status=Status.COMPLETED, started_at=moment)


def test_steps_of_one_name_are_told_apart_by_numbers():
    """The first by its name alone, all by their ids."""
    steps = [a_step(name, index) for index, name in enumerate(["fetch", "save", "fetch", "fetch"])]
    assert ["fetch", "save", "fetch#2", "fetch#3"] == labels(steps)
    assert [0, 0, 2, 3, 1, 2] == [
        step.index
        for wanted in ("fetch", "fetch#1", "fetch#2", "fetch#3", "id1", "id2")
        if (step := step_named(wanted, steps))
    ]
    assert step_named("fetch#4", steps) is None
