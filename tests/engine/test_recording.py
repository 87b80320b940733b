"""Recording events: what is kept, what is refused, what they follow from, and how they are looked at and followed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import psycopg
import pytest
from msgspec import Struct
from pydantic import BaseModel

from ostinato import App, Fatal
from ostinato.engine.door import NO_OPTIONS, Door
from ostinato.engine.ledger import recording
from ostinato.engine.ledger.recording import RecordOptions
from ostinato.engine.registry import Registry
from ostinato.errors import AppendOnly, ConfigError, InvalidInput, InvalidOption, LedgerMoved, UnknownEvent
from ostinato.model.event import Event
from ostinato.resources import events
from ostinato.telemetry import EventsPruned, FollowerAsleep, NotificationReceived, RunCompleted
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, notes

HAPPENED = datetime(2027, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)
NAIVE = HAPPENED.replace(tzinfo=None)


def count(database: Database) -> int:
    return int(database.query("select count(*) from ostinato_events")[0][0])


async def started_by(app: App, event_id: str, function: str = "work", **given: Any) -> str:
    """A run as the ledger's drainer starts it."""
    event = await app.events.get(event_id)
    store = app._site.opened()
    assert store is not None
    await store.declare([spec.declared() for spec in app.registry], [])
    run = app._site.door.one(function, (), given, NO_OPTIONS, invoked_by=event.reason)
    await store.commit([run])
    return run.id


# --- what is kept


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime(2300, 7, 1, 12, 0, 0, 123457, tzinfo=UTC),
        datetime(1600, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
    ],
)
async def test_what_happened_at_any_time_is_kept_to_the_microsecond(app: App, moment: datetime):
    """And read by drainers as well."""
    event_id = await app.record("it.happened", occurred_at=moment)
    assert (await app.events.get(event_id)).occurred_at == moment
    assert (await app.drainers.drain()).processed == 1


@pytest.mark.parametrize("years", [9999, 1])
async def test_what_python_has_no_year_for_is_not_written(app: App, database: Database, years: int):
    """By whatever way it comes: nobody could read the ledger any more."""
    beyond = 253402300800000000 if years == 9999 else -62135596800000001
    moment = f"'{'10000-01-01' if years == 9999 else '0001-12-31 BC'}'::timestamptz"
    occurred, now = (beyond, beyond // 10) if database.dialect == "sqlite" else (moment, "now()")
    with pytest.raises(Exception, match=r"(?i)check constraint"):
        database.query(
            "insert into ostinato_events (id, type, payload, occurred_at, recorded_at) "
            f"values ('x', 'it.happened', '{{}}', {occurred}, {now})"
        )
    assert count(database) == 0


async def test_an_event_keeps_what_was_said(app: App):
    """All of it, and when it was recorded, by the database."""
    event_id = await app.record(
        "price.changed",
        {"price": 7.5, "tags": ["a", None, True], "text": "Ünï 'q' \\ 🎵"},
        entity=("product", "42"),
        idempotency_key="k",
        caused_by="sync:tier=gold",
        source="shop",
        occurred_at=HAPPENED,
        ordered=True,
    )
    event = await app.events.get(event_id)
    assert event == Event(
        id=event_id,
        type="price.changed",
        payload={"price": 7.5, "tags": ["a", None, True], "text": "Ünï 'q' \\ 🎵"},
        sequence_no=event.sequence_no,
        entity_type="product",
        entity_id="42",
        caused_by="sync:tier=gold",
        source="shop",
        occurred_at=HAPPENED,
        recorded_at=event.recorded_at,
        idempotency_key="k",
    )
    assert abs(datetime.now(UTC) - event.recorded_at) < timedelta(minutes=1)


async def test_any_json_can_be_a_payload(app: App):
    """Also null; and nothing given is an empty object."""
    payloads: list[Any] = [None, 7, "text", [1, {"a": None}], {}, True, 0.5, 2**60]
    for payload in payloads:
        assert (await app.events.get(await app.record("it.happened", payload))).payload == payload
    bare = await app.events.get(await app.record("it.happened"))
    assert (bare.payload, bare.entity, bare.caused_by, bare.run_id, bare.source) == ({}, None, None, None, None)
    assert bare.occurred_at == bare.recorded_at


async def test_many_are_recorded_in_their_order_or_none(app: App, database: Database):
    """Each says what is its own; the rest is common."""
    entries = [{"payload": {"n": n}, "entity": ("product", str(n % 3)), "ordered": True} for n in range(30)]
    ids = await app.record_many("stock.counted", [*entries, {}, {"source": "else"}], source="scanner")
    events = [await app.events.get(event_id) for event_id in ids]
    assert [event.payload for event in events] == [*({"n": n} for n in range(30)), {}, {}]
    assert [event.sequence_no for event in events] == sorted(event.sequence_no for event in events)
    assert (events[1].entity, events[1].source, events[-1].source) == (("product", "1"), "scanner", "else")
    assert await app.record_many("stock.counted", []) == []
    with pytest.raises(InvalidOption, match=r"^\[1\]: entity=7 must be a pair"):
        await app.record_many("stock.counted", [{}, {"entity": 7}])
    assert count(database) == 32


async def test_one_of_many_may_say_anything_but_what_is_common(app: App):
    """What it says is kept beside what the others do not say, and nothing takes away what is common."""
    moment = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    own = {"idempotency_key": "k", "caused_by": "run:1", "source": "own", "occurred_at": moment, "entity": ["a", "1"]}
    ids = await app.record_many(
        "it.happened", [own, {}, {"entity": None, "source": None}], source="s", entity=("b", "2")
    )
    first, common, bare = [await app.events.get(event_id) for event_id in ids]
    said = (first.idempotency_key, first.caused_by, first.source, first.occurred_at, first.entity)
    assert said == ("k", "run:1", "own", moment, ("a", "1"))
    assert (common.entity, common.source, common.caused_by, common.idempotency_key) == (("b", "2"), "s", None, None)
    assert (bare.entity, bare.source) == (None, None)
    assert bare.occurred_at == common.occurred_at == common.recorded_at


# --- what is refused

DOOR = Door(Registry(), input_limit=1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entity": ("product", 42)}, r"entity=\('product', 42\) must be a pair of texts, like \('product', '42'\)"),
        ({"entity": "product:42"}, "entity='product:42' must be a pair of texts"),
        ({"entity": ("product", "")}, "entity's id '' must be text of 1 to 500 characters"),
        ({"entity": ("p" * 101, "1")}, "entity's type 'p+' must be text of 1 to 100 characters"),
        ({"idempotency_key": "k" * 501}, "idempotency_key 'k+' must be text of 1 to 500"),
        ({"idempotency_key": "a\x00b"}, "idempotency_key .* without NUL"),
        ({"caused_by": ""}, "caused_by '' must be text"),
        ({"source": "\ud800"}, "source .* must be text"),
        ({"occurred_at": NAIVE}, "occurred_at: .* has no time zone"),
        ({"occurred_at": "yesterday"}, "occurred_at: 'yesterday' is not a datetime"),
        ({"ordered": True}, "ordered=True needs entity="),
        ({"ordered": "yes", "entity": ("a", "b")}, "ordered='yes' must be True or False"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str):
    """At the door, by name."""
    with pytest.raises(InvalidOption, match=f"^{message}"):
        recording.one(DOOR, "it.happened", {}, RecordOptions(**options))
    with pytest.raises(InvalidOption, match=rf"^\[1\]: {message}"):
        recording.many(DOOR, "it.happened", [{}, options], recording.NO_OPTIONS)


@pytest.mark.parametrize("kind", ["", "x" * 201, "price.*", "price changed", "a\nb", 7])
def test_a_type_that_cannot_be_is_refused(kind: Any):
    """It is printable, short, and no glob."""
    with pytest.raises(InvalidOption, match=r"^event type .* must be "):
        recording.one(DOOR, kind, {}, recording.NO_OPTIONS)


def test_payloads_that_cannot_be_kept_are_refused():
    """Those that a database would refuse or change, and those that are too large."""
    for payload, message in (
        ({"a": [float("nan")]}, r"payload of 'it\.happened': \$\.a\[0\] is nan"),
        ({"a": "x\x00"}, r"\$\.a contains NUL"),
        ("x" * 1000, r"has 1,002 bytes as JSON and may have 1,000"),
        ({"a": object()}, r"\$\.a cannot be stored as JSON"),
    ):
        with pytest.raises(InvalidInput, match=message):
            recording.one(DOOR, "it.happened", payload, recording.NO_OPTIONS)
    with pytest.raises(InvalidInput, match=r"^\[1\]: payload .* \$\.a contains NUL") as refused:
        recording.many(DOOR, "it.happened", [{}, {"payload": {"a": "\x00"}}], recording.NO_OPTIONS)
    assert refused.value.path == "[1].a"


async def test_what_is_said_twice_or_to_nobody_is_refused(app: App):
    """A key is one event's, and an unknown name is named."""
    async with app.transaction() as tx:
        with pytest.raises(InvalidOption, match="idempotency_key= is one event's"):
            await tx.record_many("it.happened", [{}], idempotency_key="k")
        with pytest.raises(
            InvalidOption, match="unknown option 'enity'; what can be said about an event is caused_by, "
        ):
            await tx.record("it.happened", {}, enity=("a", "b"))
        with pytest.raises(InvalidOption, match=r"\[0\]: unknown option 'enity'"):
            await tx.record_many("it.happened", [{"source": "s", "enity": ("a", "b")}])
        with pytest.raises(InvalidInput, match=r"\[0\]: an event of many must be like .* and is int"):
            await tx.record_many("it.happened", [7])  # type: ignore[list-item]


# --- payload types


class AsStruct(Struct):
    price: float


@dataclass
class AsDataclass:
    price: float


class AsTypedDict(TypedDict):
    price: float


class AsModel(BaseModel):
    price: float


@pytest.mark.parametrize("kind", [AsStruct, AsDataclass, AsTypedDict, AsModel])
def test_a_payload_type_is_enforced_at_the_door(kind: Callable[..., Any]):
    """With the path of the field that is wrong; other types of events are as free as before."""
    app = App("sqlite:///never-opened.db")
    assert app.event("price.changed", kind) is kind
    door = app._site.door
    change = recording.one(door, "price.changed", kind(price=7.5), recording.NO_OPTIONS)
    assert bytes(change.payload) == b'{"price":7.5}'
    with pytest.raises(InvalidInput, match=r"payload of 'price\.changed'.*\$\.price") as caught:
        recording.one(door, "price.changed", {"price": "dear"}, recording.NO_OPTIONS)
    assert caught.value.path == "$.price"
    with pytest.raises(InvalidInput, match=r"^\[1\]: payload of 'price\.changed'") as caught:
        recording.many(door, "price.changed", [{"payload": {"price": 1}}, {"payload": {}}], recording.NO_OPTIONS)
    assert caught.value.path == "[1].price"
    recording.one(door, "price.dropped", {"price": "dear"}, recording.NO_OPTIONS)


def test_declared_payloads_are_known_as_schemas():
    """For documentation and forms; the types that nobody declared are not among them."""
    app = App("sqlite:///unused.db")
    app.event("price.changed", dict[str, float])

    assert app.events.schemas() == {"price.changed": {"type": "object", "additionalProperties": {"type": "number"}}}


def test_payload_types_are_declared_once():
    """By a type, of one event type, which is no glob."""
    app = App("sqlite:///never-opened.db")

    @app.event("stock.low")
    class StockLow(Struct):
        left: int

    assert app.registry.events["stock.low"].schema is not None
    with pytest.raises(ConfigError, match=r"the payload of 'stock\.low' is declared twice"):
        app.event("stock.low", StockLow)
    with pytest.raises(InvalidOption, match="without \\* and spaces"):
        app.event("stock.*", StockLow)


# --- idempotency keys


async def test_a_key_that_was_used_gives_the_event_that_has_it(app: App, database: Database):
    """Singly, in bulk, within one bulk; and nothing more is written."""
    first = await app.record("order.placed", {"n": 1}, idempotency_key="order:1")
    assert await app.record("order.placed", {"n": 2}, idempotency_key="order:1") == first
    keys = ["order:2", "order:1", "order:2", "order:3"]
    ids = await app.record_many("order.placed", [{"idempotency_key": key} for key in keys])
    assert (ids[0], ids[1]) == (ids[2], first)
    assert len(set(ids)) == count(database) == 3
    assert (await app.events.get(first)).payload == {"n": 1}


RECORDER = """
import asyncio, sys
from ostinato import App

async def main():
    async with App(sys.argv[1]) as app:
        sys.stdin.readline()
        for start in range(0, 100, 20):
            keys = [f"k{number}" for number in range(start, start + 20)]
            bulk = await app.record_many("it.happened", [{"idempotency_key": key} for key in reversed(keys[:10])])
            single = [await app.record("it.happened", idempotency_key=key) for key in keys]
            print(*reversed(bulk), *single[10:], sep="\\n")

asyncio.run(main())
"""


async def test_two_processes_record_the_same_keys(database: Database):
    """There is one event for each key, and both were told its id."""
    crew = [await _process(database.url) for _ in range(2)]
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in crew))
    first, second = (output.decode().split() for output, _ in outputs)
    assert (len(first), first) == (100, second)
    assert count(database) == 100
    assert {row[0] for row in database.query("select id from ostinato_events")} == set(first)


async def _process(url: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", RECORDER, url, stdin=pipe, stdout=pipe, env=dict(os.environ)
    )


# --- transactions


async def test_an_event_shares_the_fate_of_its_transaction(app: App, database: Database):
    """The user's rows, a run and events: all or none."""
    async with app.transaction() as tx:
        await tx.execute("insert into notes values ($1)", "kept")
        kept = [await tx.record("it.happened", {"n": 1}), *await tx.record_many("it.happened", [{}, {}], source="bulk")]
    with pytest.raises(Fatal):  # noqa: PT012 - it is about the whole block
        async with app.transaction() as tx:
            await tx.execute("insert into notes values ($1)", "lost")
            await tx.record("it.happened", idempotency_key="free")
            raise Fatal("no")
    assert notes(database) == ["kept"]
    assert [event.id for event in reversed(await app.events.recent())] == kept
    assert await app.record("it.happened", idempotency_key="free") not in kept


@pytest.mark.parametrize("blocking", [False, True])
async def test_events_of_a_runs_last_act_commit_with_it(app: App, probe: Probe, blocking: bool):
    """And those of an attempt that fails are not there; they know their run in a thread too."""

    @app.function(name="work")
    async def work(run, fails: bool):
        async with run.transaction() as tx:
            await tx.record("work.done", {"attempt": run.attempt})
            if fails:
                raise Fatal("no")

    @app.function(name="work in a thread")
    def work_in_a_thread(run, fails: bool):
        with run.transaction() as tx:
            tx.record_many("work.done", [{"payload": {"attempt": run.attempt}}])
            if fails:
                raise Fatal("no")

    function = work_in_a_thread if blocking else work
    async with app.worker():
        with pytest.raises(Exception, match="no"):
            await (await function.enqueue(fails=True)).result(10)
        run = await function.enqueue(fails=False)
        await run.result(10)
    (event,) = await app.events.recent("work.done")
    assert (event.run_id, event.caused_by, event.payload) == (run.id, f"run:{run.id}", {"attempt": 1})


# --- what follows from what


async def test_inside_a_run_an_event_knows_what_it_follows_from(app: App, probe: Probe):
    """The run; and the event that started it, if one did, or what the handler says. The handler gets that event."""
    seen: list[Event | None] = []

    @app.function(name="work")
    async def work(run):
        seen.extend([await run.event, await run.event])
        await app.record("work.done")
        await app.record_many("work.told", [{"caused_by": "manual"}, {}])

    @app.function(name="in a thread")
    def in_a_thread(run):
        seen.append(run.event)

    event_id = await app.record("work.wanted", {"n": 1})
    async with app.worker():
        by_event = await started_by(app, event_id)
        await app.runs.handle(by_event).result(timeout=10)
        by_hand = await work.enqueue()
        await by_hand.result(10)
        await app.runs.handle(await started_by(app, event_id, "in a thread")).result(timeout=10)
    wanted = await app.events.get(event_id)
    assert seen == [wanted, wanted, None, None, wanted]
    done = {event.run_id: event for event in await app.events.recent("work.done")}
    assert done[by_event].caused_by == f"event:{event_id}"
    assert done[by_hand.id].caused_by == f"run:{by_hand.id}"
    assert {event.caused_by for event in await app.events.recent("work.told")} == {
        "manual",
        f"event:{event_id}",
        f"run:{by_hand.id}",
    }


async def test_a_chain_is_traced_both_ways(app: App, probe: Probe):
    """Event, run, run that it enqueued, event, and an event caused by that."""

    @app.function(name="work")
    async def work(run):
        await app.record("work.begun")
        await further.enqueue()

    @app.function(name="further")
    async def further(run):
        await app.record("further.done")

    root = await app.record("work.wanted")
    async with app.worker():
        run_id = await started_by(app, root)
        await probe.next(RunCompleted, function="further")
    (done,) = await app.events.recent("further.done")
    last = await app.record("all.done", caused_by=f"event:{done.id}")
    aside = await app.record("aside", caused_by=f"event:{root}")

    trace = await app.events.trace(root)
    below = [(each.kind, each.name, each.depth) for each in trace.descendants]
    assert below == [
        ("run", "work", 1),
        ("run", "further", 2),
        ("event", "further.done", 3),
        ("event", "all.done", 4),
        ("event", "work.begun", 2),
        ("event", "aside", 1),
    ]
    assert (trace.event.id, trace.ancestors, trace.truncated) == (root, [], False)
    assert (trace.descendants[0].id, trace.descendants[0].state) == (run_id, "completed")
    assert trace.descendants[-1].id == aside

    above = (await app.events.trace(last)).ancestors
    assert [(each.kind, each.name, each.depth) for each in above] == [
        ("event", "work.wanted", -4),
        ("run", "work", -3),
        ("run", "further", -2),
        ("event", "further.done", -1),
    ]
    assert [each.parent for each in above] == [None, *(each.id for each in above[:-1])]

    await app.runs.purge(function="work")
    begun = (await app.events.recent("work.begun"))[0]
    assert [each.id for each in (await app.events.trace(begun.id)).ancestors] == [root]
    with pytest.raises(UnknownEvent, match="the ledger has no event 'nope'"):
        await app.events.trace("nope")


# --- looking


async def test_recent_events_are_found_by_what_they_are(app: App, database: Database):
    """By type and glob, entity, source and time, the latest first."""
    for number, kind in enumerate(["price.changed", "price.list.changed", "stock.low", "price.dropped"]):
        await app.record(kind, entity=("product", str(number % 2)), source="shop" if number % 2 else None)

    async def found(*args: Any, **filters: Any) -> list[str]:
        return [event.type for event in await app.events.recent(*args, **filters)]

    assert await found() == ["price.dropped", "stock.low", "price.list.changed", "price.changed"]
    assert await found("price.*") == ["price.dropped", "price.changed"]
    assert await found("price.**", limit=2) == ["price.dropped", "price.list.changed"]
    assert await found("stock.low") == ["stock.low"]
    assert await found("nothing.*") == await found("nothing") == []
    assert await found(entity=("product", "0")) == ["stock.low", "price.changed"]
    assert await found("price.*", entity=("product", "0")) == ["price.changed"]
    assert await found(source="shop") == ["price.dropped", "price.list.changed"]
    assert await found("price.*", source="shop") == ["price.dropped"]
    now = datetime.now(UTC)
    assert await found(since=now + timedelta(hours=1)) == []
    assert len(await found("*.*", since=now - timedelta(hours=1))) == 3
    for bad, message in (({"since": NAIVE}, "no time zone"), ({"limit": 0}, "limit=0 must be")):
        with pytest.raises(InvalidOption, match=message):
            await app.events.recent(**bad)
    types = [(each.type, each.source, each.count) for each in await app.events.types()]
    assert sorted(types, key=str) == [
        ("price.changed", None, 1),
        ("price.dropped", "shop", 1),
        ("price.list.changed", "shop", 1),
        ("stock.low", None, 1),
    ]


async def test_of_a_type_the_latest_are_counted(app: App, monkeypatch: pytest.MonkeyPatch):
    """By source; those before are told of, not counted."""
    monkeypatch.setattr(events, "MOST_COUNTED", 4)
    await app.record_many("old", [{"source": source} for source in "aabbbc"])
    await app.record_many("new", [{"source": source} for source in "abb"])
    counts = [(each.type, each.source, each.in_words) for each in await app.events.types()]
    assert counts == [("new", "a", "1"), ("new", "b", "2"), ("old", "b", "3+"), ("old", "c", "1+")]


async def test_events_of_the_last_hour_are_found_without_a_walk(app: App, clock: Any):
    """The first is found by halving, also when old events are gone."""
    for _ in range(3):
        await app.record_many("old", [{}] * 5)
        clock.advance("1h")
    await app.record_many("new", [{}] * 4)
    since = (await app.events.recent("new", limit=1))[0].recorded_at
    assert [event.type for event in await app.events.recent(since=since)] == ["new"] * 4
    assert len(await app.events.recent(since=since - timedelta(hours=2, minutes=30))) == 14


# --- reading in order


async def test_a_token_goes_on_where_it_ended(app: App):
    """In pages, with a glob, from the beginning or from now, whatever is recorded in between."""
    await app.record_many("even", [{"payload": n} for n in range(5)])
    begun = await app.events.read(start_at="now")
    assert ([], False) == (begun.events, begun.more)
    await app.record_many("odd", [{"payload": n} for n in range(5)])
    seen, token = [], None
    while True:
        page = await app.events.read(token, on="odd", limit=2)
        seen += [event.payload for event in page.events]
        token = page.token
        if not page.more:
            break
    assert seen == [0, 1, 2, 3, 4]
    await app.record("odd", 5)
    assert [event.payload for event in (await app.events.read(token, on="odd")).events] == [5]
    assert [event.payload for event in (await app.events.read(begun.token)).events] == [0, 1, 2, 3, 4, 5]
    assert len((await app.events.read()).events) == 11


async def test_a_token_that_does_not_fit_is_refused(app: App, database: Database):
    """What is none, and what is of another ledger or of one that was restored."""
    await app.record("it.happened")
    for text in ("", "%%%", "bm9wZQ"):
        with pytest.raises(InvalidOption, match=r"the token is none that `events\.read` gave"):
            await app.events.read(text)
    token = (await app.events.read()).token
    if database.dialect == "sqlite":
        database.query("update sqlite_sequence set seq = 0 where name = 'ostinato_events'")
    else:
        database.query("update ostinato_ledger set lineage = 'another'")
    with pytest.raises(LedgerMoved, match="read from the beginning again"):
        await app.events.read(token)
    with pytest.raises(InvalidOption, match="start_at='then' must be 'beginning' or 'now'"):
        await app.events.read(start_at="then")


# --- following


async def test_events_are_followed_as_they_are_recorded(app: App, make_app: MakeApp, probe: Probe):
    """Who follows is woken by another process's app; filters leave out; a token goes on."""
    await app.record("price.before")
    following = app.events.follow("price.*", entity=("product", "1"), source="shop")
    await following.begin()
    async with make_app() as other, asyncio.timeout(15):
        first = asyncio.create_task(anext(following))
        await probe.next(FollowerAsleep, on="price.*")
        await other.record("price.changed", 1, entity=("product", "1"), source="shop")
        assert (await first).payload == 1
        second = asyncio.create_task(anext(following))
        await probe.next(FollowerAsleep, on="price.*")
        await other.record_many("price.changed", [{"source": "else"}, {"entity": ("product", "2")}], source="shop")
        await other.record("stock.low", entity=("product", "1"), source="shop")
        await other.record("price.changed", 2, entity=("product", "1"), source="shop")
        assert (await second).payload == 2
    token = following.token
    await following.aclose()
    await app.record("price.changed", 3)
    again = app.events.follow("price.*", token=token)
    async with asyncio.timeout(15):
        assert (await anext(again)).payload == 3
    await again.aclose()
    everything = app.events.follow(start_at="beginning")
    async with asyncio.timeout(15):
        assert [(await anext(everything)).type for _ in range(2)] == ["price.before", "price.changed"]
    await everything.aclose()
    assert probe.seen(NotificationReceived, channel="ledger")


async def test_a_late_commit_is_followed_too(postgres_database: Database):
    """Though its number is lower than one that was given before."""
    async with App(postgres_database.url) as app, asyncio.timeout(20):
        following = app.events.follow()
        await following.begin()
        with psycopg.connect(postgres_database.url) as connection:
            late = await app.record("late", conn=connection)
            early = await app.record("early")
            assert (await anext(following)).id == early
            connection.commit()
        assert (await anext(following)).id == late
        await following.aclose()
        assert (await app.events.get(late)).sequence_no < (await app.events.get(early)).sequence_no


async def test_who_follows_survives_the_loss_of_all_connections(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
):
    """It goes on where it was, without a gap and without asking."""
    monkeypatch.setattr("ostinato.engine.ledger.following.PAUSE", 0.05)
    others = "pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    async with App(postgres_database.url) as app, asyncio.timeout(20):
        with Probe(app.telemetry) as probe:
            following = app.events.follow()
            for number in range(2):
                seen = asyncio.create_task(anext(following))
                await probe.next(FollowerAsleep, on="**")
                postgres_database.query(f"select pg_terminate_backend(pid) from {others}")
                postgres_database.query(f"""select ostinato_record('{{"type": "it.happened", "payload": {number}}}')""")
                assert (await seen).payload == number
            await following.aclose()


# --- kept, and removed


@pytest.mark.parametrize("verb", ["update {} set type = 'x'", "delete from {}", "truncate {}"])
async def test_events_are_never_changed(app: App, database: Database, verb: str):
    """The database refuses it, whoever asks, and the error says what to do."""
    await app.record("it.happened")
    if database.dialect == "sqlite" and verb.startswith("truncate"):
        return
    table = "ostinato_events" if database.dialect == "sqlite" else "ostinato.events"
    with pytest.raises(
        AppendOnly, match=r"never changed or deleted: \w+ of the ledger is refused; record another event"
    ):
        async with app.transaction() as tx:
            await tx.execute(verb.format(table))
    with pytest.raises(Exception, match="events are never changed or deleted"):
        database.query(verb.format("ostinato_events"))
    assert count(database) == 1


async def test_old_events_are_removed_in_batches_once_they_were_read(
    make_app: MakeApp, database: Database, monkeypatch: pytest.MonkeyPatch
):
    """By a worker, which is told to; the young stay."""
    monkeypatch.setattr("ostinato.engine.pruner.BATCH", 10)
    monkeypatch.setattr("ostinato.engine.pruner.BETWEEN_BATCHES", 0.001)
    monkeypatch.setattr("ostinato.engine.pruner.FIRST", 0.01)
    monkeypatch.setattr("ostinato.engine.pruner.INTERVAL", 0.05)
    async with make_app() as app:
        await app.record_many("old", [{}] * 25)
        async with app.worker():
            pass
        assert count(database) == 25
    async with make_app(retention={"events": 0}) as app:
        with Probe(app.telemetry) as probe:
            async with app.worker():
                assert [(await probe.next(EventsPruned)).count for _ in range(3)] == [10, 10, 5]
    assert count(database) == 0
