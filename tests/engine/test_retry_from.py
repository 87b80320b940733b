"""Looking at the steps of runs, and doing a run again from one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

import ostinato.engine.deadlines
from ostinato import App, Retry, Run, RunFailed
from ostinato.errors import IllegalMove, UnknownRun, UnknownStep
from ostinato.sync import Client
from ostinato.telemetry import QueueAsleep, RunSuspended, StepCompleted, StepRetried
from ostinato.testing import Drain, Probe
from tests.engine.conftest import MakeApp


class Order:
    """A function of four steps, and what its steps did."""

    def __init__(self, app: App) -> None:
        self.did: Counter[str] = Counter()
        self.broken = True

        async def do(what: str) -> str:
            self.did[what] += 1
            if what == "charge" and self.broken:
                raise ValueError("the card was declined")
            return f"{what}-{self.did[what]}"

        @app.function(retry=Retry.none())
        async def child() -> str:
            return await do("child")

        @app.function(retry=Retry.none())
        async def order(run: Run, number: int) -> list[str]:
            first = await asyncio.gather(*(run.step("fetch", do, what) for what in ("a", "b")))
            await run.sleep("nap", "1ms")
            invoked = await run.invoke("child", child)
            charged = await run.step("charge", do, "charge")
            return [*first, invoked, charged, await run.step("ship", do, "ship")]

        self.function = order


@pytest.fixture
def order(app: App) -> Order:
    return Order(app)


async def a_failed_order(order: Order, drain: Drain) -> str:
    handle = await order.function.enqueue(number=1)
    await drain(until="1s")
    with pytest.raises(RunFailed, match="step 'charge' failed: the card was declined"):
        await handle.result(1)
    return handle.id


async def test_a_failed_run_goes_again_from_its_failed_step(app: App, order: Order, drain: Drain):
    """What came before is remembered, sleeps and children included; the rest is done."""
    failed = await a_failed_order(order, drain)
    order.broken = False

    handle = await app.runs.retry(failed, from_step="charge")

    assert (handle.created, handle.id != failed) == (True, True)
    await drain()
    assert await handle.result(1) == ["a-1", "b-1", "child-1", "charge-2", "ship-1"]
    assert await app.runs.children(handle.id) == []
    view = await app.runs.get(handle.id)
    assert (failed, "api", {"number": 1}, 1) == (view.copied_from, view.invoked_by, view.input, view.attempt)
    assert (await app.runs.get(failed)).state == "failed"


async def test_a_completed_run_goes_again_from_any_step(app: App, order: Order, drain: Drain):
    """By name, by name and number, or by id; all of that step and after it is done again."""
    order.broken = False
    handle = await order.function.enqueue(number=1)
    await drain(until="1s")
    steps = await app.runs.steps(handle.id)

    for wanted in ("fetch#2", steps[1].id):
        again = await app.runs.retry(handle.id, from_step=wanted)
        await drain(until="1s")
        assert (await again.result(1))[0] == "a-1"
    assert {"a": 1, "b": 3, "child": 3, "charge": 3, "ship": 3} == order.did
    again = await app.runs.retry(handle.id, from_step="fetch")
    await drain(until="1s")
    assert (await again.result(1))[0] == "a-2"
    names = [step.name for step in await app.runs.steps(again.id)]
    assert ["fetch", "fetch", "nap", "child", "charge", "ship"] == names


async def test_the_runs_own_id_tells_no_steps_apart(app: App, drain: Drain):
    """An idempotency key among the arguments is another one in the copy, and the step is the same."""
    keys: list[str] = []

    @app.function
    async def work(run: Run) -> str:
        await run.step("charge", keys.append, run.idempotency_key("charge"))
        await run.options(key=run.idempotency_key("x")).step("charge", keys.append, "x")
        await run.step("last", lambda: None)
        return run.idempotency_key()

    handle = await work.enqueue()
    await drain()
    copy = await app.runs.retry(handle.id, from_step="last")
    await drain()
    assert await copy.result(1) == copy.id
    assert [f"{handle.id}:charge", "x"] == keys


async def test_a_copy_of_a_copy(app: App, order: Order, drain: Drain):
    """Names the one it was made from."""
    failed = await a_failed_order(order, drain)
    second = await app.runs.retry(failed, from_step="charge")
    await drain()
    third = await app.runs.retry(second.id, from_step="charge")
    assert (await app.runs.get(third.id)).copied_from == second.id
    assert {"a": 1, "b": 1, "child": 1, "charge": 2} == order.did


async def test_a_step_that_is_not_there_is_refused(app: App, order: Order, drain: Drain):
    """With the names that are; nothing is written."""
    failed = await a_failed_order(order, drain)
    with pytest.raises(UnknownStep) as refused:
        await app.runs.retry(failed, from_step="chrage")
    assert f"run {failed} has no step 'chrage'; its steps are 'fetch', 'fetch#2', 'nap', 'child', 'charge'" == str(
        refused.value
    )
    with pytest.raises(UnknownRun):
        await app.runs.retry("nobody", from_step="charge")
    assert 2 == len(await app.runs.list())


async def test_a_run_that_has_not_ended_is_refused(app: App, order: Order):
    """It can be cancelled first."""
    handle = await order.function.enqueue(number=1)
    with pytest.raises(IllegalMove, match=f"run {handle.id} is ready; only ended runs can be done again from a step"):
        await app.runs.retry(handle.id, from_step="charge")


async def test_the_event_that_started_a_run_is_the_copys_too(app: App, drain: Drain):
    """A handler that asks for it gets it, and its trace shows both runs."""
    seen: list[str] = []

    @app.function(on="order.placed")
    async def work(run: Run) -> None:
        await run.step("first", lambda: None)
        event = await run.event
        assert event is not None
        seen.append(event.id)

    await drain()  # declares the subscription
    event_id = await app.record("order.placed")
    (ran,) = await drain()
    copy = await app.runs.retry(ran.run_id, from_step="first")
    await drain()
    assert [event_id, event_id] == seen
    assert (await app.runs.get(copy.id)).event_id == event_id
    trace = await app.events.trace(event_id)
    assert {ran.run_id, copy.id} == {each.id for each in trace.descendants}


async def test_a_sleeping_worker_is_woken_for_a_copy(app: App, order: Order, drain: Drain, probe: Probe):
    """It need not wait for the next poll."""
    order.broken = False
    handle = await order.function.enqueue(number=1)
    await drain(until="1s")
    async with app.worker():
        for time in (2, 3, 4):  # the first may be found because the worker does not listen yet
            await probe.next(QueueAsleep)
            again = await app.runs.retry(handle.id, from_step="ship")
            assert (await again.result(5))[-1] == f"ship-{time}"


def test_the_sync_client_has_the_same(make_app: MakeApp):
    """Steps, children, and a handle that blocks."""
    app = make_app()
    order = Order(app)
    order.broken = False
    drain = Drain(app)
    with Client(app) as client:
        handle = client.enqueue(order.function, {"number": 1})
        while handle.status() != "completed":
            drain.sync()
        assert 6 == len(client.runs.steps(handle.id))
        assert ["child"] == [child.function for child in client.runs.children(handle.id)]
        again = client.runs.retry(handle.id, from_step="ship")
        drain.sync()
        assert again.result(1)[-1] == "ship-2"


# --- looking


async def test_steps_of_a_run_that_is_not_there(app: App, order: Order):
    """Is an error; one without steps is not."""
    handle = await order.function.enqueue(number=1)
    assert ([], []) == (await app.runs.steps(handle.id), await app.runs.children(handle.id))
    with pytest.raises(UnknownRun):
        await app.runs.steps("nobody")
    with pytest.raises(UnknownRun):
        await app.runs.children("nobody")


async def shown(app: App, run_id: str, wanted: Callable[[list[str]], bool]) -> list[str]:
    """The statuses of the run's steps, once they are as wanted."""
    async with asyncio.timeout(10):
        while not wanted(found := [step.status.value for step in await app.runs.steps(run_id)]):  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
    return found


async def test_a_step_that_takes_long_is_seen_to_run(app: App, monkeypatch: pytest.MonkeyPatch):
    """Quick ones are written down when they are done, and not before."""
    monkeypatch.setattr(ostinato.engine.deadlines, "LONG", 0.1)
    go_on = asyncio.Event()

    @app.function
    async def work(run: Run) -> str:
        await run.step("quick", lambda: None)
        await run.step("long", go_on.wait)
        return "done"

    async with app.worker():
        handle = await work.enqueue()
        assert ["completed", "running"] == await shown(app, handle.id, lambda found: len(found) == 2)
        assert (await app.runs.get(handle.id)).pending_steps == 1
        assert (await app.runs.steps(handle.id))[1].ended_at is None
        go_on.set()
        assert await handle.result(10) == "done"
        assert ["completed", "completed"] == [step.status for step in await app.runs.steps(handle.id)]


async def test_a_retried_step_that_takes_long_keeps_its_count(app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch):
    """What is written while it runs does not give it its tries back."""
    monkeypatch.setattr(ostinato.engine.deadlines, "LONG", 0.1)
    go_on, tries = asyncio.Event(), 0

    async def flaky() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("not yet")
        await go_on.wait()

    @app.function(retry=Retry("10ms"))
    async def work(run: Run) -> None:
        await run.step("flaky", flaky)

    async with app.worker():
        handle = await work.enqueue()
        await probe.next(StepRetried, run_id=handle.id)
        await probe.next(RunSuspended, run_id=handle.id)
        await shown(app, handle.id, lambda found: found == ["running"])
        (step,) = await app.runs.steps(handle.id)
        assert 1 == step.retry_count
        go_on.set()
        await probe.next(StepCompleted, run_id=handle.id)
