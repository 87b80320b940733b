"""The built-in drainer: which events start which runs, in what order, how often, and what becomes of those that
cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Never

import pytest

from ostinato import App, Queue
from ostinato.engine.ledger import dispatching, drainer
from ostinato.errors import StoreUnavailable
from ostinato.model.change import Change
from ostinato.model.event import DISPATCH_FAILED, WORKFLOW_RUNNER, Event
from ostinato.resources import drainers
from ostinato.store.base import FlowStore
from ostinato.store.ports import Pass, Transaction
from ostinato.telemetry import (
    DrainerAsleep,
    DrainerHalted,
    EventsDrained,
    NotificationReceived,
    QueueAsleep,
    QueueScanned,
    RunCompleted,
)
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database
from tests.engine.ledger import an_event, record, runs_of, subscribe


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long to try again."""
    monkeypatch.setattr(drainer, "SHORTEST_HALT", 0.01)
    monkeypatch.setattr(drainer, "LONGEST_HALT", 0.02)


def greeter(app: App) -> list[str]:
    """Declares a function; answers what its runs are given."""
    given: list[str] = []

    @app.function
    async def greet(name: str) -> None:
        given.append(name)

    return given


# --- starting runs --------------------------------------------------------------------------------------------------


async def test_an_event_starts_a_run_of_a_sleeping_worker(app: App, probe: Probe):
    """The drainer that sleeps is woken by the commit, not by a poll; the run says where it came from."""
    greeter(app)
    await subscribe(app, "greeting", "user.*", "greet")
    async with app.worker():
        await probe.next(DrainerAsleep, drainer=WORKFLOW_RUNNER)
        (event,) = await record(app, an_event("user.joined", {"name": "Ada"}))
        await probe.next(NotificationReceived, channel="ledger")
        done = await probe.next(RunCompleted)
    (run,) = await runs_of(app, "greet")
    assert (done.run_id, f"event:user.joined:{event}") == (run.id, run.invoked_by)
    drained = probe.seen(EventsDrained, drainer=WORKFLOW_RUNNER)
    assert [(1, 1, 0)] == [(each.processed, each.triggered, each.parked) for each in drained]


async def test_what_a_pass_starts_is_claimed_at_once_in_the_same_process(make_app: MakeApp):
    """Nobody rings from outside here, and the queue would look again after a while only."""
    async with make_app(notify=False) as app:
        greeter(app)
        await subscribe(app, "greeting", "user.*", "greet")
        with Probe(app.telemetry) as probe:
            async with app.worker():
                await probe.next(QueueAsleep)
                await record(app, an_event("user.joined", {"name": "Ada"}))
                await probe.next(RunCompleted)
        assert [True] == [scan.woken for scan in probe.seen(QueueScanned) if scan.found]


async def test_events_before_the_worker_are_drained(app: App, probe: Probe):
    """The built-in drainer begins at the beginning of the ledger, in order."""
    given = greeter(app)
    await subscribe(app, "greeting", "user.*", "greet")
    await record(app, *[an_event("user.joined", {"name": str(number)}) for number in range(5)])
    async with app.worker():
        for _ in range(5):
            await probe.next(RunCompleted)
    assert sorted(given) == ["0", "1", "2", "3", "4"]
    assert [run.input["name"] for run in await runs_of(app, "greet")] == ["0", "1", "2", "3", "4"]


async def test_one_run_per_function_and_event(app: App):
    """However many subscriptions of a function mean the event, and however often it is drained."""
    greeter(app)

    @app.function
    async def log(name: str) -> None: ...

    for name, glob, function in (("a", "user.*", "greet"), ("b", "**.joined", "greet"), ("c", "user.joined", "log")):
        await subscribe(app, name, glob, function)
    (event,) = await record(app, an_event("user.joined", {"name": "Ada"}))
    drained = await app.drainers.drain()
    assert {(event, "a"), (event, "c")} == {(each.event_id, each.subscription) for each in drained.triggered}
    await app.drainers.reset(WORKFLOW_RUNNER, "beginning")
    again = await app.drainers.drain()
    assert (1, []) == (again.processed, list(again.triggered))
    assert (1, 1) == (len(await runs_of(app, "greet")), len(await runs_of(app, "log")))


async def test_subscriptions_change_while_draining(app: App, probe: Probe, database: Database):
    """The next page is matched with what is there by then: added, switched off, taken up again."""
    greeter(app)
    async with app.worker():
        for name, enabled, expected in (("a", True, 1), ("a", False, 0), ("a", True, 1)):
            database.query("delete from ostinato_subscriptions")
            await subscribe(app, name, "user.*", "greet", enabled=enabled)
            await record(app, an_event("user.joined", {"name": "Ada"}))
            drained = await probe.next(EventsDrained, drainer=WORKFLOW_RUNNER)
            assert expected == drained.triggered


async def test_filter_and_mapper_decide(app: App):
    """What the filter refuses is passed over; the mapper makes the input."""
    greeter(app)
    mapper = {"name": "$.entity_id"}
    await subscribe(app, "greeting", "user.*", "greet", filter="event.payload.age > 17", mapper=mapper)
    await record(
        app, an_event("user.joined", {"age": 12}, ("user", "1")), an_event("user.joined", {"age": 18}, ("user", "2"))
    )
    drained = await app.drainers.drain()
    assert (2, 1, 0) == (drained.processed, len(drained.triggered), drained.parked)
    assert [{"name": "2"}] == [run.input for run in await runs_of(app, "greet")]


async def test_whatever_breaks_in_a_subscription_parks_the_event(app: App, monkeypatch: pytest.MonkeyPatch):
    """It would break again, and the others are not to wait for it."""
    greeter(app)

    def broken(recipe: object) -> Callable[[Event], Any]:
        def make(event: Event) -> Any:
            return {"name": event.payload["name"].upper()}

        return make

    monkeypatch.setattr(dispatching, "compile_mapper", broken)
    await subscribe(app, "greeting", "user.*", "greet", mapper={})
    await record(app, an_event("user.joined", {"name": 1}), an_event("user.joined", {"name": "Ada"}))
    drained = await app.drainers.drain()
    assert (1, 1, None) == (len(drained.triggered), drained.parked, drained.error)
    (parked,) = await app.drainers.parked()
    assert ("subscription", True) == (parked.code, "AttributeError" in parked.message)


# --- parking --------------------------------------------------------------------------------------------------------


async def test_poison_among_healthy_events(app: App):
    """The healthy ones flow, the poison one is parked, is announced once, and starts its run after the fix."""
    greeter(app)
    await subscribe(app, "greeting", "user.*", "greet")
    healthy = [an_event("user.joined", {"name": str(number)}, ("user", str(number % 200))) for number in range(1000)]
    poison = an_event("user.joined", {"nome": "Ada"}, ("user", "7"))
    await record(app, *healthy[:500], poison, *healthy[500:])
    drained = await app.drainers.drain(WORKFLOW_RUNNER)
    assert (1002, 1000, 1) == (drained.processed, len(drained.triggered), drained.parked)  # the announcement, too
    (parked,) = await app.drainers.parked()
    assert ("greeting", poison.id, "user.joined", "invalid_input") == (
        parked.subscription,
        parked.event_id,
        parked.event_type,
        parked.code,
    )
    assert (await app.drainers.get(WORKFLOW_RUNNER)).parked == 1
    still = await app.drainers.retry_parked()
    assert (0, 1) == (still.processed, still.parked)
    await subscribe(app, "greeting", "user.*", "greet", mapper={"name": "$.payload.nome"})
    retried = await app.drainers.retry_parked("greeting", event=poison.id)
    assert (1, 0, [poison.id]) == (retried.processed, retried.parked, [each.event_id for each in retried.triggered])
    assert [] == list(await app.drainers.parked())
    assert 1001 == len(await runs_of(app, "greet"))


async def test_dispatch_failed_is_recorded_once_and_never_recursively(app: App, database: Database):
    """A subscription that means everything and can be given nothing is told of its failure, and fails at that
    silently."""
    await subscribe(app, "everything", "**", "nobody_has_this")
    (event,) = await record(app, an_event("user.joined", {}, ("user", "1")))
    drained = await app.drainers.drain()
    assert (2, 2) == (drained.processed, drained.parked)
    await app.drainers.retry_parked()
    await app.drainers.drain()
    told = database.query(f"select caused_by, entity_id from ostinato_events where type = '{DISPATCH_FAILED}'")
    assert [(f"event:{event}", "1")] == told
    assert {"unknown_function"} == {parked.code for parked in await app.drainers.parked()}


async def test_later_events_of_an_entity_wait_behind_a_parked_one(app: App):
    """Where the subscription is ordered: in the same page and in later ones; they follow in order when it is let go."""
    greeter(app)
    await subscribe(app, "greeting", "user.*", "greet", ordered=True)
    first = an_event("user.joined", {"nome": "1"}, ("user", "ada"))
    second, other = (an_event("user.joined", {"name": "2"}, ("user", who)) for who in ("ada", "bob"))
    await record(app, first, second, other)
    assert 1 == len((await app.drainers.drain()).triggered)
    third = an_event("user.left", {"name": "3"}, ("user", "ada"))
    await record(app, third)
    await app.drainers.drain()
    parked = await app.drainers.parked("greeting")
    assert [(first.id, "invalid_input"), (second.id, "behind"), (third.id, "behind")] == [
        (each.event_id, each.code) for each in parked
    ]
    await subscribe(app, "greeting", "user.*", "greet", ordered=True, mapper={"name": "$.entity_id"})
    retried = await app.drainers.retry_parked(event=third.id)
    assert [first.id, second.id, third.id] == [each.event_id for each in retried.triggered]
    assert [] == list(await app.drainers.parked())


async def test_what_waits_behind_a_discarded_event_follows(app: App):
    """Discarding the first lets the others go; discarding all of them starts nothing."""
    greeter(app)
    await subscribe(app, "greeting", "user.*", "greet", ordered=True)
    for who in ("ada", "bob"):
        events = (an_event("user.joined", payload, ("user", who)) for payload in ({}, {"name": "2"}, {"name": "3"}))
        first, *_ = await record(app, *events)
        await app.drainers.drain()
        if who == "ada":
            assert 1 == await app.drainers.discard_parked("greeting", event=first)
        else:
            assert 3 == await app.drainers.discard_parked("greeting")
    assert ["2", "3"] == [run.input["name"] for run in await runs_of(app, "greet")]
    assert [] == list(await app.drainers.parked())


async def test_all_that_is_parked_is_retried_or_discarded(app: App, monkeypatch: pytest.MonkeyPatch):
    """A page at a time, in order, each once for each subscription; what stays does not hold up the rest."""
    monkeypatch.setattr(drainers, "PARKED_PAGE", 2)
    greeter(app)
    names = ("a", "b", "c")
    for name in names:
        await subscribe(app, name, "user.*", "greet", ordered=name == "c")
    payloads: list[dict[str, str]] = [{"nome": "1"}, {"nome": "2"}, {}, {"nome": "4"}, {"nome": "5"}]
    ids = await record(app, *[an_event("user.joined", payload, ("user", "ada")) for payload in payloads])
    assert 15 == (await app.drainers.drain()).parked
    for name in names[:2]:
        mapper = {"name": "$.payload.nome"}
        await subscribe(app, name, "user.*", "greet", mapper=mapper, filter="event.entity_id == 'ada'")

    retried = await app.drainers.retry_parked()
    assert [each for each in ids if each != ids[2]] == [each.event_id for each in retried.triggered]
    assert (8, 7) == (retried.processed, retried.parked)
    assert 5 == await app.drainers.discard_parked("c")
    assert [(name, ids[2]) for name in names[:2]] == [
        (each.subscription, each.event_id) for each in await app.drainers.parked()
    ]


async def test_a_retry_waits_for_the_drainer(postgres_database: Database):
    """Else the drainer could park an event behind one that is let go at the same moment, and it would stay there. On
    SQLite nobody writes beside another."""
    async with App(postgres_database.url) as app, app._site.store() as store:
        await subscribe(app, "greeting", "user.*", "nobody_has_this")
        await record(app, an_event("user.joined"))
        await app.drainers.drain()
        await record(app, an_event("user.left"))
        async with store.draining(WORKFLOW_RUNNER, 10) as taken:
            assert taken is not None
            retrying = asyncio.create_task(app.drainers.retry_parked())
            async with asyncio.timeout(10):
                while not await asyncio.to_thread(_waits, postgres_database):
                    assert not retrying.done()
        assert 1 == (await retrying).parked


def _waits(database: Database) -> bool:
    """Whether somebody waits for a lock of another's."""
    return bool(database.query("select 1 from pg_locks where not granted"))


# --- halting --------------------------------------------------------------------------------------------------------


async def test_a_full_queue_halts_the_drainer(make_app: MakeApp, soon: None):
    """At the last event that had room, and it goes on when there is more; nothing is parked."""
    app = make_app(queues={"default": Queue(10, max_waiting=2)})
    greeter(app)
    async with app, app.worker():
        pass
    async with app:
        await subscribe(app, "greeting", "user.*", "greet")
        ids = await record(app, *[an_event("user.joined", {"name": str(number)}) for number in range(4)])
        drained = await app.drainers.drain()
        assert (2, ids[2], 0) == (drained.processed, drained.halted_on_event_id, drained.parked)
        halted = await app.drainers.get(WORKFLOW_RUNNER)
        assert (ids[2], 1, 2) == (halted.halted_on, halted.failures, halted.lag)
        assert "QueueFull" in str(halted.error)
        with Probe(app.telemetry) as probe:
            async with app.worker():
                for _ in range(4):
                    await probe.next(RunCompleted)
                await probe.next(DrainerAsleep)
        going = await app.drainers.get(WORKFLOW_RUNNER)
        assert (None, None, 0, 0, 4) == (
            going.halted_on,
            going.error,
            going.failures,
            going.lag,
            going.events_processed_total,
        )


async def test_a_database_that_is_gone_halts_the_drainer(
    app: App, probe: Probe, soon: None, monkeypatch: pytest.MonkeyPatch
):
    """It stays where it was, says so, and tries again; no event is parked or skipped."""
    given = greeter(app)
    await subscribe(app, "greeting", "user.*", "greet")
    left = _unreachable(monkeypatch, times=2)
    await record(app, an_event("user.joined", {"name": "Ada"}))
    async with app.worker():
        halted = await probe.next(DrainerHalted, drainer=WORKFLOW_RUNNER)
        assert "cannot be reached" in halted.error
        await probe.next(RunCompleted)
    assert (["Ada"], 0, []) == (given, len(left), list(await app.drainers.parked()))


def _unreachable(monkeypatch: pytest.MonkeyPatch, *, times: int) -> list[int]:
    """Passes of drainers fail as when the connection is lost, as often as said; answers what is left of that."""
    left = list(range(times))
    draining = FlowStore.draining

    def flaky(store: FlowStore, name: str, limit: int) -> AbstractAsyncContextManager[Pass | None]:
        if left:
            left.pop()
            raise StoreUnavailable("the database cannot be reached")
        return draining(store, name, limit)

    monkeypatch.setattr(FlowStore, "draining", flaky)
    return left


# --- many processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def peeks(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[bool]:
    """What drainers find when they look whether there is something to do."""
    found: asyncio.Queue[bool] = asyncio.Queue()
    undrained = FlowStore.undrained

    async def told(store: FlowStore, name: str) -> bool:
        answer = await undrained(store, name)
        found.put_nowait(answer)
        return answer

    monkeypatch.setattr(FlowStore, "undrained", told)
    return found


@pytest.mark.parametrize("crash", [True, False], ids=["crash", "end"])
async def test_one_drains_and_the_others_are_told(make_app: MakeApp, peeks: asyncio.Queue[bool], crash: bool):
    """While one is at it, another is not let in and says so; a crash frees it at once.

    On SQLite the other waits for the write lock, and finds the drainer moved on, or free.
    """
    one, other = make_app(), make_app()
    entered, leave = asyncio.Event(), asyncio.Event()

    @one.drainer("slow")
    async def slow(tx, events):
        entered.set()
        await leave.wait()

    @other.drainer("slow")
    async def fast(tx, events): ...

    async with one, other:
        await record(one, an_event("user.joined"))
        first = asyncio.create_task(one.drainers.drain("slow"))
        await entered.wait()
        assert await peeks.get()
        second = asyncio.create_task(other.drainers.drain("slow"))
        assert await peeks.get()
        if skipped := one.settings.dialect == "postgresql":
            assert (await second).skipped_due_to_lock
        (first.cancel if crash else leave.set)()
        await asyncio.wait([first])
        if crash:
            assert 1 == (await (other.drainers.drain("slow") if skipped else second)).processed
        else:
            assert (1, True) == (first.result().processed, (await second).skipped_due_to_lock)


async def test_two_workers_start_each_run_once(make_app: MakeApp):
    """Both have the drainer; between them every event starts one run, and none is parked."""
    apps = [make_app() for _ in range(2)]
    given, complete = list[str](), asyncio.Event()

    async def greet(name: str) -> None:
        given.append(name)
        if len(given) >= 60:
            complete.set()

    for app in apps:
        app.function(greet)
    async with apps[0], apps[1]:
        await subscribe(apps[0], "greeting", "user.*", "greet")
        async with apps[0].worker(), apps[1].worker():
            for start in range(0, 60, 10):
                await record(apps[0], *[an_event("user.joined", {"name": str(start + place)}) for place in range(10)])
            async with asyncio.timeout(10):
                await complete.wait()
        assert {str(number) for number in range(60)} == set(given)
        assert 60 == len(given) == len(await runs_of(apps[0], "greet"))
        assert [] == list(await apps[0].drainers.parked())


@pytest.mark.parametrize("verb", ["apply", "commit"])
async def test_a_pass_that_breaks_off_has_done_nothing(app: App, monkeypatch: pytest.MonkeyPatch, verb: str):
    """Its runs, what it parked and its position go together."""
    greeter(app)
    await subscribe(app, "greeting", "user.*", "greet")
    await record(app, an_event("user.joined", {"name": "Ada"}), an_event("user.joined", {}))
    with monkeypatch.context() as patch:
        patch.setattr(FlowStore, "draining", _dying(FlowStore.draining, verb))
        with pytest.raises(StoreUnavailable):
            await app.drainers.drain()
    assert ([], []) == (await runs_of(app, "greet"), list(await app.drainers.parked()))
    assert 3 == (await app.drainers.drain()).processed
    assert (1, 1) == (len(await runs_of(app, "greet")), len(await app.drainers.parked()))


class DyingTransaction:
    """One whose connection is lost after everything is written, or at the commit."""

    def __init__(self, transaction: Transaction, verb: str) -> None:
        self._transaction, self._verb = transaction, verb

    def __getattr__(self, name: str) -> Any:
        return self._die if name == self._verb else getattr(self._transaction, name)

    async def _die(self, changes: Sequence[Change] = ()) -> Never:
        await self._transaction.apply(changes)
        raise StoreUnavailable("the connection is lost")


def _dying(draining: Callable[..., AbstractAsyncContextManager[Pass | None]], verb: str) -> Callable[..., Any]:
    @asynccontextmanager
    async def dying(store: FlowStore, name: str, limit: int) -> AsyncIterator[Any]:
        async with draining(store, name, limit) as taken:
            assert taken is not None
            yield taken._replace(transaction=DyingTransaction(taken.transaction, verb))

    return dying
