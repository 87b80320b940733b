"""Events that cancel runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostinato import App, CancelOn, ConfigError, Run, RunCancelled
from ostinato.testing import Drain
from tests.engine.conftest import MakeApp

BY_ORDER = CancelOn("order.cancelled", match={"$.payload.order.id": "$.order_id"})


async def waits(run: Run) -> None:
    await run.sleep("nap", "1h")


async def test_an_event_cancels_the_runs_that_it_is_about(app: App, drain: Drain):
    """Those whose input has what the event has, that wait or sleep, and what they wait for."""

    @app.function
    async def child(run: Run) -> None:
        await waits(run)

    @app.function(cancel_on=BY_ORDER)
    async def ship(run: Run, order_id: Any) -> None:
        await run.invoke("child", child)

    meant, other = await ship.enqueue(order_id=1), await ship.enqueue(order_id=2)
    text = await ship.enqueue(order_id="1")
    await drain()
    delayed = await ship.options(delay="1d").enqueue(order_id=1)
    event_id = await app.record("order.cancelled", {"order": {"id": 1}})
    await drain()

    statuses = [await handle.status() for handle in (meant, other, text, delayed)]
    assert ["cancelled", "waiting", "waiting", "cancelled"] == statuses
    with pytest.raises(RunCancelled, match=f"cancelled by order.cancelled, event {event_id}"):
        await meant.result(1)
    assert 1 == len(await app.runs.list(function="child", state="cancelled"))


async def test_later_runs_are_not_meant(app: App, drain: Drain):
    """An event is about what was there before it."""

    @app.function(cancel_on="shop.closed")
    async def ship(run: Run) -> None:
        await waits(run)

    before = await ship.enqueue()
    await drain()
    await app.record("shop.closed")
    after = await ship.enqueue()
    await drain()

    assert ("cancelled", "waiting") == (await before.status(), await after.status())


async def test_events_that_lack_what_is_asked_cancel_nothing(app: App, drain: Drain):
    """Nor do those that have null there, or are of another type."""

    @app.function(cancel_on=[BY_ORDER, CancelOn("user.*", match={"$.entity_id": "$.user.id"})])
    async def ship(run: Run, order_id: int | None = None, user: dict[str, str] | None = None) -> None:
        await waits(run)

    nameless, owned = await ship.enqueue(), await ship.enqueue(order_id=1, user={"id": "u1"})
    await drain()
    for payload in ({}, {"order": 1}, {"order": {"id": None}}, {"order": {"id": 3}}):
        await app.record("order.cancelled", payload)
    await app.record("order.placed", {"order": {"id": 1}})
    await drain()
    assert ("waiting", "waiting") == (await nameless.status(), await owned.status())

    await app.record("user.left", entity=("user", "u1"))
    await drain()
    assert ("waiting", "cancelled") == (await nameless.status(), await owned.status())


async def test_a_handler_is_stopped_by_an_event(app: App):
    """The one that runs, at once."""
    started, seen = asyncio.Event(), list[object]()

    @app.function(cancel_on=BY_ORDER, lifecycle=("cancelled",))
    async def ship(run: Run, order_id: int) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(run.stopping)

    async with app.worker():
        handle = await ship.enqueue(order_id=1)
        await started.wait()
        await app.record("order.cancelled", {"order": {"id": 1}})
        with pytest.raises(RunCancelled):
            await handle.result(5)
    assert ["cancel"] == seen
    (event,) = await app.events.recent(on="run.cancelled")
    assert handle.id == event.payload["run_id"]


async def test_any_worker_knows_what_cancels_a_run(make_app: MakeApp):
    """Also one that does not have the function, and runs that others enqueued."""
    async with make_app() as there:

        @there.function(cancel_on="shop.*", queue="there")
        async def ship() -> None: ...

        await Drain(there)()
    async with make_app() as here:

        @here.function
        async def unrelated() -> None: ...

        handle = await here.enqueue("ship")
        await here.queues.pause("there")
        await here.record("shop.closed")
        await Drain(here)()
        assert "cancelled" == await handle.status()


def test_bad_rules_are_refused():
    """With what was given and what would do."""
    app = App("sqlite:///unused.db")
    for match, said in (
        ({"$.payload.id": "order_id"}, "'order_id' must be a path of plain names into the input"),
        ({"$.payload.id": "$.a[0]"}, "must be a path of plain names"),
        ({"$.paylod.id": "$.a"}, "an event has no 'paylod'"),
        ("order_id", "must be like"),
    ):
        with pytest.raises(ConfigError, match=f"function 'ship': cancel_on: .*{said}"):
            app.function(name="ship", cancel_on=CancelOn("order.cancelled", match=match))(waits)  # type: ignore[arg-type]
