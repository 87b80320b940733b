"""What is remembered of runs: under which fence, what wakes whom, and what is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

import ostinato.store.postgres.store as postgres
from ostinato.engine.steps.meeting import met_waits
from ostinato.ids import new_id
from ostinato.model.change import Change, ChildEnded, EventRecorded, RunCompleted, StepSaved, WaitMet
from ostinato.model.run import Claimed, Reason, State
from ostinato.model.step import Kind, Memo, Status, identity
from ostinato.store.ports import Store
from tests.store import samples
from tests.store.batches import outside
from tests.store.samples import a_claimed_run, a_run, a_worker, accepted, claim, settled, view


def a_step(run: Claimed, name: str = "fetch", **fields: Any) -> StepSaved:
    given = {"place": 0, "kind": Kind.STEP, "status": Status.COMPLETED, "duration": 0.5, **fields}
    if given["status"] == Status.COMPLETED:
        given.setdefault("output", "1")
    return StepSaved(run.id, given.pop("lease_no", run.lease_no), identity(name, b"", 0), name, **given)


def a_wait(run: Claimed, name: str = "wait", glob: str = "said.it", **fields: Any) -> StepSaved:
    waits = {"kind": Kind.EVENT, "status": Status.PENDING, "awaits": glob, "wild": "*" in glob, **fields}
    return a_step(run, name, **waits)


def a_sleep(run: Claimed, delay: float, name: str = "nap") -> StepSaved:
    return a_step(run, name, kind=Kind.SLEEP, status=Status.PENDING, delay=delay)


def met(run: Claimed, name: str = "wait", event_id: str = "e1") -> WaitMet:
    return WaitMet(run.id, identity(name, b"", 0), event_id, '{"id":"x"}')


def suspended(run: Claimed, *names: str, reason: Reason = Reason.EVENT) -> Any:
    steps = tuple(identity(name, b"", 0) for name in names)
    return settled(run, State.HELD, reason=reason, refund=1, suspended=steps)


def ended(run: Claimed, state: str) -> Change:
    match state:
        case "completed":
            return samples.completed(run)
        case "failed":
            return samples.failed(run)
        case _:
            return samples.cancelled(run)


async def memos(store: Store, run: Claimed | str) -> dict[str, Memo]:
    return {memo.id: memo for memo in await store.memos([run if isinstance(run, str) else run.id])}


async def memo(store: Store, run: Claimed | str, name: str) -> Memo:
    return (await memos(store, run))[identity(name, b"", 0)]


async def a_parent(store: Store) -> tuple[Claimed, str]:
    """A run that has started another and waits for it."""
    worker = await a_worker(store)
    parent = await a_claimed_run(store, worker=worker)
    child = new_id()
    waits = a_step(parent, "kid", kind=Kind.INVOKE, status=Status.PENDING, child=child)
    started = a_run(id=child, parent_run=parent.id, parent_step=identity("kid", b"", 0))
    await accepted(store, waits, started)
    return parent, child


async def claimed_child(store: Store) -> Claimed:
    (child,) = await claim(store, 1, worker=await a_worker(store))
    return child


# --- saving


async def test_a_step_is_read_as_it_was_saved(store: Store):
    """Text as it was, seconds until it goes on, and when its run started for those who wait for events."""
    run = await a_claimed_run(store)
    output = '{"x":1e22,"é":"\\\\u0000 \\"","y":1.0}'
    await accepted(
        store,
        a_step(run, "done", output=output, retry_count=2, place=3),
        a_step(run, "broken", status=Status.FAILED, error='{"code":"x","message":"y"}'),
        a_sleep(run, 60.0),
        a_wait(run, since=1_700_000_000_123_456),
        a_wait(run, "other"),
    )
    done, broken, nap = [await memo(store, run, name) for name in ("done", "broken", "nap")]
    assert (done.output, done.retry_count, done.place, done.status, done.kind) == (output, 2, 3, "completed", "step")
    assert (broken.status, broken.error) == ("failed", '{"code":"x","message":"y"}')
    assert nap.remaining is not None
    assert 50 < nap.remaining <= 60
    assert (await memo(store, run, "wait")).since == 1_700_000_000_123_456
    started = (await view(store, run)).started_at
    assert started is not None
    assert (await memo(store, run, "other")).since == round(started.timestamp() * 1_000_000)


@pytest.mark.parametrize("why", ["stale lease", "cancelled", "given back", "completed", "unknown"])
async def test_a_step_is_saved_only_under_the_fence(store: Store, why: str):
    """With the children and events that go with it; and others of the same commit are none the worse."""
    worker = await a_worker(store)
    run, other = await a_claimed_run(store, worker=worker), await a_claimed_run(store, worker=worker)
    step = a_step(run, lease_no=run.lease_no - 1 if why == "stale lease" else run.lease_no)
    match why:
        case "cancelled":
            await store.cancel([run.id], "not wanted")
        case "given back":
            await accepted(store, samples.given_back(run))
        case "completed":
            await accepted(store, samples.completed(run))
        case "unknown":
            step = a_step(Claimed(new_id(), 1, "mix", "default", 1, "{}", 0, 0.0))
    child = a_run(parent_run=step.run_id, parent_step=step.id)
    event = EventRecorded(new_id(), "said.it", Raw(b"{}"), run_id=step.run_id)
    committed = await store.commit([step, child, event, a_step(other)])
    assert committed.refused == {step.run_id}
    assert await store.memos([step.run_id]) == []
    assert await store.views.run(child.id) is None
    assert await store.views.events([event.id]) == []
    assert (await memo(store, other, "fetch")).status == "completed"


async def test_two_leases_of_a_run_in_one_commit(store: Store):
    """The stale one's step is not saved with the other's."""
    worker = await a_worker(store)
    stale = await a_claimed_run(store, worker=worker)
    await accepted(store, samples.given_back(stale))
    (run,) = await claim(store, 1, worker=worker)
    await store.commit([a_step(stale, "stale"), a_step(run, "fresh")])
    assert identity("stale", b"", 0) not in await memos(store, run)


async def test_what_has_ended_is_never_written_again(store: Store):
    """Completed or failed: the first answer stands."""
    run = await a_claimed_run(store)
    await accepted(store, a_step(run), a_step(run, "bad", status=Status.FAILED, error="{}"))
    await accepted(
        store,
        a_step(run, output="2"),
        a_step(run, "bad", output="2"),
    )
    await accepted(store, a_step(run, status=Status.PENDING, delay=1.0), a_step(run, "bad", status=Status.RUNNING))
    assert (await memo(store, run, "fetch")).output == "1"
    assert (await memo(store, run, "bad")).status == "failed"


async def test_what_is_pending_or_running_goes_on(store: Store):
    """Running, pending for its next try, and done; when it began stays."""
    run = await a_claimed_run(store)
    await accepted(store, a_step(run, status=Status.RUNNING))
    await accepted(store, a_step(run, status=Status.PENDING, delay=5.0, retry_count=1, error="{}"))
    pending = await memo(store, run, "fetch")
    assert (pending.status, pending.retry_count) == ("pending", 1)
    await accepted(store, a_step(run, retry_count=1))
    done = await memo(store, run, "fetch")
    assert (done.status, done.error, done.remaining) == ("completed", None, None)


async def test_a_note_that_it_runs_comes_late(store: Store):
    """It had failed meanwhile, and waits for its next try: that stands, until that try is noted."""
    run = await a_claimed_run(store)
    await accepted(store, a_step(run, status=Status.PENDING, delay=5.0, retry_count=1, error="{}"))
    await accepted(store, a_step(run, status=Status.RUNNING, retry_count=0))
    pending = await memo(store, run, "fetch")
    assert (pending.status, pending.retry_count, pending.error) == ("pending", 1, "{}")
    assert pending.remaining is not None
    await accepted(store, a_step(run, status=Status.RUNNING, retry_count=1))
    assert (await memo(store, run, "fetch")).status == "running"


# --- being held and woken


async def test_a_run_is_held_until_the_first_of_what_it_waits_for(store: Store):
    """Not for other steps of its that are pending; its attempt is returned."""
    run = await a_claimed_run(store)
    await accepted(store, a_sleep(run, 0.0, "stale"), a_sleep(run, 60.0, "long"), a_sleep(run, 30.0, "short"))
    await accepted(store, suspended(run, "long", "short", reason=Reason.SLEEP))
    held = await view(store, run)
    assert (held.state, held.reason, held.attempt) == (State.HELD, "sleep", 0)
    assert await store.release_due("default", 10) == 0
    assert 25 < (await store.next_due("default") or 0) <= 30


async def test_a_run_without_a_time_is_held_until_something_comes(store: Store):
    """For a hundred years."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run), suspended(run, "wait"))
    assert (await store.next_due("default") or 0) > 99 * 365 * 86400


async def test_what_comes_wakes_a_run_that_is_held(store: Store):
    """It is due now."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run), suspended(run, "wait"))
    await store.commit([met(run)])
    woken = await view(store, run)
    assert (woken.state, woken.reason) == (State.READY, None)
    got = await memo(store, run, "wait")
    assert (got.status, got.event_id, got.output) == ("completed", "e1", '{"id":"x"}')
    (again,) = await claim(store, 1, worker=await a_worker(store))
    assert (again.attempt, again.lease_no, again.waited < 5) == (1, 2, True)


async def test_what_comes_while_a_run_is_about_to_be_held_keeps_it_from_that(store: Store):
    """It is ready at once, before those who came later; and it is asked once."""
    worker = await a_worker(store)
    run = await a_claimed_run(store, worker=worker)
    await accepted(store, a_wait(run))
    await store.commit([met(run)])
    assert (await view(store, run)).state == State.RUNNING
    await accepted(store, suspended(run, "wait"))
    assert (await view(store, run)).state == State.READY
    later = await samples.enqueue(store)
    first, second = await claim(store, 2, worker=worker)
    assert [first.id, second.id] == [run.id, later]
    await accepted(store, a_wait(first, "next"), suspended(first, "next"))
    assert (await view(store, first)).state == State.HELD


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_what_comes_does_not_wake_a_run_that_has_ended(store: Store, state: str):
    """It stays as it is."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run))
    await accepted(store, ended(run, state))
    await store.commit([met(run)])
    assert (await view(store, run)).state == state


async def test_a_run_that_is_held_for_a_retry_is_not_woken_by_what_it_waited_for(store: Store):
    """Its time is its policy's."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run))
    await accepted(store, samples.held(run, 60.0))
    await store.commit([met(run)])
    assert (await view(store, run)).reason == "retry"


# --- events


async def test_a_run_gets_an_event_once(store: Store):
    """Whatever gives it: one of two waits has it."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run, "a"), a_wait(run, "b"))
    await store.commit([met(run, "a", "e1")])
    await store.commit([met(run, "b", "e1")])
    await store.commit([met(run, "a", "e2")])
    assert [(await memo(store, run, name)).event_id for name in "ab"] == ["e1", None]
    await store.commit([met(run, "b", "e2")])
    assert (await memo(store, run, "b")).event_id == "e2"


async def test_many_who_give_events_at_once_give_each_once(store: Store):
    """In any order, without an error."""
    run = await a_claimed_run(store)
    names = [f"w{n}" for n in range(6)]
    await accepted(store, *[a_wait(run, name) for name in names])
    gifts = [met(run, name, f"e{n}") for n in range(6) for name in names]
    await asyncio.gather(*[store.commit([gift]) for gift in gifts])
    got = [(await memo(store, run, name)).event_id for name in names]
    assert sorted(got, key=str) == [f"e{n}" for n in range(6)]


async def test_waits_are_found_by_the_types_of_events(store: Store):
    """Those of runs that have not ended, whether they have looked back or not."""
    worker = await a_worker(store)
    run, gone = [await a_claimed_run(store, worker=worker) for _ in range(2)]
    await accepted(
        store,
        a_wait(run, "exact"),
        a_wait(run, "wild", "said.*", matches='{"$.payload.n":1}'),
        a_wait(run, "looking", status=Status.RUNNING),
        a_wait(run, "other", "done.it"),
        a_wait(gone, "gone"),
        a_step(run, "none"),
    )
    await accepted(store, samples.completed(gone))
    async with store.begin() as transaction:
        found = await store.waits(transaction, ["said.it", "said.no"])
        held = await store.hold_waiting(transaction, [run.id])
    names = {identity(name, b"", 0): name for name in ("exact", "wild", "looking", "other", "gone")}
    assert {(names[wait.step_id], wait.glob, wait.matches) for wait in found} == {
        ("exact", "said.it", None),
        ("looking", "said.it", None),
        ("wild", "said.*", '{"$.payload.n":1}'),
    }
    assert {names[step] for _, step in held.waiting} == {"exact", "wild", "looking", "other"}
    assert held.used == set()


async def test_a_run_that_is_held_fast_shows_what_it_has_got(store: Store):
    """So that nobody gives it again."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run, "a"), a_wait(run, "b"))
    await store.commit([met(run, "a", "e1")])
    async with store.begin() as transaction:
        held = await store.hold_waiting(transaction, [run.id])
    assert (held.waiting, held.used) == ({(run.id, identity("b", b"", 0))}, {(run.id, "e1")})


async def test_an_event_that_a_run_has_does_not_keep_it_from_the_next_of_a_page(store: Store):
    """The drainer passes a page once: what it does not give, nobody will."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run, "a", since=0), a_wait(run, "b", since=0))
    events = [EventRecorded(new_id(), "said.it", Raw(b"{}")) for _ in range(3)]
    await store.commit(events)
    page = sorted(await store.views.events([event.id for event in events]), key=lambda event: event.sequence_no)
    await store.commit([met(run, "a", page[0].id)])
    async with store.begin() as transaction:
        found = await met_waits(store, transaction, page)
    assert [(wait.step_id, wait.event_id) for wait in found] == [(identity("b", b"", 0), page[1].id)]


async def test_an_event_that_is_given_while_the_drainer_decides_is_given_once(store: Store):
    """Who looks back at the same time waits for the drainer, or the drainer for him: neither takes the other's."""
    run = await a_claimed_run(store)
    await accepted(store, a_wait(run, "a", since=0), a_wait(run, "b", since=0))
    events = [EventRecorded(new_id(), "said.it", Raw(b"{}")) for _ in range(2)]
    await store.commit(events)
    page = sorted(await store.views.events([event.id for event in events]), key=lambda event: event.sequence_no)
    async with store.begin() as transaction:
        found = await met_waits(store, transaction, page)
        beside = outside(store.commit([met(run, "b", page[0].id)]))
        await transaction.apply(found)
        await transaction.commit()
    await beside
    got = {(await memo(store, run, name)).event_id for name in "ab"}
    assert got == {event.id for event in page}


async def test_what_was_sent_before_under_a_key_is_remembered_in_its_place(store: Store):
    """The step's output is the event that there is."""
    run = await a_claimed_run(store)
    first = EventRecorded(new_id(), "said.it", Raw(b"{}"), idempotency_key="k")
    await store.commit([first])
    second = EventRecorded(new_id(), "said.it", Raw(b"{}"), run_id=run.id, idempotency_key="k")
    committed = await store.commit([a_step(run, kind=Kind.SEND, output=f'"{second.id}"'), second])
    assert committed.recorded == {second.id: first.id}
    assert (await memo(store, run, "fetch")).output == f'"{first.id}"'


# --- children


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize("order", ["held first", "ended first"])
async def test_a_childs_end_is_told_to_its_parent(store: Store, state: str, order: str):
    """In the same commit, whether the parent is held already or about to be."""
    parent, child_id = await a_parent(store)
    child = await claimed_child(store)
    assert (child.id, child.parent) == (child_id, parent.id)
    hold = suspended(parent, "kid", reason=Reason.CHILD)
    end = ended(child, state)
    told = ChildEnded(child.id, child.lease_no)
    if order == "held first":
        await accepted(store, hold)
        await accepted(store, end, told)
    else:
        await accepted(store, end, told)
        await accepted(store, hold)
    assert (await view(store, parent)).state == State.READY
    step = await memo(store, parent, "kid")
    if state == "completed":
        assert (step.status, (step.output or "").replace(" ", "")) == ("completed", '{"ok":true}')
    else:
        assert (step.status, f"run_{state}" in (step.error or ""), child.id in (step.error or "")) == (
            "failed",
            True,
            True,
        )


async def test_an_end_that_is_refused_is_not_told(store: Store):
    """The lease is another's."""
    parent, _ = await a_parent(store)
    child = await claimed_child(store)
    stale = RunCompleted(child.id, child.lease_no + 1, Raw(b"1"))
    await store.commit([stale, ChildEnded(child.id, child.lease_no + 1)])
    assert (await memo(store, parent, "kid")).status == "pending"


async def test_a_child_that_its_parent_does_not_wait_for_any_more_tells_it_nothing(store: Store):
    """The step has another child now."""
    parent, _ = await a_parent(store)
    former = a_run(parent_run=parent.id, parent_step=identity("kid", b"", 0), priority=600)
    await store.commit([former])
    child = await claimed_child(store)
    assert child.id == former.id
    await accepted(store, samples.completed(child), ChildEnded(child.id, child.lease_no))
    assert (await memo(store, parent, "kid")).status == "pending"


async def test_a_parent_that_a_person_retries_waits_for_the_child_that_it_has(store: Store):
    """One that goes on is not forgotten."""
    parent, _ = await a_parent(store)
    child = await claimed_child(store)
    await accepted(store, samples.failed(parent))
    await store.retry([parent.id])
    (again,) = await claim(store, 1, worker=await a_worker(store))
    kept = await memo(store, parent, "kid")
    assert (kept.status, kept.child) == ("pending", child.id)
    await accepted(store, samples.completed(child), ChildEnded(child.id, child.lease_no))
    assert (await memo(store, again, "kid")).status == "completed"


@pytest.mark.parametrize("how", ["a person", "its handler"])
async def test_children_are_cancelled_with_their_parent(store: Store, how: str):
    """Those that wait at once; those that run are asked to stop."""
    parent, waiting = await a_parent(store)
    running_step = a_step(parent, "other", kind=Kind.INVOKE, status=Status.PENDING, child="x")
    await accepted(store, running_step)
    running = a_run(parent_run=parent.id, parent_step=identity("other", b"", 0), priority=600)
    await store.commit([running])
    child = await claimed_child(store)
    assert child.id == running.id
    if how == "a person":
        await store.cancel([parent.id], "not wanted")
    else:
        await accepted(store, samples.cancelled(parent))
    assert (await view(store, waiting)).state == State.CANCELLED
    fence = (await store.fences([child.id]))[child.id]
    assert (fence.state, fence.cancel_requested, fence.message) == ("running", True, "not wanted")


async def test_a_child_that_is_purged_has_failed_its_parents_step(store: Store):
    """Nobody waits for ever."""
    parent, child = await a_parent(store)
    await accepted(store, suspended(parent, "kid", reason=Reason.CHILD))
    assert await store.purge([child], state=State.READY) == [child]
    assert (await view(store, parent)).state == State.READY
    assert (await memo(store, parent, "kid")).status == "failed"


async def test_a_child_of_nobody_ends_in_peace(store: Store):
    """Its parent was removed."""
    parent, _ = await a_parent(store)
    child = await claimed_child(store)
    await accepted(store, samples.failed(parent))
    assert await store.purge([parent.id], state=State.FAILED) == [parent.id]
    await accepted(store, samples.completed(child), ChildEnded(child.id, child.lease_no))
    assert (await view(store, child)).state == State.COMPLETED


# --- forgetting


async def test_steps_go_with_their_runs(store: Store):
    """When they are pruned and when they are purged."""
    worker = await a_worker(store)
    pruned, purged, kept = [await a_claimed_run(store, worker=worker) for _ in range(3)]
    for run in (pruned, purged, kept):
        await accepted(store, a_step(run))
    await accepted(store, samples.completed(pruned))
    await accepted(store, samples.failed(purged))
    assert await store.prune("completed", keep=-1.0, limit=10) == 1
    assert await store.purge([purged.id], state=State.FAILED) == [purged.id]
    assert [run.id for run in (pruned, purged, kept) if await store.memos([run.id])] == [kept.id]


async def test_a_run_that_a_person_retries_forgets_what_it_has_not_completed(store: Store):
    """What failed and what waited is done again; what is done is done."""
    run = await a_claimed_run(store)
    await accepted(
        store,
        a_step(run, "done"),
        a_step(run, "failed", status=Status.FAILED, error="{}"),
        a_step(run, "running", status=Status.RUNNING),
        a_wait(run),
        a_sleep(run, 60.0),
    )
    await accepted(store, samples.failed(run))
    await store.retry([run.id])
    assert set(await memos(store, run)) == {identity("done", b"", 0)}


async def test_memos_of_many_runs_are_read_at_once(store: Store):
    """Each with its own."""
    worker = await a_worker(store)
    runs: Sequence[Claimed] = await samples.claimed_runs(store, 3, worker=worker)
    await accepted(store, *[a_step(run, output=f'"{run.id}"') for run in runs])
    found = await store.memos([run.id for run in runs])
    assert {(memo.run_id, memo.output) for memo in found} == {(run.id, f'"{run.id}"') for run in runs}


async def test_a_parent_can_be_cancelled_while_its_children_end(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Both lock the parent before the child, so that neither waits for the other; nobody has to try again."""
    monkeypatch.setattr(postgres, "_TRIES", 1)
    worker = await a_worker(store)
    for _ in range(5):
        parent = await a_claimed_run(store, worker=worker)
        names = [f"kid{n}" for n in range(4)]
        for name in names:
            child = a_run(parent_run=parent.id, parent_step=identity(name, b"", 0))
            waits = a_step(parent, name, kind=Kind.INVOKE, status=Status.PENDING, child=child.id)
            await accepted(store, waits, child)
        children = await claim(store, 4, worker=worker)
        ends: list[list[Change]] = [
            [samples.completed(child), ChildEnded(child.id, child.lease_no)] for child in children
        ]
        await asyncio.gather(*[store.commit(end) for end in ends], store.cancel([parent.id], "not wanted"))
        assert (await store.fences([parent.id]))[parent.id].cancel_requested
