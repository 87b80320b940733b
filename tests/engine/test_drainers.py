"""Drainers of the app's own, what operators do with them, and readers from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ostinato import App
from ostinato.engine.ledger import drainer
from ostinato.errors import (
    ConfigError,
    InvalidOption,
    OstinatoError,
    StaleToken,
    UnknownDrainer,
    UnknownSubscription,
)
from ostinato.model.event import WORKFLOW_RUNNER, Event
from ostinato.store.base import FlowStore
from ostinato.telemetry import DrainerAsleep, DrainerHalted, EventsDrained, RunCompleted
from ostinato.testing import Clock, Drain, Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, notes
from tests.engine.ledger import an_event, record, runs_of, subscribe

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long to try again."""
    monkeypatch.setattr(drainer, "SHORTEST_HALT", 0.01)
    monkeypatch.setattr(drainer, "LONGEST_HALT", 0.02)


@pytest.fixture
async def timed_app(make_app: MakeApp, ostinato_clock: Clock) -> AsyncIterator[App]:
    """An app with an event at 11, one at 12 and one at 13 o'clock."""
    async with make_app() as app:
        for hour, name in ((-1, "eleven"), (0, "twelve"), (1, "thirteen")):
            ostinato_clock.move_to(NOON + hour * HOUR)
            await record(app, an_event("struck", {"name": name}))
        yield app


def collecting(app: App, name: str = "billing", **options: Any) -> list[str]:
    """Declares a drainer; answers the names in the payloads that it is given."""
    names: list[str] = []

    @app.drainer(name, **options)
    async def collect(tx: Any, events: list[Event]) -> None:
        names.extend(event.payload["name"] for event in events)

    return names


async def numbered(app: App, *names: object, kind: str = "invoice.paid") -> list[str]:
    return await record(app, *[an_event(kind, {"name": str(name)}) for name in names])


# --- handlers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_effects_and_position_move_together(app: App, probe: Probe, database: Database, plain: bool):
    """A handler gets what its glob means, in order, and a tx that is committed with the drainer's position."""
    if plain:

        @app.drainer("billing", on="invoice.*")
        def note(tx, events):
            for event in events:
                tx.execute("insert into notes values ($1)", event.payload["name"])

    else:

        @app.drainer("billing", on="invoice.*")
        async def note_soon(tx, events):
            for event in events:
                await tx.execute("insert into notes values ($1)", event.payload["name"])

    await numbered(app, 1)
    await numbered(app, 2, kind="order.placed")
    async with app.worker():
        await probe.next(EventsDrained, drainer="billing", processed=2)
        await probe.next(DrainerAsleep, drainer="billing")
        await numbered(app, 3)
        await probe.next(EventsDrained, drainer="billing", processed=1)
        await probe.next(DrainerAsleep, drainer="billing")
    async with app.worker():  # it goes on where it was
        await probe.next(DrainerAsleep, drainer="billing")
    assert ["1", "3"] == notes(database)
    found = await app.drainers.get("billing")
    assert (3, 0, "at the end", "invoice.*") == (found.events_processed_total, found.lag, found.position, found.glob)
    assert found.origin.startswith("tests.engine.test_drainers:")
    assert found.last_drained_at is not None


async def test_a_handler_that_raises_halts_at_the_culprit(app: App, probe: Probe, database: Database, soon: None):
    """What comes before it is kept, it says which it is, and it goes on when it works again."""
    broken = True

    @app.drainer("billing", on="invoice.*")
    async def note(tx, events):
        for event in events:
            await tx.execute("insert into notes values ($1)", event.payload["name"])
            if event.payload["name"] == "3" and broken:
                raise ValueError("no third invoice")

    await numbered(app, 0, kind="order.placed")
    ids = await numbered(app, 1, 2, 3, 4)
    async with app.worker():
        halted = await probe.next(DrainerHalted, drainer="billing")
        assert (ids[2], "ValueError: no third invoice") == (halted.event_id, halted.error)
        await probe.next(DrainerHalted, drainer="billing")
        seen = await app.drainers.get("billing")
        assert (ids[2], "ValueError: no third invoice", 3) == (seen.halted_on, seen.error, seen.events_processed_total)
        assert seen.failures
        assert seen.retry_at is not None
        assert ["1", "2"] == notes(database)
        broken = False
        await probe.next(DrainerAsleep, drainer="billing")
    assert ["1", "2", "3", "4"] == notes(database)
    going = await app.drainers.get("billing")
    assert (None, None, 0, 5) == (going.halted_on, going.error, going.failures, going.events_processed_total)


async def test_draining_by_hand_halts_at_the_culprit(app: App, probe: Probe):
    """The answer says where; those before it that do not concern the handler are passed over."""

    @app.drainer("billing", on="invoice.*")
    async def refuse(tx, events):
        if any(event.payload["name"] == "bad" for event in events):
            raise ValueError("bad")

    await numbered(app, *range(5), kind="order.placed")
    (bad,) = await numbered(app, "bad")
    await numbered(app, 6)
    for expected in (5, 0):
        drained = await app.drainers.drain("billing")
        assert (expected, bad, "ValueError: bad") == (drained.processed, drained.halted_on_event_id, drained.error)
    assert (await app.drainers.get("billing")).lag == 2
    assert [bad, bad] == [halted.event_id for halted in probe.seen(DrainerHalted)]


async def test_batches_and_beginnings(timed_app: App, ostinato_clock: Clock):
    """A handler gets as many as it asks for, from where it asks; one that is there goes on where it was."""
    sizes: list[int] = []

    @timed_app.drainer("pairs", batch=2)
    async def pairs(tx, events):
        sizes.append(len(events))

    from_start = collecting(timed_app, "all")
    from_now = collecting(timed_app, "new", start_at="now")
    from_noon = collecting(timed_app, "afternoon", start_at=NOON)
    await timed_app.drainers.drain()
    assert [2, 1] == sizes
    assert (["eleven", "twelve", "thirteen"], [], ["twelve", "thirteen"]) == (from_start, from_now, from_noon)
    await record(timed_app, an_event("struck", {"name": "late"}))
    await timed_app.drainers.drain()
    assert (["thirteen", "late"], ["late"], ["thirteen", "late"]) == (from_start[2:], from_now, from_noon[1:])


async def test_what_a_handler_records_and_enqueues_comes_with_it(app: App):
    """In the same commit, and its own events come in the next pass."""
    seen: list[str] = []

    @app.function
    async def send(name: str) -> None: ...

    @app.drainer("billing")
    async def bill(tx, events):
        for event in events:
            seen.append(event.type)
            if event.type == "order.placed":
                await tx.enqueue(send, name="Ada")
                await tx.record("invoice.made", {"name": "Ada"})

    await numbered(app, 1, kind="order.placed")
    assert 2 == (await app.drainers.drain("billing")).processed
    assert (["order.placed", "invoice.made"], 1) == (seen, len(await runs_of(app, "send")))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("", {}, "a drainer's name must have 1 to 200"),
        ("workflow_runner", {}, "is the drainer that is built in"),
        ("billing", {"on": "price..x"}, "drainer 'billing': glob 'price..x' has an empty segment"),
        ("billing", {"on": ["price.*"]}, "must be a glob over event types"),
        ("billing", {"start_at": "yesterday"}, "start_at='yesterday' must be 'beginning', 'now' or a datetime"),
        ("billing", {"start_at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ("billing", {"batch": 0}, "batch=0 must be a number of events"),
    ],
)
def test_bad_declarations_are_refused(name: str, options: dict[str, Any], message: str):
    """With what is wrong, and nothing is declared."""
    app = App("sqlite:///nowhere.db")
    with pytest.raises(ConfigError, match=message):

        @app.drainer(name, **options)
        async def handle(tx, events): ...

    assert {} == app.registry.drainers


def test_handlers_take_a_transaction_and_events():
    """Others are refused, and so is a second drainer of the name."""
    app = App("sqlite:///nowhere.db")
    for wrong in (lambda: None, lambda tx: None, lambda tx, events, more: None):
        with pytest.raises(ConfigError, match=r"write `async def name\(tx, events\)`"):
            app.drainer("billing")(wrong)
    app.drainer("billing")(lambda tx, events: None)
    with pytest.raises(ConfigError, match="two drainers are named 'billing'"):
        app.drainer("billing")(lambda tx, events: None)


async def test_drain_in_tests_drains_the_ledger(app: App, drain: Drain):
    """The plugin's drain starts what events ask for, and executes it."""
    names = collecting(app)

    @app.function
    async def greet(name: str) -> str:
        return name

    await subscribe(app, "greeting", "user.*", "greet")
    await numbered(app, "Ada", kind="user.joined")
    assert ["Ada"] == [attempt.output for attempt in await drain()]
    assert ["Ada"] == names


async def test_drain_in_tests_tells_what_a_handler_raises(app: App, drain: Drain):
    """A drainer that cannot go on would otherwise be seen by nobody."""

    @app.drainer("billing")
    async def refuse(tx, events):
        raise ValueError("no")

    (event,) = await numbered(app, 1)
    with pytest.raises(OstinatoError, match=f"drainer 'billing' cannot go on past event {event}: ValueError: no"):
        await drain()


# --- operators ------------------------------------------------------------------------------------------------------


async def test_resetting(timed_app: App):
    """To the beginning, a time, now, or a token; a dry run says how many events come again and moves nothing."""
    names = collecting(timed_app)
    await timed_app.drainers.drain()
    token = (await timed_app.drainers.get("billing")).token
    for to, expected in (
        ("beginning", ["eleven", "twelve", "thirteen"]),
        (NOON, ["twelve", "thirteen"]),
        (NOON + 2 * HOUR, []),
        ("now", []),
        (token, []),
    ):
        names.clear()
        tried = await timed_app.drainers.reset("billing", to, dry_run=True)
        assert (len(expected), True) == (tried.events, tried.dry_run)
        assert 0 == (await timed_app.drainers.drain("billing")).processed
        done = await timed_app.drainers.reset("billing", to)
        assert (len(expected), False) == (done.events, done.dry_run)
        await timed_app.drainers.drain("billing")
        assert expected == names
    with pytest.raises(InvalidOption, match="'elsewhere' is no token"):
        await timed_app.drainers.reset("billing", "elsewhere")
    with pytest.raises(UnknownDrainer, match="did you mean 'billing'"):
        await timed_app.drainers.reset("biling", "now")


async def test_a_reset_wakes_a_sleeping_drainer(app: App, probe: Probe):
    """It does not wait for its poll."""
    names = collecting(app)
    await numbered(app, 1)
    async with app.worker():
        await probe.next(EventsDrained, drainer="billing")
        await probe.next(DrainerAsleep, drainer="billing")
        await app.drainers.reset("billing", "beginning")
        await probe.next(EventsDrained, drainer="billing", timeout=5)  # before a renewal of the lease wakes everybody
    assert ["1", "1"] == names


async def test_removing(app: App):
    """A removed drainer is gone, and begins anew when it is declared again; the built-in one stays."""
    names = collecting(app)
    await numbered(app, 1)
    await app.drainers.drain()
    await app.drainers.remove("billing")
    assert [WORKFLOW_RUNNER] == [each.name for each in await app.drainers.list()]
    await app.drainers.drain()
    assert ["1", "1"] == names
    with pytest.raises(ConfigError, match="is built in and stays"):
        await app.drainers.remove(WORKFLOW_RUNNER)
    with pytest.raises(UnknownDrainer):
        await app.drainers.remove("nobody")


async def test_only_the_app_that_declares_a_drainer_drains_it(make_app: MakeApp):
    """Another one says who does."""
    declaring, other = make_app(), make_app()
    collecting(declaring)
    async with declaring, other:
        await declaring.drainers.drain()
        with pytest.raises(ConfigError, match="test_drainers:collecting"):
            await other.drainers.drain("billing")
        await other.drainers.add("outside")
        with pytest.raises(ConfigError, match="it is read from outside"):
            await other.drainers.drain("outside")
        assert 0 == (await other.drainers.drain(WORKFLOW_RUNNER)).processed


async def test_replaying(timed_app: App):
    """A range of the ledger goes to one subscription again: the dry run counts, the runs are marked, and a replay
    of the same name starts none twice."""

    @timed_app.function
    async def greet(name: str) -> None: ...

    await subscribe(timed_app, "greeting", "struck", "greet", filter='event.payload.name != "twelve"')
    await subscribe(timed_app, "other", "struck", "greet")
    await timed_app.drainers.drain()
    before = len(await runs_of(timed_app, "greet"))
    assert 3 == before
    drainers = timed_app.drainers
    dry = await drainers.replay("greeting", since=NOON)
    assert (2, 1, True) == (dry.events, dry.runs, dry.dry_run)
    assert before == len(await runs_of(timed_app, "greet"))
    done = await drainers.replay("greeting", since=NOON - HOUR, until=NOON + HOUR, name="fix", dry_run=False)
    assert (2, 1, False) == (done.events, done.runs, done.dry_run)
    *_, run = await runs_of(timed_app, "greet")
    assert ({"replay": "fix"}, {"name": "eleven"}) == (run.metadata, run.input)
    assert run.key is not None
    assert run.key.startswith("replay:fix:")
    for dry_run in (True, False):
        assert 0 == (await drainers.replay("greeting", until=NOON + HOUR, name="fix", dry_run=dry_run)).runs
    assert 2 == (await drainers.replay("greeting", dry_run=False)).runs
    with pytest.raises(UnknownSubscription, match="did you mean 'greeting'"):
        await drainers.replay("greting")


async def test_a_replay_tells_what_is_refused(timed_app: App):
    """Without parking it: it may have been dispatched before."""

    @timed_app.function
    async def count(number: int) -> None: ...

    await subscribe(timed_app, "counting", "struck", "count")
    done = await timed_app.drainers.replay("counting", dry_run=False)
    assert (3, 0, 3) == (done.events, done.runs, done.refused)
    assert {"invalid_input"} == {each.code for each in done.refusals}
    assert [] == list(await timed_app.drainers.parked())


# --- readers from outside -------------------------------------------------------------------------------------------


async def test_reading_and_acknowledging(app: App):
    """The same events come until they are acknowledged; a token counts once, and only where the drainer is."""
    await app.drainers.add("warehouse", on="invoice.*")
    await numbered(app, 0, kind="order.placed")
    first, second, third = await numbered(app, 1, 2, 3)
    batch = await app.drainers.read("warehouse", 2)
    while not batch.events:
        batch = await app.drainers.read("warehouse", 2)
    again = await app.drainers.read("warehouse", 2)
    assert [event.id for event in batch.events] == [event.id for event in again.events]
    await app.drainers.acknowledge("warehouse", str(batch.token))
    for stale in (batch.token, again.token):
        with pytest.raises(StaleToken, match="read again"):
            await app.drainers.acknowledge("warehouse", str(stale))
    seen = [event.id for event in batch.events]
    while (batch := await app.drainers.read("warehouse", 2)).events:
        seen += [event.id for event in batch.events]
        await app.drainers.acknowledge("warehouse", str(batch.token))
    assert [first, second, third] == seen
    assert None is batch.token
    found = await app.drainers.get("warehouse")
    assert (4, 0, "external") == (found.events_processed_total, found.lag, found.origin)


async def test_a_token_does_not_outlive_a_reset(app: App):
    """The drainer is where it was when the token was made, and was elsewhere in between."""
    await app.drainers.add("warehouse")
    await numbered(app, 1)
    batch = await app.drainers.read("warehouse")
    await app.drainers.acknowledge("warehouse", str(batch.token))
    await app.drainers.reset("warehouse", "beginning")
    with pytest.raises(StaleToken, match="read again"):
        await app.drainers.acknowledge("warehouse", str(batch.token))
    again = await app.drainers.read("warehouse")
    assert [event.id for event in batch.events] == [event.id for event in again.events]
    await app.drainers.acknowledge("warehouse", str(again.token))


async def test_a_token_is_void_after_a_reset(app: App):
    """What was read before it does not move the drainer from where it was put."""
    await app.drainers.add("warehouse")
    await numbered(app, 1)
    batch = await app.drainers.read("warehouse")
    await app.drainers.reset("warehouse", "now")
    with pytest.raises(StaleToken):
        await app.drainers.acknowledge("warehouse", str(batch.token))


async def test_what_readers_may_not(app: App):
    """Read what workers drain, take over a name, or give tokens of others."""
    collecting(app)
    await numbered(app, 1)
    await app.drainers.drain()
    for name in ("one", "two"):
        await app.drainers.add(name)
    with pytest.raises(ConfigError, match="cannot be read from outside"):
        await app.drainers.read("billing")
    with pytest.raises(ConfigError, match="is there already"):
        await app.drainers.add("billing")
    with pytest.raises(InvalidOption, match="limit=0"):
        await app.drainers.read("one", 0)
    token = str((await app.drainers.read("one")).token)
    with pytest.raises(InvalidOption, match="the token is of drainer 'one', not of 'two'"):
        await app.drainers.acknowledge("two", token)
    with pytest.raises(InvalidOption, match="is no token"):
        await app.drainers.acknowledge("one", "nonsense")
    with pytest.raises(InvalidOption, match="discarding needs a subscription"):
        await app.drainers.discard_parked()


async def test_a_worker_without_events_leaves_the_ledger_alone(app: App, probe: Probe, monkeypatch: pytest.MonkeyPatch):
    """It looks a moment after its start, once more when it asks to be woken, and then sleeps, whatever runs."""
    looks: list[str] = []
    undrained = FlowStore.undrained

    async def counted(store: FlowStore, name: str) -> bool:
        looks.append(name)
        return await undrained(store, name)

    monkeypatch.setattr(FlowStore, "undrained", counted)

    @app.function
    async def greet() -> None: ...

    async with app.worker():
        await probe.next(DrainerAsleep, drainer=WORKFLOW_RUNNER)
        before = len(looks)
        for _ in range(20):
            await greet.enqueue()
            await probe.next(RunCompleted)
        assert len(looks) <= before + 2  # a commit of the keeper's may have been one
    assert [] == probe.seen(EventsDrained)
    (found,) = await app.drainers.list()
    assert (WORKFLOW_RUNNER, 0, "at the end", 0) == (
        found.name,
        found.lag,
        found.position,
        found.events_processed_total,
    )
