"""From the door to the result: input, options, names and bulks."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import pydantic
import pytest
from msgspec import Struct

from ostinato import (
    App,
    ConfigError,
    Fatal,
    Handle,
    InvalidInput,
    InvalidOption,
    Queue,
    QueueFull,
    Retry,
    Run,
    UnknownFunction,
)
from ostinato import RunFailed as RunFails
from ostinato.engine.blocking import BlockingRun
from ostinato.telemetry import RunClaimed, RunCompleted, RunFailed
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, states


class Requested(Struct, rename="camel"):
    track_id: str
    force: bool = False


@dataclass
class Point:
    x: float
    y: float = 0.0


class Movie(TypedDict):
    title: str


class Order(pydantic.BaseModel):
    sku: str
    amount: int = 1


# --- the happy path


async def test_a_run_completes_with_its_handlers_result(app: App):
    """Enqueue, work, result."""

    @app.function
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app.worker():
        handle = await greet.enqueue(name="Ada")
        assert await handle.result(5) == "hello Ada"
        assert await handle.status() == "completed"
    assert handle.created


async def test_a_run_without_a_result_has_none(app: App):
    """A handler need not return anything."""

    @app.function
    async def silent() -> None: ...

    async with app.worker():
        assert await (await silent.enqueue()).result(5) is None


async def test_runs_enqueued_before_the_worker_started_are_found(app: App):
    """Nobody was there to be woken."""

    @app.function
    async def greet(name: str) -> str:
        return name

    handle = await greet.enqueue(name="Ada")
    assert await handle.status() == "pending"
    async with app.worker():
        assert await handle.result(5) == "Ada"


async def test_a_handler_can_be_called_like_any_function(app: App):
    """Which is how to test it."""

    @app.function
    async def greet(name: str) -> str:
        return f"hello {name}"

    assert await greet("Ada") == "hello Ada"


async def test_the_input_arrives_as_the_handler_takes_it(app: App):
    """Structs, dataclasses, typed dicts, pydantic models, dicts, keywords."""
    seen: list[Any] = []

    @app.function
    async def struct(request: Requested):
        seen.append(request)

    @app.function
    async def data(run: Run, point: Point):
        seen.append(point)

    @app.function
    async def typed(movie: Movie):
        seen.append(movie)

    @app.function
    async def model(order: Order):
        seen.append(order)

    @app.function
    async def plain(row: dict[str, Any]):
        seen.append(row)

    @app.function
    async def keywords(when: datetime, tags: list[str], *, limit: int = 3):
        seen.append((when, tags, limit))

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    handles = [
        await struct.enqueue(Requested("t1")),
        await data.enqueue(Point(1.5)),
        await typed.enqueue(title="Amadeus"),
        await model.enqueue(Order(sku="a")),
        await plain.enqueue({"any": [None, {"deep": "é𝄞"}]}),
        await keywords.enqueue(when=moment, tags=["a", "b"]),
    ]
    async with app.worker():
        for handle in handles:
            await handle.result(5)
    expected = [
        Requested("t1"),
        Point(1.5),
        {"title": "Amadeus"},
        Order(sku="a"),
        {"any": [None, {"deep": "é𝄞"}]},
        (moment, ["a", "b"], 3),
    ]
    assert sorted(map(repr, expected)) == sorted(map(repr, seen))


@pytest.mark.parametrize("number", [1e308, 1e22, 5e-324, 0.1, 1.0])
async def test_floats_survive_the_way_through_the_database(app: App, number: float):
    """In as they are, out as they are, where the handler says what they are."""

    @app.function
    async def echo(value: float) -> bool:
        return value == number and isinstance(value, float)

    async with app.worker():
        assert await (await echo.enqueue(value=number)).result(5)


@pytest.mark.parametrize("number", [2**63, -(2**64), 10**40])
async def test_whole_numbers_of_any_size_survive_the_way_through_the_database(app: App, number: int):
    """Both ways."""

    @app.function
    async def echo(value: int) -> dict[str, int]:
        return {"value": value}

    async with app.worker():
        assert await (await echo.enqueue(value=number)).result(5) == {"value": number}


async def test_the_run_knows_what_it_is(app: App):
    """Inside its handler."""
    seen: dict[str, Any] = {}

    @app.function(queue="default")
    async def look(run: Run):
        seen.update(
            id=run.id,
            function=run.function,
            queue=run.queue,
            attempt=run.attempt,
            lease_no=run.lease_no,
            key=run.key,
            invoked_by=run.invoked_by,
            metadata=run.metadata,
            stopping=run.stopping,
            idempotency=(run.idempotency_key(), run.idempotency_key("mail")),
        )

    async with app.worker():
        handle = await look.options(key="k", metadata={"item": 7}).enqueue()
        await handle.result(5)
    assert seen == {
        "id": handle.id,
        "function": "look",
        "queue": "default",
        "attempt": 1,
        "lease_no": 1,
        "key": "k",
        "invoked_by": "api",
        "metadata": {"item": 7},
        "stopping": None,
        "idempotency": (handle.id, f"{handle.id}:mail"),
    }


# --- the door


@pytest.mark.parametrize(
    "bad", [{}, {"name": 5}, {"name": "a", "age": 3}, {"name": "\x00"}, {"name": float("nan")}, {"name": "\ud800"}]
)
async def test_bad_input_is_refused_and_writes_nothing(app: App, bad: dict[str, Any]):
    """The error names the function; no row was made."""

    @app.function
    async def greet(name: str): ...

    with pytest.raises(InvalidInput, match=r"^input of 'greet'"):
        await greet.enqueue(**bad)
    assert await states(app) == {}


async def test_one_bad_input_of_many_refuses_them_all(app: App):
    """The third of five: nothing is written, and the error says which it was."""

    @app.function
    async def greet(name: str): ...

    inputs: list[Any] = [{"name": "a"}, {"name": "b"}, {"name": 3}, {"name": "d"}, {"name": "e"}]
    with pytest.raises(InvalidInput, match=r"^\[2\]: input of 'greet': \$\.name: Expected `str`, got `int`"):
        await greet.enqueue_many(inputs)
    with pytest.raises(InvalidInput, match=r"^\[2\]"):
        await app.enqueue_many("greet", inputs)
    assert await states(app) == {}


async def test_input_larger_than_the_limit_is_refused(make_app: MakeApp):
    """With both sizes and the remedy."""
    async with make_app(input_limit=100) as app:

        @app.function
        async def greet(name: str): ...

        with pytest.raises(InvalidInput, match="has 213 bytes as JSON and may have 100; store it elsewhere"):
            await greet.enqueue(name="x" * 202)
        assert await states(app) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 601}, "priority=601 must be a whole number of seconds from -600 to 600"),
        ({"delay": "1s", "run_at": datetime.now(UTC)}, "give delay= or run_at=, not both"),
        ({"delay": "soon"}, "delay: 'soon' is not a duration; write it like '500ms', '30s'"),
        ({"key": ""}, "key='' must be text of 1 to 500 characters"),
        ({"unique": "1d"}, "unique='1d' needs key="),
        ({"key": "k", "force": "yes"}, "force='yes' must be True or False"),
        ({"queue": "a,b"}, "queue 'a,b' must be a name"),
        ({"dealy": 1}, "unknown option 'dealy'; options are conn, delay, force, key"),
    ],
)
async def test_bad_options_are_refused_and_write_nothing(app: App, options: dict[str, Any], message: str):
    """By name, in both ways of enqueuing."""

    @app.function
    async def greet(): ...

    with pytest.raises(InvalidOption, match=message):
        await greet.options(**options).enqueue()
    with pytest.raises(InvalidOption, match=message):
        await app.enqueue("greet", {}, **options)
    assert await states(app) == {}


# --- many


async def test_ten_thousand_runs_in_one_call(app: App):
    """A normal call: all there, in order, with ids that ascend."""

    @app.function
    async def count(n: int): ...

    handles = await count.enqueue_many({"n": n} for n in range(10_000))
    assert len({handle.id for handle in handles}) == 10_000
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)
    assert await states(app) == {"ready": 10_000}
    assert (await app.runs.get(handles[4321].id)).input == {"n": 4321}


async def test_no_runs_in_one_call(app: App):
    """An empty list is no error, and nothing."""

    @app.function
    async def count(n: int): ...

    assert await count.enqueue_many([]) == []
    assert await app.enqueue_many("no such function", []) == []


async def test_many_callers_at_once_without_opening_the_app(make_app: MakeApp):
    """All calls work without starting anything, side by side too."""
    app = make_app()

    @app.function
    async def count(n: int): ...

    handles = await asyncio.gather(*(count.enqueue(n=n) for n in range(100)))
    assert len({handle.id for handle in handles}) == 100
    async with app:
        assert await states(app) == {"ready": 100}


async def test_bulks_are_worked_off_completely(app: App, probe: Probe):
    """A thousand runs, each once."""
    seen: list[int] = []

    @app.function
    async def count(n: int):
        seen.append(n)

    async with app.worker():
        handles = await count.enqueue_many({"n": n} for n in range(1000))
        for handle in handles:
            await probe.next(RunCompleted, run_id=handle.id)
    assert sorted(seen) == list(range(1000))
    assert await states(app) == {"completed": 1000}


# --- when


async def test_a_delayed_run_is_held_until_it_is_due(app: App, probe: Probe):
    """And starts not before."""

    @app.function
    async def later(): ...

    handle = await later.options(delay="300ms").enqueue()
    view = await app.runs.get(handle.id)
    assert (view.state, view.held_because, view.status) == ("held", "not_due", "pending")
    assert view.run_at - view.created_at == timedelta(milliseconds=300)
    async with app.worker():
        claimed = await probe.next(RunClaimed, run_id=handle.id)
        await handle.result(5)
    view = await app.runs.get(handle.id)
    assert view.claimed_at is not None
    assert view.claimed_at >= view.run_at
    assert 0 <= claimed.waited < 2


async def test_a_run_may_be_given_its_moment(app: App):
    """To the microsecond, in any time zone."""

    @app.function
    async def later(): ...

    moment = datetime.now(UTC) + timedelta(hours=1, microseconds=7)
    handle = await later.options(run_at=moment).enqueue()
    view = await app.runs.get(handle.id)
    assert (view.run_at, view.state) == (moment, "held")


async def test_a_moment_in_the_past_is_now(app: App):
    """Even the beginning of the calendar."""

    @app.function
    async def later(): ...

    async with app.worker():
        for moment in (datetime.now(UTC) - timedelta(days=1), datetime.min.replace(tzinfo=UTC)):
            handle = await later.options(run_at=moment).enqueue()
            await handle.result(5)


async def test_a_run_in_the_far_future_can_be_looked_at(app: App):
    """Up to the end of the calendar."""

    @app.function
    async def later(): ...

    moment = datetime.max.replace(tzinfo=UTC)
    handle = await later.options(run_at=moment).enqueue()
    assert (await app.runs.get(handle.id)).run_at == moment
    assert [view.id for view in await app.runs.list()] == [handle.id]


async def test_a_higher_priority_goes_first(make_app: MakeApp):
    """One at a time: by priority, then in the order of enqueuing."""
    order: list[str] = []
    async with make_app(queues={"default": 1}) as app:

        @app.function
        async def note(name: str):
            order.append(name)

        @app.function(priority=20)
        async def urgent(name: str):
            order.append(name)

        handles = [
            await note.enqueue(name="first"),
            await note.options(priority=-60).enqueue(name="last"),
            await note.enqueue(name="second"),
            await note.options(priority=60).enqueue(name="high"),
            await urgent.enqueue(name="declared"),
        ]
        async with app.worker():
            for handle in handles:
                await handle.result(5)
    assert order == ["high", "declared", "first", "second", "last"]


# --- keys


async def test_a_key_finds_the_run_that_holds_it(app: App):
    """The second handle is the first run, and says so."""

    @app.function
    async def enrich(n: int): ...

    first = await enrich.options(key="album-1").enqueue(n=1)
    second = await enrich.options(key="album-1").enqueue(n=2)
    other = await enrich.options(key="album-2").enqueue(n=3)
    assert (first.created, second.created, other.created) == (True, False, True)
    assert second.id == first.id
    assert (await app.runs.get(first.id)).input == {"n": 1}


async def test_keys_belong_to_their_function(app: App):
    """Another function's key is another key."""

    @app.function
    async def one(): ...

    @app.function
    async def two(): ...

    assert (await one.options(key="k").enqueue()).created
    assert (await two.options(key="k").enqueue()).created


async def test_one_key_for_many_makes_one_run(app: App):
    """The first of the bulk; the others point to it."""

    @app.function
    async def enrich(n: int): ...

    handles = await enrich.options(key="k").enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}])
    assert [handle.created for handle in handles] == [True, False, False]
    assert len({handle.id for handle in handles}) == 1
    assert await states(app) == {"ready": 1}


async def test_callers_at_once_get_one_run(app: App):
    """Whoever comes first."""

    @app.function
    async def enrich(): ...

    handles = await asyncio.gather(*(enrich.options(key="k").enqueue() for _ in range(20)))
    assert sum(handle.created for handle in handles) == 1
    assert len({handle.id for handle in handles}) == 1


@pytest.mark.parametrize(
    ("unique", "ends_as", "again"),
    [
        ("active", "completed", True),
        ("active", "failed", True),
        ("failed", "completed", True),
        ("failed", "failed", False),
        ("1h", "completed", False),
        ("forever", "failed", False),
        ("1ms", "completed", True),
    ],
)
async def test_when_a_key_may_be_taken_again(app: App, probe: Probe, unique: str, ends_as: str, again: bool):
    """By the mode of the key, and how its run ended."""

    @app.function
    async def end(state: str):
        if state == "failed":
            raise Fatal("no")

    async with app.worker():
        first = await end.options(key="k", unique=unique).enqueue(state=ends_as)
        await probe.next(RunFailed if ends_as == "failed" else RunCompleted, run_id=first.id)
        second = await end.options(key="k", unique=unique).enqueue(state="completed")
        assert second.created is again


# --- queues, timeouts, metadata


async def test_a_run_may_go_to_another_queue(make_app: MakeApp):
    """Where another number of runs is executed at a time."""
    async with make_app(queues={"default": 5, "mail": 5}) as app:
        seen: list[str] = []

        @app.function
        async def note(run: Run):
            seen.append(run.queue)

        @app.function(queue="mail")
        async def mail(run: Run):
            seen.append(run.queue)

        async with app.worker():
            for target in (note, note.options(queue="mail"), mail, mail.options(queue="default")):
                await (await target.enqueue()).result(5)
    assert seen == ["default", "mail", "mail", "default"]


async def test_a_queue_that_nobody_serves_is_left_alone(app: App):
    """Its runs wait."""

    @app.function
    async def note(): ...

    async with app.worker():
        waiting = await note.options(queue="elsewhere").enqueue()
        await (await note.enqueue()).result(5)
    assert await waiting.status() == "pending"


async def test_timeout_and_metadata_are_kept(app: App):
    """For the worker and for people."""

    @app.function
    async def note(): ...

    handle = await note.options(timeout="90s", metadata={"item_id": 42, "nested": {"a": [1]}}).enqueue()
    view = await app.runs.get(handle.id)
    assert (view.timeout, view.metadata) == (90.0, {"item_id": 42, "nested": {"a": [1]}})


# --- who enqueued it


async def test_a_run_enqueued_inside_a_handler_says_by_which(app: App):
    """Directly, by name, in bulk, in a transaction, and from a task that the handler started."""
    made: list[str] = []

    @app.function
    async def child(): ...

    @app.function
    async def parent(run: Run) -> str:
        made.append((await child.enqueue()).id)
        made.append((await app.enqueue("child", {})).id)
        made.extend(handle.id for handle in await child.enqueue_many([{}]))
        async with app.transaction() as tx:
            made.append(await tx.enqueue(child))
        made.append((await asyncio.create_task(child.enqueue())).id)
        return run.id

    async with app.worker():
        parent_id = await (await parent.enqueue()).result(5)
    assert [(await app.runs.get(run_id)).invoked_by for run_id in made] == [f"run:{parent_id}"] * 5


async def test_a_run_enqueued_outside_says_as_its_caller_says(app: App):
    """`api`, unless somebody says otherwise."""

    @app.function
    async def note(): ...

    assert (await app.runs.get((await note.enqueue()).id)).invoked_by == "api"
    assert (await app.runs.get((await app.enqueue("note", source="cli")).id)).invoked_by == "cli"


# --- names


async def test_an_unknown_name_is_refused_with_the_one_that_was_meant(app: App):
    """Known here or declared in the database."""

    @app.function
    async def enrich_track(): ...

    async with app.worker():
        with pytest.raises(UnknownFunction) as caught:
            await app.enqueue("enrich_trak", {})
    assert str(caught.value) == "no function is named 'enrich_trak'; did you mean 'enrich_track'?"
    assert await states(app) == {}


async def test_an_unknown_name_is_refused_with_the_remedy(app: App):
    """When nothing is like it."""
    with pytest.raises(
        UnknownFunction, match=r"^no function is named 'zzz'; declare it with @app.function, or start a"
    ):
        await app.enqueue("zzz", {})
    with pytest.raises(UnknownFunction, match="zzz"):
        async with app.transaction() as tx:
            await tx.enqueue("zzz")
    assert await states(app) == {}


async def test_an_unknown_name_is_refused_alike_in_and_outside_of_transactions(app: App):
    """One or many: the words are the same."""
    refused: list[str] = []

    @app.function
    async def enrich_track(): ...

    async with app.worker():
        for name in ("enrich_trak", "zzz"):
            with pytest.raises(UnknownFunction) as outside:
                await app.enqueue(name)
            with pytest.raises(UnknownFunction) as one:
                async with app.transaction() as tx:
                    await tx.enqueue(name)
            with pytest.raises(UnknownFunction) as many:
                async with app.transaction() as tx:
                    await tx.enqueue_many(name, [{}, {}])
            refused.append(str(outside.value))
            assert [str(one.value), str(many.value)] == [str(outside.value)] * 2
    assert refused[0] == "no function is named 'enrich_trak'; did you mean 'enrich_track'?"
    assert await states(app) == {}


@pytest.mark.parametrize("form", ["coroutine", "thread"])
async def test_a_runs_transaction_knows_the_functions_of_workers_elsewhere(make_app: MakeApp, form: str):
    """So its refusal of a name can tell which one was meant, as app.enqueue does."""
    async with make_app(queues={"mail": 5}) as there, make_app() as here:

        @there.function(queue="mail")
        async def send_receipt(): ...

        @here.function(retry=Retry.none())
        async def coroutine(run: Run):
            async with run.transaction() as tx:
                await tx.enqueue("send_reciept")

        @here.function(retry=Retry.none())
        def thread(run: BlockingRun):
            with run.transaction() as tx:
                tx.enqueue("send_reciept")

        async with there.worker(), here.worker():
            with pytest.raises(UnknownFunction) as refused:
                await here.enqueue("send_reciept")
            with pytest.raises(UnknownFunction, match=re.escape(str(refused.value))):
                async with here.transaction() as tx:
                    await tx.enqueue("send_reciept")
            with pytest.raises(RunFails, match=re.escape(f"UnknownFunction: {refused.value}")):
                await (await here.enqueue(form)).result(5)
        assert str(refused.value) == "no function is named 'send_reciept'; did you mean 'send_receipt'?"


async def test_a_function_declared_by_a_worker_elsewhere_can_be_enqueued_by_name(make_app: MakeApp):
    """With its queue, from an app that knows nothing of it."""
    async with make_app(queues={"mail": 5}) as there, make_app() as here:

        @there.function(queue="mail")
        async def send(to: str) -> str:
            return f"sent to {to}"

        async with there.worker():
            handle = await here.enqueue("send", {"to": "Ada"})
            assert await handle.result(5) == "sent to Ada"
            (bulk,) = await here.enqueue_many("send", [{"to": "Bob"}])
            assert await bulk.result(5) == "sent to Bob"
        assert (await here.runs.get(handle.id)).queue == "mail"


@pytest.mark.parametrize(
    ("options", "priority"), [({}, 20), ({"queue": "default"}, 20), ({"key": "k"}, 20), ({"priority": 0}, 0)]
)
async def test_by_name_a_run_has_the_priority_that_its_function_declares(
    make_app: MakeApp, options: dict[str, Any], priority: int
):
    """Singly and many at once, unless the caller gives another; one that nobody has declared has none."""
    async with make_app() as there, make_app() as here:

        @there.function(priority=20)
        async def urgent(): ...

        async with there.worker():
            pass
        await here.enqueue("urgent", **options)
        await here.enqueue_many("urgent", [{}], **{**options, "run_at": datetime(2030, 1, 1, tzinfo=UTC)})
        await here.enqueue("nobody_knows", queue="default")
        assert {run.priority for run in await here.runs.list(function="urgent")} == {priority}
        assert {run.priority for run in await here.runs.list(function="nobody_knows")} == {0}


async def test_a_functions_name_is_its_own(app: App):
    """Two of the same name are refused when declared."""

    @app.function
    async def greet(): ...

    with pytest.raises(ConfigError, match=r"^two functions are named 'greet'; give one of them another name="):

        @app.function(name="greet")
        async def other(): ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, "function 'greet': retry=3 must be a Retry, like Retry"),
        ({"priority": 1000}, "function 'greet': priority=1000 must be from -600 to 600"),
        ({"timeout": 0}, "function 'greet': timeout=0 must be longer than zero"),
        ({"queue": "a:b"}, "queue 'a:b' must be a name"),
        ({"name": "tab\t"}, "must have 1 to 200 printable characters"),
    ],
)
async def test_declarations_that_cannot_work_are_refused(app: App, options: dict[str, Any], message: str):
    """When the program starts, by name."""

    async def greet(): ...

    with pytest.raises(ConfigError, match=message):
        app.function(**options)(greet)


async def test_generators_cannot_be_handlers(app: App):
    """What would their result be?"""

    async def stream():
        yield 1

    with pytest.raises(
        ConfigError, match=r"^function 'stream': a handler returns its result; it cannot be a generator"
    ):
        app.function(stream)


# --- queues with a cap


async def test_a_full_queue_refuses_more(make_app: MakeApp):
    """Held runs count, bulks are taken whole or not at all, and the error says how full it is."""
    async with make_app(queues={"default": Queue(1, max_waiting=3)}) as app:

        @app.function
        async def note(): ...

        async with app.worker():
            pass  # declares the cap
        await note.options(delay="1h").enqueue()
        await note.enqueue_many([{}, {}])
        with pytest.raises(QueueFull, match='queue "default" may hold 3 waiting runs, has 3 and was given 1 more; try'):
            await note.enqueue()
        with pytest.raises(QueueFull):
            async with app.transaction() as tx:
                await tx.enqueue(note)
        assert await states(app) == {"held": 1, "ready": 2}


async def test_a_full_queue_takes_a_run_whose_key_is_there_already(make_app: MakeApp):
    """Nothing would be added to it."""
    async with make_app(queues={"default": Queue(1, max_waiting=1)}) as app:

        @app.function
        async def note(): ...

        async with app.worker():
            pass
        first = await note.options(key="k").enqueue()
        second = await note.options(key="k").enqueue()
        assert (second.id, second.created) == (first.id, False)


async def test_a_cap_can_be_lifted(make_app: MakeApp, database: Database):
    """The declaration of the latest worker counts."""
    for queue in (Queue(1, max_waiting=1), Queue(1)):
        async with make_app(queues={"default": queue}) as app, app.worker():
            pass
    async with make_app() as app:

        @app.function
        async def note(): ...

        await note.enqueue_many([{}, {}, {}])
        assert await states(app) == {"ready": 3}


def test_a_handle_shows_itself():
    """In a debugger and in logs."""
    assert repr(Handle(None, "01RUN", created=True)) == "Handle('01RUN', created=True)"  # type: ignore[arg-type]
