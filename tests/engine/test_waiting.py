"""Runs that wait for events, and runs that record them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import json

from ostinato import App, Retry, Run
from ostinato.engine.steps import waiting
from ostinato.errors import InvalidOption, StepMisused
from ostinato.model.change import Change, Committed, StepSaved
from ostinato.store.base import FlowStore
from ostinato.telemetry import RunClaimed, RunSuspended
from ostinato.testing import Clock, Drain, Probe
from tests.engine.databases import Database
from tests.engine.test_steps import steps_of, until

ONCE = Retry.none()


def payloads(events: Sequence[Any]) -> list[Any]:
    return [None if event is None else event.payload for event in events]


# --- being met


async def test_a_run_waits_for_the_first_event_that_it_wants(app: App, probe: Probe, database: Database):
    """Held until it comes; the event is what it goes on with, now and at later attempts."""
    seen: list[Any] = []

    @app.function(retry=Retry("0s"))
    async def mix(run: Run) -> int:
        event = await run.wait_for("approval", "order.approved", match={"$.payload.order": 2})
        assert event is not None
        seen.append(event.payload)
        if run.attempt == 1:
            raise ValueError("again")
        return event.payload["by"]  # type: ignore[no-any-return]

    async with app.worker():
        handle = await mix.enqueue()
        suspended = await probe.next(RunSuspended, run_id=handle.id)
        assert suspended.reason == "event"
        assert steps_of(database, handle.id) == [("approval", "event", "pending", 0)]
        await app.record("order.approved", {"order": 1, "by": 10})
        await app.record("order.rejected", {"order": 2, "by": 11})
        await app.record("order.approved", {"order": 2, "by": 12})
        await app.record("order.approved", {"order": 2, "by": 13})
        assert await handle.result(10) == 12
    assert seen == [{"order": 2, "by": 12}] * 2


@pytest.mark.parametrize(
    ("glob", "match"),
    [
        ("order.*", None),
        ("**", {"$.payload.items[0].sku": "a", "$.entity_id": "7"}),
        ("order.approved", "event.payload.total > 5 && event.entity_id == '7'"),
        ("order.approved", {"$.payload.total": 9}),
    ],
)
async def test_events_are_matched_by_globs_values_and_conditions(app: App, probe: Probe, glob: str, match: Any):
    """What lacks what is asked of it, or makes the condition fail, is another event."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> Any:
        event = await run.wait_for("it", glob, match=match)
        return event and event.payload

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await app.record("other", {"total": "text"})
        if match is not None:
            await app.record("order.approved", {"total": "text"})
        wanted = {"total": 9, "items": [{"sku": "a"}]}
        await app.record("order.approved", wanted, entity=("order", "7"))
        assert await handle.result(10) == wanted


async def test_bad_terms_are_refused(app: App):
    """Before anything is written."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        for terms, complaint in (
            ({"match": "event.payload."}, "match: filter .* is no CEL"),
            ({"match": "{}"}, "put a condition that begins with { into parentheses"),
            ({"match": {"payload.order": 1}}, "match"),
            ({"match": {"$.payload.order": object()}}, "match"),
            ({"match": 3}, "must be like"),
            ({"timeout": "367d"}, "longer than a year"),
            ({"since": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ):
            with pytest.raises(InvalidOption, match=complaint):
                await run.wait_for("it", "order.approved", **terms)
        return "refused"

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == "refused"


async def test_a_thousand_runs_wait_on_equal_terms(app: App, database: Database):
    """One event wakes them all."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> Any:
        event = await run.wait_for("it", "doors.opened")
        return event and event.payload

    async with app.worker():
        handles = await mix.enqueue_many([{}] * 1000)
        count = "select count(*) from ostinato_runs where state = 'held' and reason = 'event'"
        await until(lambda: database.query(count) == [(1000,)], timeout=60)
        await app.record("doors.opened", {"at": 8})
        async with asyncio.timeout(60):
            assert [await handle.result() for handle in handles] == [{"at": 8}] * 1000


# --- looking back


async def test_an_event_before_the_wait_is_not_missed(app: App):
    """From the run's start on, or from where it says."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> list[Any]:
        await run.send("say", "said.it", {"n": 1})
        found = [
            await run.wait_for("first", "said.it"),
            await run.wait_for("old", "said.before", timeout="0s"),
            await run.wait_for("older", "said.before", since="1h"),
            await run.wait_for("oldest", "said.before", since=datetime.now(UTC) - timedelta(hours=1), timeout=0),
        ]
        return payloads(found)

    await app.record("said.before", {"n": 0})
    async with app.worker():
        assert await (await mix.enqueue()).result(10) == [{"n": 1}, None, {"n": 0}, None]


async def test_a_worker_that_dies_between_registering_and_looking_back_misses_nothing(
    app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch
):
    """The next attempt looks back in its place, although the drainer has passed the event long ago."""
    look_back, dead = waiting._look_back, list[int]()

    async def die_once(*arguments: Any) -> Any:
        if not dead:
            dead.append(1)
            raise KeyError("dead")
        return await look_back(*arguments)

    monkeypatch.setattr(waiting, "_look_back", die_once)

    @app.function(retry=Retry("0s"))
    async def mix(run: Run) -> Any:
        if run.attempt == 1:
            await run.send("say", "said.it", {"n": 1})
            await until(lambda: passed(app))
        event = await run.wait_for("hear", "said.it", timeout="3s")
        return event and event.payload

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == {"n": 1}


async def passed(app: App) -> bool:
    """Whether the drainer has read all."""
    (drainer,) = [each for each in await app.drainers.list() if each.name == "workflow_runner"]
    return drainer.lag == 0


async def test_an_event_that_comes_while_the_run_looks_back_wakes_it(app: App, monkeypatch: pytest.MonkeyPatch):
    """It is neither lost nor given twice: what the drainer gave stands."""
    earlier = FlowStore.earlier

    async def late(self: FlowStore, glob: str, **terms: Any) -> Any:
        found = await earlier(self, glob, **terms)
        if not terms["after"]:
            await app.record("said.it", {"n": 1})
            await until(lambda: passed(app))
        return found

    monkeypatch.setattr(FlowStore, "earlier", late)

    @app.function(retry=ONCE)
    async def mix(run: Run) -> Any:
        event = await run.wait_for("hear", "said.it", timeout="5s")
        return event and event.payload

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == {"n": 1}


# --- one event per wait


async def test_an_event_meets_one_wait_of_a_run(app: App, probe: Probe):
    """The next wait gets the next, whether it looks back or is met."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> list[Any]:
        first = await run.wait_for("first", "said.it")
        second = await run.wait_for("second", "said.it")
        return payloads([first, second])

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await app.record("said.it", {"n": 1})
        await probe.next(RunSuspended, run_id=handle.id)
        await app.record("said.it", {"n": 2})
        assert await handle.result(10) == [{"n": 1}, {"n": 2}]


async def test_waits_at_once_get_different_events(app: App, probe: Probe):
    """Of one page of the ledger as of several, and when they look back together."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> list[Any]:
        found = await asyncio.gather(*[run.wait_for("hear", "said.it", timeout="5s") for _ in range(3)])
        return sorted(event.payload["n"] for event in found if event is not None)

    @app.function(retry=ONCE)
    async def blend(run: Run) -> list[Any]:
        for n in range(3):
            await run.send("say", "said.too", {"n": n})
        found = await asyncio.gather(*[run.wait_for("hear", "said.too", timeout="5s") for _ in range(3)])
        return sorted(event.payload["n"] for event in found if event is not None)

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await app.record_many("said.it", [{"payload": {"n": n}} for n in range(3)])
        assert await handle.result(10) == [0, 1, 2]
        assert await (await blend.enqueue()).result(10) == [0, 1, 2]


async def test_waits_in_any_order_have_their_own_memos(app: App, probe: Probe):
    """What tells them apart is what they wait for."""

    @app.function(retry=ONCE)
    async def mix(run: Run) -> list[Any]:
        async def one(order: int) -> Any:
            event = await run.wait_for("paid", "order.paid", match={"$.payload.order": order})
            return event and event.payload["order"]

        orders = [1, 2, 3] if run.lease_no % 2 else [3, 2, 1]
        return sorted(
            [[order, got] for order, got in zip(orders, await asyncio.gather(*map(one, orders)), strict=True)]
        )

    async with app.worker():
        handle = await mix.enqueue()
        for order in (2, 3, 1):
            await probe.next(RunSuspended, run_id=handle.id)
            await app.record("order.paid", {"order": order})
        assert await handle.result(10) == [[1, 1], [2, 2], [3, 3]]


# --- time


async def test_a_wait_is_over_when_its_time_is(app: App, clock: Clock, drain: Drain, database: Database):
    """None, for good: an event that comes later is not for it."""
    seen: list[Any] = []

    @app.function(retry=Retry("1h"))
    async def mix(run: Run) -> Any:
        seen.append(await run.wait_for("hear", "said.it", timeout="1h"))
        if run.attempt == 1:
            raise ValueError("again")
        return "given up"

    handle = await mix.enqueue()
    await drain()
    assert steps_of(database, handle.id) == [("hear", "event", "pending", 0)]
    clock.advance("61m")
    await drain()
    await app.record("said.it")
    clock.advance("61m")
    await drain()
    assert (await app.runs.get(handle.id)).output == "given up"
    assert seen == [None, None]


async def test_the_memo_decides_between_the_event_and_the_end_of_its_time(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
):
    """An event that comes while the wait is being given up is its answer, at this attempt and the next."""
    commit, seen = FlowStore.commit, []

    async def commit_late(self: FlowStore, changes: Sequence[Change]) -> Committed:
        if any(isinstance(change, StepSaved) and change.status == "completed" for change in changes) and not met:
            met.append(1)
            await app.record("said.it", {"n": 1})
            await until(lambda: passed(app))
        return await commit(self, changes)

    met: list[int] = []
    monkeypatch.setattr(FlowStore, "commit", commit_late)

    @app.function(retry=Retry("0s"))
    async def mix(run: Run):
        seen.append(await run.wait_for("hear", "said.it", timeout="50ms"))
        if run.attempt == 1:
            raise ValueError("again")

    async with app.worker():
        handle = await mix.enqueue()
        await handle.result(10)
    assert payloads(seen) == [{"n": 1}] * 2


async def test_waits_of_runs_that_have_ended_are_not_met(app: App, probe: Probe, database: Database):
    """They are history."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        await run.wait_for("hear", "said.it")

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunSuspended, run_id=handle.id)
        await handle.cancel()
        await app.record("said.it")
        await until(lambda: passed(app))
    assert steps_of(database, handle.id) == [("hear", "event", "pending", 0)]


async def test_nobody_is_woken_by_what_others_wait_for(app: App, probe: Probe):
    """An event that does not match costs no claim."""

    @app.function(retry=ONCE)
    async def mix(run: Run, order: int):
        await run.wait_for("hear", "order.paid", match={"$.payload.order": order})

    async with app.worker():
        handles = await mix.enqueue_many([{"order": n} for n in range(5)])
        for handle in handles:
            await probe.next(RunSuspended, run_id=handle.id)
        await app.record("order.paid", {"order": 3})
        await handles[3].result(10)
    assert len(probe.seen(RunClaimed)) == 6


# --- sending


async def test_an_event_is_recorded_once_however_often_its_run_is_attempted(app: App, database: Database):
    """In the commit that remembers it; it says who sent it."""
    ids: list[str] = []

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run) -> str:
        ids.append(await run.send("say", "said.it", {"n": 1}, entity=("mix", "7"), source="studio"))
        if run.attempt < 3:
            raise ValueError("again")
        return ids[-1]

    async with app.worker():
        handle = await mix.enqueue()
        sent = await handle.result(10)
    assert ids == [sent] * 3
    event = await app.events.get(sent)
    assert (event.payload, event.run_id, event.caused_by) == ({"n": 1}, handle.id, f"run:{handle.id}")
    assert (event.entity, event.source) == (("mix", "7"), "studio")
    assert database.query("select count(*) from ostinato_events where type = 'said.it'") == [(1,)]


async def test_events_sent_in_any_order_are_sent_once_each(app: App, database: Database):
    """What tells them apart is what they say."""

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run):
        items = [1, 2, 3, 4] if run.attempt == 1 else [4, 3, 2, 1]
        for item in items[: 2 * run.attempt]:
            await run.send("say", "said.it", {"n": item})
        if run.attempt == 1:
            raise ValueError("again")

    async with app.worker():
        await (await mix.enqueue()).result(10)
    found = database.query("select payload from ostinato_events where type = 'said.it' order by sequence_no")
    sent = [row[0] if isinstance(row[0], dict) else json.decode(row[0]) for row in found]
    assert sorted(event["n"] for event in sent) == [1, 2, 3, 4]


async def test_what_was_recorded_under_the_same_key_stands_for_what_is_sent(app: App):
    """Its id is what comes back, at every attempt."""
    ids: list[str] = []

    @app.function(retry=Retry("0s"))
    async def mix(run: Run):
        ids.append(await run.send("say", "said.it", {"n": 1}, idempotency_key="one"))
        if run.attempt == 1:
            raise ValueError("again")

    first = await app.record("said.it", {"n": 0}, idempotency_key="one")
    async with app.worker():
        await (await mix.enqueue()).result(10)
    assert ids == [first, first]


async def test_nothing_is_sent_by_a_run_that_is_not_ours_any_more(app: App, database: Database):
    """The fence holds for the event, too."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        database.query(f"update ostinato_runs set lease_no = lease_no + 1 where id = '{run.id}'")
        await run.send("say", "said.it")

    async with app.worker():
        handle = await mix.enqueue()
        await until(lambda: bool(database.query("select 1 from ostinato_runs where lease_no > 1")))
    assert database.query("select count(*) from ostinato_events where type = 'said.it'") == [(0,)]
    assert steps_of(database, handle.id) == []


async def test_a_run_sends_only_for_itself(app: App):
    """Not through another's handler."""
    runs: list[Run] = []
    seen: list[str] = []

    @app.function(retry=ONCE)
    async def mix(run: Run, place: int):
        runs.append(run)
        if place == 0:
            await asyncio.sleep(0.5)
            return
        with pytest.raises(StepMisused, match="outside of the run that it belongs to"):
            await runs[0].send("say", "said.it")
        seen.append("refused")

    async with app.worker():
        first = await mix.enqueue(place=0)
        await until(lambda: bool(runs))
        await (await mix.enqueue(place=1)).result(10)
        await first.result(10)
    assert seen == ["refused"]
