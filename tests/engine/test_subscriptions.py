"""Subscriptions: declared in code or added at run time, switched, removed, and asked what an event would start."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel

from ostinato import App, ConfigError, InvalidInput, UnknownFunction
from ostinato.engine.ledger import catching_up, dispatching
from ostinato.engine.ledger.dispatching import Dispatcher
from ostinato.errors import IllegalMove, StoreUnavailable, UnknownSubscription
from ostinato.model.event import NOT_CAUGHT_UP, Event
from ostinato.model.filter import compile_filter
from ostinato.model.view import SubscriptionView
from ostinato.telemetry import SubscriptionCaughtUp
from ostinato.testing import Clock, Probe
from tests.engine.conftest import MakeApp
from tests.engine.ledger import an_event, record, runs_of, subscribe

PRICE = {"delta": 7}


class Repriced(Struct):
    sku: str
    tier: str = "gold"


class Open(BaseModel, extra="allow"):
    sku: str


def with_functions(app: App) -> App:
    @app.function
    async def reprice(sku: str, delta: int = 0): ...

    @app.function
    async def anything(**fields: Any): ...

    @app.function
    async def restock(given: Repriced): ...

    return app


@pytest.fixture
def declared() -> App:
    """An app that is never opened."""
    return with_functions(App("sqlite:///never-opened.db"))


async def introduce(app: App) -> dict[str, SubscriptionView]:
    """What a worker that starts writes down."""
    async with app.worker():
        pass
    return {each.name: each for each in await app.subscriptions.list()}


# --- declaring ------------------------------------------------------------------------------------------------------


def test_what_is_declared(declared: App):
    """A name follows from function and glob, and the origin is the handler's place."""
    reprice = declared.registry.find("reprice")
    declared.subscribe("price.*", "reprice", filter="event.payload.delta > 5", map={"sku": "$.entity_id"})
    spec = declared.registry.subscriptions["reprice:price.*"]
    given = spec.subscription
    assert (given.function, given.glob, given.ordered, given.enabled) == ("reprice", "price.*", False, True)
    assert given.origin == f"code {__name__}:{reprice.handler.__qualname__}"
    assert spec.start_at == "now"
    declared.subscribe("stock.*", "declared_elsewhere")
    assert declared.registry.subscriptions["declared_elsewhere:stock.*"].subscription.origin == (
        f"code {__name__}:declared_elsewhere"
    )


def test_a_function_says_what_starts_it():
    """One glob or several."""
    app = App("sqlite:///never-opened.db")

    @app.function(on="track/enrichment.requested")
    async def enrich(track_id: str): ...

    @app.function(on=["a.*", "b.**"])
    async def both(**fields: Any): ...

    assert list(app.registry.subscriptions) == ["enrich:track/enrichment.requested", "both:a.*", "both:b.**"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"glob": "price..x"}, "subscription 'reprice:price..x': glob 'price..x' has an empty segment"),
        ({"filter": "event.payload."}, "is no CEL"),
        ({"map": {"sku": "sku"}}, "mapper at $.sku: 'sku' is no path; write literal:sku"),
        ({"map": {}}, "map does not give 'sku', which 'reprice' needs; add it, like {'sku': '$.payload.sku'}"),
        ({"map": {"sku": "$.id", "x": 1}}, "map gives 'x', which 'reprice' does not take; it takes delta, sku"),
        ({"map": "sku"}, "must be a mapping"),
        ({"function": "restock", "map": {"sku": "$.id", "tire": "$.id"}}, "map gives 'tire', which 'restock' does not"),
        ({"function": "restock", "map": {"tier": "$.id"}}, "map does not give 'sku'"),
        ({"name": ""}, "its name must have 1 to 500 printable characters"),
        ({"start_at": "yesterday"}, "start_at='yesterday' must be 'beginning', 'now' or a datetime"),
        ({"start_at": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - that is the mistake
        ({"ordered": "yes"}, "ordered='yes' must be True or False"),
        ({"function": print}, "is no function; declare it with @app.function, or name one"),
    ],
)
def test_what_cannot_be_declared(declared: App, options: dict[str, Any], said: str):
    """It is refused at once, with the remedy, and nothing is declared."""
    given = {"glob": "price.*", "function": "reprice", **options}
    with pytest.raises(ConfigError) as refused:
        declared.subscribe(given.pop("glob"), given.pop("function"), **given)
    assert said in str(refused.value)
    assert declared.registry.subscriptions == {}


def test_what_a_mapper_may_give(declared: App):
    """Whatever a handler takes with **fields, or a model that allows more; defaults may be left out."""

    @declared.function
    async def opened(given: Open): ...

    @declared.function
    async def whole(given: dict[str, Any]): ...

    declared.subscribe("a", "anything", map={"x": "$.id"})
    declared.subscribe("a", "opened", map={"sku": "$.id", "x": "$.id"})
    declared.subscribe("a", "whole", map={"x": "$.id"})
    declared.subscribe("a", "restock", map={"sku": "$.id"})
    assert len(declared.registry.subscriptions) == 4


def test_a_function_is_not_declared_without_its_subscriptions(declared: App):
    """Nor the other way round."""

    async def handler(): ...

    with pytest.raises(ConfigError, match=r"\*\* stands for whole segments"):
        declared.function(name="wrong", on=["a.*", "a**"])(handler)
    with pytest.raises(ConfigError, match="two subscriptions are named 'wrong:a'; give one of them another name="):
        declared.function(name="wrong", on=["a", "a"])(handler)
    assert declared.registry.get("wrong") is None
    assert declared.registry.subscriptions == {}


async def test_a_mapper_is_checked_again_by_a_worker(make_app: MakeApp):
    """Where its function came after it."""
    app = make_app()
    app.subscribe("price.*", "later", map={"x": "$.id"})

    @app.function
    async def later(sku: str): ...

    with pytest.raises(ConfigError, match=r"subscription 'later:price\.\*': map does not give 'sku'"):
        await introduce(app)


# --- a worker that starts -------------------------------------------------------------------------------------------


async def test_a_worker_writes_down_what_code_declares(app: App):
    """With where it comes from; the next one that starts changes nothing."""
    with_functions(app)
    app.subscribe("price.*", "reprice", filter="event.payload.delta > 5", map={"sku": "$.entity_id"}, ordered=True)
    app.subscribe("stock.*", "elsewhere", enabled=False, name="stock")
    first = await introduce(app)
    prices, stock = first["reprice:price.*"], first["stock"]
    assert (prices.glob, prices.function, prices.filter) == ("price.*", "reprice", "event.payload.delta > 5")
    assert (prices.mapper, prices.ordered, prices.state, prices.function_known) == (
        {"sku": "$.entity_id"},
        True,
        "enabled",
        True,
    )
    assert (stock.state, stock.function_known, stock.origin) == ("disabled", False, f"code {__name__}:elsewhere")
    assert await introduce(app) == first


async def test_what_an_operator_switched_stays_so(app: App):
    """Whatever code says about it, and what code changes otherwise is taken over."""
    with_functions(app)
    app.subscribe("price.*", "reprice", name="prices", map={"sku": "$.entity_id"})
    app.subscribe("stock.*", "anything", name="stock", enabled=False)
    await introduce(app)
    assert (await app.subscriptions.disable("prices")).state == "disabled"
    assert (await app.subscriptions.enable("stock")).state == "enabled"
    app.registry.subscriptions.clear()
    app.subscribe("price.**", "reprice", name="prices", map={"sku": "$.entity_id"})
    app.subscribe("stock.*", "anything", name="stock", enabled=False)
    after = await introduce(app)
    assert {name: (each.glob, each.state) for name, each in after.items()} == {
        "prices": ("price.**", "disabled"),
        "stock": ("stock.*", "enabled"),
    }


async def test_what_no_code_declares_any_more(app: App):
    """Is shown as left over, and neither removed nor switched; it is code's again when it is declared again."""
    with_functions(app)
    app.subscribe("price.*", "reprice", name="prices")
    app.subscribe("stock.*", "anything", name="stock")
    await introduce(app)
    await app.subscriptions.add("note.*", "anything", name="by hand")
    del app.registry.subscriptions["prices"]
    found = await introduce(app)
    assert {name: each.is_left_over for name, each in found.items()} == {
        "prices": True,
        "stock": False,
        "by hand": False,
    }
    assert found["prices"].origin.startswith(f"undeclared {__name__}:")
    assert found["prices"].enabled
    app.subscribe("price.*", "reprice", name="prices")
    assert (await introduce(app))["prices"].declared_in_code


async def test_events_start_what_is_subscribed(app: App):
    """With the input that the mapper makes, or with the payload."""
    with_functions(app)
    app.subscribe("price.*", "reprice", filter="event.payload.delta > 5", map={"sku": "$.entity_id"})
    app.subscribe("**", "anything")
    await introduce(app)
    await record(app, an_event("price.changed", PRICE, ("product", "42")), an_event("price.changed", {"delta": 1}))
    await app.drainers.drain()
    assert [run.input for run in await runs_of(app, "reprice")] == [{"sku": "42"}]
    assert [run.input for run in await runs_of(app, "anything")] == [PRICE, {"delta": 1}]


# --- where they begin -----------------------------------------------------------------------------------------------


async def started(app: App, function: str = "anything") -> list[int]:
    await app.drainers.drain()
    return [run.input["n"] for run in await runs_of(app, function)]


async def test_a_subscription_begins_now(app: App):
    """What is in the ledger is none of its business, whether it was drained or not."""
    with_functions(app)
    await record(app, an_event("a", {"n": 1}))
    await app.drainers.drain()
    await record(app, an_event("a", {"n": 2}))
    app.subscribe("a", "anything")
    assert (await introduce(app))["anything:a"].since_sequence == 2
    await record(app, an_event("a", {"n": 3}))
    assert await started(app) == [3]


async def test_a_subscription_that_begins_in_the_past_catches_up(app: App, clock: Clock):
    """Also on what the built-in drainer has passed; each event starts one run."""
    with_functions(app)
    clock.move_to(datetime(2026, 11, 16, 12, tzinfo=UTC))
    await record(app, an_event("a", {"n": 1}), an_event("b", {"n": 2}))
    await app.drainers.drain()
    clock.move_to(datetime(2026, 11, 16, 13, tzinfo=UTC))
    await record(app, an_event("a", {"n": 3}))
    added = await app.subscriptions.add("a", "anything", start_at="beginning")
    assert added.since_sequence == 0
    assert await started(app) == [1, 3]
    since = datetime(2026, 11, 16, 12, 30, tzinfo=UTC)
    later = await app.subscriptions.add("*", "reprice", map={"sku": "$.type"}, start_at=since)
    assert later.since_at == since
    assert [run.input for run in await runs_of(app, "reprice")] == [{"sku": "a"}]


async def test_what_code_declares_in_the_past_is_caught_up_by_a_worker(
    app: App, monkeypatch: pytest.MonkeyPatch, probe: Probe
):
    """Soon after its start; events that cannot be given are parked."""
    monkeypatch.setattr(catching_up.Latecomers, "first_after", 0.0)

    @app.function
    async def count(n: int) -> None: ...

    await record(
        app, an_event("a", {"n": 1}), an_event("a", {"m": 2}, ("thing", "1")), an_event("a", {"n": 3}, ("thing", "1"))
    )
    await app.drainers.drain()
    app.subscribe("a", count, start_at="beginning", ordered=True)
    async with app.worker():
        caught_up = await probe.next(SubscriptionCaughtUp)
    assert (caught_up.subscription, caught_up.events) == ("count:a", 4)  # the announcement, too
    assert [run.input for run in await runs_of(app, "count")] == [{"n": 1}]
    assert [parked.code for parked in await app.drainers.parked()] == ["invalid_input", "behind"]


async def test_the_order_of_an_entity_is_kept_while_its_past_is_caught_up(app: App, monkeypatch: pytest.MonkeyPatch):
    """What is recorded and drained meanwhile comes after what came before it, and once."""
    with_functions(app)
    monkeypatch.setattr(catching_up, "PAGE", 2)
    await record(app, *(an_event("a", {"n": number}, ("thing", "1")) for number in range(5)))
    await app.drainers.drain()
    async with app._site.store() as store:
        commit, later = store.commit, iter(range(5, 9))

        async def beside(changes: Any) -> Any:
            """Before a page is committed, more is recorded, and the drainer passes by."""
            for number in islice(later, 1):
                await commit([an_event("a", {"n": number}, ("thing", "1"))])
                await app.drainers.drain()
            return await commit(changes)

        monkeypatch.setattr(store, "commit", beside)
        await app.subscriptions.add("a", "anything", start_at="beginning", ordered=True)
        monkeypatch.undo()
    await record(app, an_event("a", {"n": 9}, ("thing", "1")))
    assert await started(app) == list(range(10))


async def test_an_ordered_one_is_handed_over_without_a_gap(app: App, monkeypatch: pytest.MonkeyPatch):
    """What the drainer passes between the last look and the hand-over is not lost."""
    with_functions(app)
    await record(app, an_event("a", {"n": 0}))
    await app.drainers.drain()
    async with app._site.store() as store:
        begin, recorded = store.begin, [an_event("a", {"n": 1})]

        def late(**options: Any) -> Any:
            return begin_late() if recorded else begin(**options)

        @asynccontextmanager
        async def begin_late() -> Any:
            event = recorded.pop()
            await store.commit([event])
            await app.drainers.drain()
            async with begin() as transaction:
                yield transaction

        monkeypatch.setattr(store, "begin", late)
        await app.subscriptions.add("a", "anything", start_at="beginning", ordered=True)
        monkeypatch.undo()
    assert [] == recorded
    assert await started(app) == [0, 1]


async def test_who_is_interrupted_catches_up_later(app: App, monkeypatch: pytest.MonkeyPatch):
    """And starts nothing twice."""
    with_functions(app)
    monkeypatch.setattr(catching_up, "PAGE", 2)
    await record(app, *(an_event("a", {"n": number}) for number in range(5)))
    async with app._site.store() as store:
        commit, commits = store.commit, []

        async def breaking(changes: Any) -> Any:
            commits.append(changes)
            if len(commits) == 2:
                raise StoreUnavailable("gone")
            return await commit(changes)

        monkeypatch.setattr(store, "commit", breaking)
        with pytest.raises(StoreUnavailable):
            await app.subscriptions.add("a", "anything", name="all", start_at="beginning")
        assert (await app.subscriptions.get("all")).since_sequence == NOT_CAUGHT_UP
        service = catching_up.Latecomers(
            Dispatcher(store, app._site.door, app.registry.functions), store=store, telemetry=app.telemetry
        )
        assert await service.tick() == catching_up.LOOK_EVERY
    assert (await app.subscriptions.get("all")).since_sequence == 0
    assert sorted(await started(app)) == [0, 1, 2, 3, 4]


async def test_what_an_ordered_one_has_parked_stays_until_it_has_caught_up(app: App, monkeypatch: pytest.MonkeyPatch):
    """Who has it catch up may be interrupted, and would come to what was let go or taken away again."""
    with_functions(app)
    await record(app, *(an_event("a", {"sku": sku}, entity=("e", "1")) for sku in (7, "1")))

    async def broken(*_: object) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as interrupted:
        interrupted.setattr(catching_up, "_hand_over", broken)
        with pytest.raises(StoreUnavailable):
            await app.subscriptions.add("a", "reprice", name="all", ordered=True, start_at="beginning")
    for verb in (app.drainers.retry_parked, app.drainers.discard_parked):
        with pytest.raises(IllegalMove, match="'all' is still catching up"):
            await verb("all")
    assert len(await app.drainers.parked()) == 2
    async with app._site.store() as store:
        dispatcher = Dispatcher(store, app._site.door, app.registry.functions)
        await catching_up.Latecomers(dispatcher, store=store, telemetry=app.telemetry).tick()
    assert await app.drainers.discard_parked("all") == 2


async def test_one_that_is_disabled_catches_up_when_it_is_enabled(app: App):
    """Not before."""
    with_functions(app)
    await record(app, an_event("a", {"n": 1}))
    await app.subscriptions.add("a", "anything", name="all", start_at="beginning", enabled=False)
    assert await started(app) == []
    await app.subscriptions.enable("all")
    assert await started(app) == [1]


# --- at run time ----------------------------------------------------------------------------------------------------


async def test_adding_and_removing(app: App, make_app: MakeApp):
    """A drainer that runs notices both, and a name is taken once."""
    with_functions(app)
    await introduce(app)
    async with make_app() as elsewhere:
        added = await elsewhere.subscriptions.add("a", "anything", name="all")
        assert (added.origin, added.state, added.declared_in_code) == ("runtime", "enabled", False)
        with pytest.raises(ConfigError, match="a subscription is named 'all' already; remove that one, or give name="):
            await elsewhere.subscriptions.add("b", "anything", name="all")
        async with app._site.store() as store:
            dispatcher = Dispatcher(store, app._site.door, app.registry.functions)
            seen = [len((await dispatcher.refresh()).of(_now("a")))]
            await elsewhere.subscriptions.remove("all")
            await elsewhere.subscriptions.add("b", "anything", name="other")
            seen += [len((await dispatcher.refresh()).of(_now(kind))) for kind in "ab"]
    assert seen == [1, 0, 1]


async def test_only_what_has_changed_is_compiled(app: App, monkeypatch: pytest.MonkeyPatch):
    """Compiling a filter takes a while, there may be thousands, and whoever drains holds a lock meanwhile. What there
    is at first is compiled before."""
    with_functions(app)
    compiled: list[str] = []

    def counted(text: str) -> Any:
        compiled.append(text)
        return compile_filter(text)

    monkeypatch.setattr(dispatching, "compile_filter", counted)
    await subscribe(app, "one", "a", "anything", filter="event.payload.n == 1")
    await subscribe(app, "two", "a", "anything", filter="event.payload.n == 2", mapper={"n": "$.payload.n"})
    async with app._site.store() as store:
        dispatcher = Dispatcher(store, app._site.door, app.registry.functions)
        await dispatcher.prepare()
        assert 2 == len(compiled)
        await subscribe(app, "two", "a", "anything", filter="event.payload.n == 3", mapper={"n": "$.payload.n"})
        await subscribe(app, "three", "a", "anything", filter="true")
        matching = await dispatcher.refresh()
    assert ["true", "event.payload.n == 3"] == compiled[2:]
    assert ["one", "three", "two"] == [each.given.name for each in matching.of(_now("a"))]


def _now(kind: str) -> Event:
    moment = datetime.now(UTC)
    return Event(id="01", type=kind, payload={}, sequence_no=2**40, occurred_at=moment, recorded_at=moment)


async def test_what_cannot_be_added(app: App, make_app: MakeApp):
    """Functions must be known, here or in the database, and so is what they take."""
    with_functions(app)
    await introduce(app)
    async with make_app() as elsewhere:
        with pytest.raises(UnknownFunction, match="did you mean 'reprice'"):
            await elsewhere.subscriptions.add("a", "repric")
        with pytest.raises(ConfigError, match="map gives 'colour', which 'reprice' does not take"):
            await elsewhere.subscriptions.add("a", "reprice", map={"sku": "$.id", "colour": "$.id"})
        with pytest.raises(ConfigError, match="map does not give 'sku'"):
            await elsewhere.subscriptions.add("a", "restock", map={"tier": "$.id"})
    assert await app.subscriptions.list() == []


@pytest.mark.parametrize("verb", ["get", "enable", "disable", "remove"])
async def test_one_that_is_not_there(app: App, verb: str):
    """The one that may be meant is named."""
    with_functions(app)
    await app.subscriptions.add("a", "anything", name="prices")
    with pytest.raises(UnknownSubscription, match="no subscription is named 'pries'; did you mean 'prices'"):
        await getattr(app.subscriptions, verb)("pries")


async def test_removing_takes_what_is_parked_along(app: App):
    """And says how much that was."""
    with_functions(app)
    await app.subscriptions.add("a", "reprice", name="all")
    await record(app, an_event("a", {"wrong": 1}))
    await app.drainers.drain()
    assert (await app.subscriptions.get("all")).parked == 1
    assert (await app.subscriptions.remove("all")).parked == 1
    assert await app.drainers.parked() == []


async def test_what_comes_while_it_is_disabled_is_over(app: App):
    """It starts nothing then, and goes on from where it is enabled."""
    with_functions(app)
    await app.subscriptions.add("a", "anything", name="all")
    await app.subscriptions.disable("all")
    await record(app, an_event("a", {"n": 1}))
    assert await started(app) == []
    await app.subscriptions.enable("all")
    await record(app, an_event("a", {"n": 2}))
    assert await started(app) == [2]


async def test_what_came_while_it_was_disabled_is_over_though_nobody_has_drained_it(app: App):
    """Whether the drainer has passed it is no matter."""
    with_functions(app)
    await app.subscriptions.add("a", "anything", name="all")
    await app.subscriptions.disable("all")
    await record(app, an_event("a", {"n": 1}))
    await app.subscriptions.enable("all")
    await record(app, an_event("a", {"n": 2}))
    assert await started(app) == [2]


# --- the dry run ----------------------------------------------------------------------------------------------------


async def test_what_an_event_would_start(app: App):
    """Every outcome, with the input; nothing is recorded or started."""
    with_functions(app)
    await app.subscriptions.add("price.*", "reprice", map={"sku": "$.entity_id"}, name="1 starts")
    await app.subscriptions.add("**", "reprice", map={"sku": "$.payload.sku"}, name="2 again")
    await app.subscriptions.add("price.*", "anything", filter="event.payload.delta > 50", name="3 filtered")
    await app.subscriptions.add("price.*", "restock", name="4 parked")
    await app.subscriptions.add("price.*", "anything", name="5 disabled", enabled=False)
    await app.subscriptions.add("stock.*", "anything", name="6 another")
    matches = await app.subscriptions.match(
        {"type": "price.changed", "payload": {"delta": 7, "sku": "x"}, "entity": ["product", "42"]}
    )
    assert [(match.subscription, match.function, match.outcome, match.input) for match in matches] == [
        ("1 starts", "reprice", "start", {"sku": "42"}),
        ("2 again", "reprice", "same run", {"sku": "x"}),
        ("3 filtered", "anything", "filtered", None),
        ("4 parked", "restock", "start", {"delta": 7, "sku": "x"}),
    ]
    (parked,) = [
        match
        for match in await app.subscriptions.match({"type": "price.changed", "payload": {"delta": 60}})
        if match.subscription == "4 parked"
    ]
    assert (parked.outcome, parked.code) == ("parked", "invalid_input")
    assert "sku" in str(parked.message)
    assert await app.runs.list() == []
    async with app._site.store() as store:
        assert (await store.place()).sequence_no == 0


async def test_an_event_of_an_entity_that_is_parked(app: App):
    """Would wait behind it."""
    with_functions(app)
    await app.subscriptions.add("a", "reprice", name="all", ordered=True)
    await record(app, an_event("a", {"wrong": 1}, ("product", "42")))
    await app.drainers.drain()
    (match,) = await app.subscriptions.match({"type": "a", "payload": {"sku": "x"}, "entity": ["product", "42"]})
    assert (match.outcome, match.code) == ("parked", "behind")
    (match,) = await app.subscriptions.match({"type": "a", "payload": {"sku": "x"}, "entity": ["product", "43"]})
    assert match.outcome == "start"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (["a"], "an event must be an object"),
        ({}, "required field `type`"),
        ({"type": "a", "entity": "product"}, "entity 'product' must be a pair"),
        ({"type": "a", "payloads": 1}, "an event has no 'payloads'; it has entity, id, type"),
    ],
)
async def test_what_is_no_event(app: App, event: Any, said: str):
    """Says what an event has."""
    with pytest.raises(InvalidInput) as refused:
        await app.subscriptions.match(event)
    assert said in str(refused.value)
