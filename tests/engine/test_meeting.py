"""Events and those who wait for them: who is shown which, however many there are of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from ostinato import App, Run
from ostinato.engine.ledger import dispatching
from ostinato.engine.steps.meeting import Offered, met_waits
from ostinato.errors import TransactionMisused
from ostinato.model import matching
from ostinato.model.change import WaitMet
from ostinato.model.event import Event
from ostinato.model.glob import matches
from ostinato.model.step import Wait
from ostinato.store.ports import Store, Transaction
from ostinato.telemetry import RunSuspended
from ostinato.testing import Probe

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SINCE = round(NOON.timestamp() * 1_000_000)

PAYLOADS: list[Any] = [
    {},
    {"n": 1},
    {"n": 1.0},
    {"n": True},
    {"n": "1"},
    {"n": None},
    {"n": [1]},
    {"n": [True]},
    {"n": {"a": 1}},
    {"n": 1, "m": 2},
]
MATCHES: list[Any] = [
    None,
    *({"$.payload.n": payload["n"]} for payload in PAYLOADS if "n" in payload),
    {"$.payload.n": 1, "$.payload.m": 2},
    {"$.payload.m": 2, "$.type": "order.paid"},
    {"$.payload": {"n": 1}},
    "event.payload.n == 1",
]
GLOBS = ["order.paid", "order.*", "**", "order.lost"]


def an_event(number: int, kind: str, payload: Any) -> Event:
    return Event(id=f"e{number}", type=kind, payload=payload, sequence_no=number, occurred_at=NOON, recorded_at=NOON)


def a_wait(glob: str, match: Any, since: int = SINCE) -> Wait:
    return Wait("run", "step", glob, matching.text_of(match), since)


@pytest.mark.parametrize("glob", GLOBS)
@pytest.mark.parametrize("match", MATCHES, ids=str)
def test_a_wait_is_offered_what_it_accepts_and_nothing_else(glob: str, match: Any):
    """As if each event had been shown to each wait; in their order."""
    kinds = ("order.paid", "order.sent", "price.set")
    events = [an_event(3 * n + k, kind, payload) for n, payload in enumerate(PAYLOADS) for k, kind in enumerate(kinds)]
    accepts = matching.compiled(matching.text_of(match))
    expected = [event.id for event in events if matches(glob, event.type) and accepts(event)]
    offered = Offered(events)

    assert expected == [event.id for event in offered.to(a_wait(glob, match))]
    assert offered.to(a_wait(glob, match, SINCE + 1)) == []


def test_many_waits_for_many_events_are_not_many_times_many_questions(monkeypatch: pytest.MonkeyPatch):
    """A thousand of each: who asks for a value is shown the events that have it."""
    asked: list[Event] = []
    compiled = matching.compiled

    def counted(text: str | None) -> Callable[[Event], bool]:
        def accepts(event: Event) -> bool:
            asked.append(event)
            return compiled(text)(event)

        return accepts

    monkeypatch.setattr(matching, "compiled", counted)
    offered = Offered([an_event(n, "order.paid", {"order": n}) for n in range(1000)])

    for n in range(1000):
        assert [f"e{n}"] == [
            event.id for event in offered.to(Wait("r", "s", "order.paid", f'{{"$.payload.order":{n}}}', 0))
        ]
    assert len(asked) == 1000


async def test_a_page_that_is_too_much_for_one_pass_is_dealt_with_event_by_event(
    app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch
):
    """Events that somebody waits for are tried alone as well, so that the drainer does not stand still for ever."""

    async def met_if_few(store: Store, transaction: Transaction, events: Sequence[Event]) -> list[WaitMet]:
        if len([event for event in events if event.type == "order.paid"]) > 1:
            raise TransactionMisused("the transaction lasted longer than 5 s")
        return await met_waits(store, transaction, events)

    monkeypatch.setattr(dispatching, "met_waits", met_if_few)

    @app.function
    async def ship(run: Run, order: int) -> int:
        event = await run.wait_for("payment", "order.paid", match=f"event.payload.order == {order}")
        assert event is not None
        return int(event.payload["order"])

    async with app.worker():
        handles = [await ship.enqueue(order=order) for order in range(5)]
        for handle in handles:
            await probe.next(RunSuspended, run_id=handle.id)
        await app.record_many("order.paid", [{"payload": {"order": order}} for order in range(5)])
        assert [await handle.result(10) for handle in handles] == list(range(5))
