"""Steps: what they remember, who is who among them, and what can be kept."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import pydantic
import pytest
from msgspec import Struct

from ostinato import App, Cancel, Retry, Run, RunCancelled, RunFailed, StepFailed
from ostinato.engine.blocking import BlockingRun
from ostinato.errors import InvalidOption, StepMisused, StoreUnavailable, TransactionMisused
from ostinato.model.change import Change, Committed, RunCompleted, StepSaved
from ostinato.store.base import FlowStore
from ostinato.telemetry import RunClaimed, StepCompleted, StoreTroubled
from ostinato.testing import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import Database, notes

NOTE = "insert into notes (text) values ($1)"
ONCE = Retry.none()
TWICE = Retry("0s")


def steps_of(database: Database, run_id: str) -> list[tuple[Any, ...]]:
    return database.query(
        f"select name, kind, status, retry_count from ostinato_steps where run_id = '{run_id}' order by place"
    )


async def until(condition: Callable[[], bool | Awaitable[bool]], *, timeout: float = 10.0) -> None:
    """Waits for what nobody announces."""
    async with asyncio.timeout(timeout):
        while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Calls:
    """Functions for steps that say how often they were called."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    async def double(self, number: int) -> int:
        self.made.append(number)
        return 2 * number

    def half(self, number: int) -> float:
        self.made.append((number, threading.current_thread() is threading.main_thread()))
        return number / 2


# --- remembering


async def test_a_step_is_done_once_however_often_its_run_is_attempted(app: App, database: Database):
    """Its result comes back without calling it again; a run's own failure costs an attempt as always."""
    calls, attempts = Calls(), []

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run) -> list[int]:
        attempts.append(run.attempt)
        first = await run.step("double", calls.double, 1)
        if run.attempt == 1:
            raise ValueError("between two steps")
        second = await run.step("double", calls.double, first)
        if run.attempt == 2:
            raise ValueError("after both")
        return [first, second]

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == [2, 4]
    assert calls.made == [1, 2]
    assert attempts == [1, 2, 3]
    assert steps_of(database, handle.id) == [("double", "step", "completed", 0), ("double", "step", "completed", 0)]


async def test_a_result_is_committed_before_the_step_returns(app: App, database: Database):
    """Whoever looks at the database then sees it."""
    seen: list[Any] = []

    @app.function(retry=ONCE)
    async def mix(run: Run):
        await run.step("double", Calls().double, 4)
        seen.append(await asyncio.to_thread(steps_of, database, run.id))

    async with app.worker():
        await (await mix.enqueue()).result(10)
    assert seen == [[("double", "step", "completed", 0)]]


async def test_what_a_step_got_is_kept_for_people(app: App, database: Database):
    """Its arguments, and its result as JSON."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        await run.step("double", Calls().double, 4)
        await run.step("half", Calls().half, number=3)

    async with app.worker():
        handle = await mix.enqueue()
        await handle.result(10)
    kept = database.query(f"select input, output from ostinato_steps where run_id = '{handle.id}' order by place")
    assert kept == [("[[4],{}]", "8"), ('[[],{"number":3}]', "1.5")]


# --- types


class Track(Struct):
    title: str
    played: datetime | None = None


@dataclass
class Artist:
    name: str
    born: timedelta


class Label(pydantic.BaseModel):
    name: str
    founded: datetime


class Mood(StrEnum):
    CALM = "calm"


class Level(IntEnum):
    LOUD = 3


class Pair(NamedTuple):
    left: int
    right: str


NOON = datetime(2026, 5, 1, 12, 30, 15, 123456, tzinfo=UTC)

RICH: list[tuple[Any, Any]] = [
    (Track, Track("So What", NOON)),
    (Track | None, None),
    (list[Track], [Track("So What"), Track("Blue in Green", NOON)]),
    (Artist, Artist("Miles", timedelta(days=3, microseconds=7))),
    (Label, Label(name="Blue Note", founded=NOON)),
    (Label | None, Label(name="Blue Note", founded=NOON)),
    (dict[str, Label], {"one": Label(name="Blue Note", founded=NOON)}),
    (datetime, NOON),
    (bytes, b"\x00\xff"),
    (tuple[int, str], (1, "two")),
    (Pair, Pair(1, "two")),
    (Mood, Mood.CALM),
    (dict[Mood, Level], {Mood.CALM: Level.LOUD}),
    (int | str, "3"),
    (set[int], {1, 2}),
    (Awaitable[int], 3),
]


async def test_results_come_back_as_the_types_they_were(app: App):
    """As the function's annotation says: now and at every later attempt."""
    seen: list[list[Any]] = []

    @app.function(retry=TWICE)
    async def mix(run: Run):
        seen.append([await run.step("give", giving(kind, value), place) for place, (kind, value) in enumerate(RICH)])
        if run.attempt == 1:
            raise ValueError("again")

    async with app.worker():
        await (await mix.enqueue()).result(10)
    for got in seen:
        assert got == [value for _, value in RICH]
        assert [type(value) for value in got] == [type(value) for _, value in RICH]
    assert len(seen) == 2


def giving(kind: Any, value: Any) -> Any:
    async def give(place: int) -> Any:
        return value

    give.__annotations__["return"] = kind
    return give


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (NOON, r"\$ is a datetime and would come back as a str; annotate what the step's function returns"),
        ({"a": [1, (2,)]}, r"\$\.a\[1\] is a tuple and would come back as a list; annotate"),
        (Mood.CALM, r"\$ is a Mood and would come back as a str; annotate"),
        ({"level": Level.LOUD}, r"\$\.level is a Level and would come back as a int; annotate"),
        ({1: 2}, r"a key of \$ is a int and would come back as a str; annotate"),
        (Counter("ab"), r"\$ is a Counter and would come back as a dict; annotate"),
        (Track("So What"), r"\$ is a Track and would come back as a dict; annotate"),
        (object(), r"\$ cannot be stored as JSON: object is not a JSON type"),
        (float("nan"), r"\$ is nan, which JSON cannot say"),
        ("\x00", r"\$ contains NUL"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_would_come_back_as_something_else_is_refused(app: App, value: Any, complaint: str):
    """With its place and what to do; doing it again would not help, so it is not tried again."""
    calls: list[int] = []

    async def give() -> Any:
        calls.append(1)
        return value

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run):
        await run.step("give", give)

    async with app.worker():
        with pytest.raises(RunFailed, match=rf"step 'give' failed: the result: {complaint}"):
            await (await mix.enqueue()).result(10)
    assert calls == [1]


async def test_a_result_that_is_not_what_the_function_says_is_refused(app: App):
    """A whole number is no text, and true is no whole number."""

    async def give(value: Any) -> int:
        return value  # type: ignore[no-any-return]

    @app.function(retry=ONCE)
    async def mix(run: Run, value: Any):
        await run.step("give", give, value)

    async with app.worker():
        for value in ("three", True):
            with pytest.raises(RunFailed, match=r"step 'give' failed: the result is not what the function says"):
                await (await mix.enqueue(value=value)).result(10)


async def test_a_type_that_was_changed_is_told_of_at_the_next_attempt(app: App):
    """The step is named, and so is the remedy."""

    async def before() -> str:
        return "three"

    async def after() -> int:
        return 3

    @app.function(retry=TWICE)
    async def mix(run: Run):
        await run.step("give", before if run.attempt == 1 else after)
        raise ValueError("again")

    async with app.worker():
        with pytest.raises(RunFailed, match=r"StepMisused: step 'give' was done, and .*Expected `int`.*another name"):
            await (await mix.enqueue()).result(10)


# --- what can be called


async def test_what_a_partial_brings_along_counts(app: App):
    """At the second start they are called in another order, and each gets its own result."""

    async def save(number: int) -> str:
        return f"saved {number}"

    @app.function(retry=TWICE)
    async def work(run: Run) -> list[str]:
        order = [0, 1, 2] if run.attempt == 1 else [2, 1, 0]
        found = {number: await run.step("save", functools.partial(save, number)) for number in order}
        if run.attempt == 1:
            raise ValueError("again")
        return [found[number] for number in range(3)]

    async with app.worker():
        assert await (await work.enqueue()).result(10) == ["saved 0", "saved 1", "saved 2"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda run, fetch: run.step(fetch, 1),
            "a step's name comes first, then its function: run.step('fetch', fetch",
        ),
        (
            lambda run, fetch: run.step("a", fetch()),
            "step 'a' was given a call and not a function: run.step('a', fetch",
        ),
        (lambda run, fetch: run.step("a", 3), "step 'a' needs a function to call, and 3 is none"),
        (lambda run, fetch: run.options(tx="yes").step("a", fetch), "tx='yes' must be True or False"),
        (lambda run, fetch: run.invoke("a", fetch), "is no function of an app; decorate it with @app.function"),
        (lambda run, fetch: run.invoke("a", "wrok"), "no function is named 'wrok'; did you mean 'work'?"),
    ],
)
async def test_a_step_that_is_written_wrong_says_how_it_is_written(
    app: App, call: Callable[[Run, Any], Awaitable[Any]], message: str
):
    """In the run's error."""

    async def fetch() -> None: ...

    @app.function(retry=Retry.none())
    async def work(run: Run) -> None:
        await call(run, fetch)

    async with app.worker():
        with pytest.raises(RunFailed, match=re.escape(message)):
            await (await work.enqueue()).result(10)


async def test_steps_call_whatever_can_be_called(app: App):
    """Coroutine functions on the loop; plain ones in threads, whatever they return."""
    calls = Calls()

    class Doubling:
        async def __call__(self, number: int) -> datetime:
            return NOON + timedelta(days=number)

    def later(number: int) -> Awaitable[int]:
        return calls.double(number)

    @app.function(retry=TWICE)
    async def mix(run: Run) -> list[Any]:
        found = [
            await run.step("method", calls.double, 1),
            await run.step("partial", functools.partial(calls.double, 2)),
            await run.step("lambda", lambda: calls.double(3)),
            await run.step("later", later, 4),
            await run.step("thread", calls.half, 5),
            await run.step("builtin", len, [1, 2]),
            (await run.step("object", Doubling(), 1)).isoformat(),
        ]
        if run.attempt == 1:
            raise ValueError("again")
        return found

    async with app.worker():
        found = await (await mix.enqueue()).result(10)
    assert found == [2, 4, 6, 8, 2.5, 2, "2026-05-02T12:30:15.123456+00:00"]
    assert calls.made == [1, 2, 3, 4, (5, False)]


async def test_names_are_text_that_can_be_printed(app: App):
    """And not too long."""
    refused: list[str] = []

    @app.function(retry=ONCE)
    async def mix(run: Run):
        for name in ("", "a\nb", "x" * 201, None):
            with pytest.raises(InvalidOption, match="a step's name must be text of 1 to 200 printable"):
                await run.step(name, Calls().double, 1)  # type: ignore[call-overload]
            refused.append(str(name))

    async with app.worker():
        await (await mix.enqueue()).result(10)
    assert len(refused) == 4


# --- who is who


async def test_arguments_that_cannot_be_told_apart_need_a_key(app: App):
    """And with one they are no matter."""
    calls: list[str] = []

    async def look(thing: object, name: str) -> str:
        calls.append(name)
        return name

    @app.function(retry=TWICE)
    async def mix(run: Run) -> list[str]:
        with pytest.raises(StepMisused, match=r"step 'look': its arguments cannot be told from others .*key=\.\.\."):
            await run.step("look", look, object(), "a")
        found = [await run.options(key=name).step("look", look, object(), name) for name in "ab"]
        if run.attempt == 1:
            raise ValueError("again")
        return found

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == ["a", "b"]
    assert calls == ["a", "b"]


async def test_the_same_call_again_is_another_step(app: App):
    """The n-th repeat has the n-th memo."""
    thrown: list[int] = []

    async def throw() -> int:
        thrown.append(len(thrown))
        return thrown[-1]

    @app.function(retry=TWICE)
    async def mix(run: Run) -> list[int]:
        found = [await run.step("throw", throw) for _ in range(3)]
        if run.attempt == 1:
            raise ValueError("again")
        return found

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == [0, 1, 2]
    assert thrown == [0, 1, 2]


@pytest.mark.parametrize("seed", range(3))
async def test_loops_and_gather_give_each_call_its_own_memo(app: App, seed: int):
    """Whatever the order in which calls come, and wherever attempts are cut short."""
    dice = random.Random(seed)
    done: Counter[tuple[str, int]] = Counter()

    async def fetch(item: int) -> str:
        done["fetch", item] += 1
        await asyncio.sleep(dice.random() / 200)
        return f"fetched {item}"

    async def save(text: str, item: int) -> str:
        done["save", item] += 1
        await asyncio.sleep(dice.random() / 200)
        return f"{text}, saved {item}"

    @app.function(retry=Retry(*["0s"] * 5))
    async def mix(run: Run) -> list[str]:
        async def one(item: int) -> str:
            await asyncio.sleep(dice.random() / 200)
            text = await run.step("fetch", fetch, item)
            return await run.step("save", save, text, item)

        items = list(range(20))
        dice.shuffle(items)
        tasks = {item: asyncio.create_task(one(item)) for item in items}
        if run.attempt < 5:
            await asyncio.wait(list(tasks.values())[: 4 * run.attempt])
            for task in tasks.values():
                task.cancel()
            await asyncio.wait(tasks.values())
            raise ValueError("again")
        return [await tasks[item] for item in range(20)]

    async with app.worker():
        found = await (await mix.enqueue()).result(20)
    assert found == [f"fetched {item}, saved {item}" for item in range(20)]


async def test_steps_may_appear_disappear_and_move(app: App, database: Database):
    """Between two attempts, as in a deploy: who is known is known, wherever it is now; who is new is done."""
    calls = Calls()

    @app.function(retry=TWICE)
    async def mix(run: Run) -> list[Any]:
        if run.attempt == 1:
            await run.step("goes", calls.double, 1)
            await run.step("stays", calls.double, 2)
            await run.step("moves", calls.double, 3)
            await run.sleep("turns", 0)
            raise ValueError("the deploy")
        moved = await run.step("moves", calls.double, 3)
        new = await run.step("comes", calls.double, 4)
        turned = await run.step("turns", calls.double, 5)
        return [moved, new, turned, await run.step("stays", calls.double, 2)]

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == [6, 8, 10, 4]
    assert calls.made == [1, 2, 3, 4, 5]
    kept = [(name, kind) for name, kind, *_ in steps_of(database, handle.id)]
    assert kept == [
        ("goes", "step"),
        ("stays", "step"),
        ("moves", "step"),
        ("turns", "sleep"),
        ("comes", "step"),
        ("turns", "step"),
    ]


# --- rules


async def test_a_step_inside_a_step_is_refused(app: App):
    """In a coroutine and in a thread."""
    refused: list[str] = []

    @app.function(retry=ONCE)
    async def mix(run: Run):
        async def outer() -> None:
            with pytest.raises(StepMisused, match="step 'inner' inside step 'outer'") as caught:
                await run.step("inner", Calls().double, 1)
            refused.append(str(caught.value))

        await run.step("outer", outer)

    @app.function(retry=ONCE)
    def blend(run: BlockingRun):
        def outer() -> None:
            with pytest.raises(StepMisused, match="step 'nap' inside step 'outer'") as caught:
                run.sleep("nap", "1h")
            refused.append(str(caught.value))

        run.step("outer", outer)

    async with app.worker():
        await (await mix.enqueue()).result(10)
        await (await blend.enqueue()).result(10)
    assert len(refused) == 2


async def test_a_step_inside_the_runs_transaction_is_refused(app: App):
    """It would be committed before what is around it."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        async with run.transaction():
            for call in (run.step("double", Calls().double, 1), run.sleep("nap", "1s"), run.send("say", "said")):
                with pytest.raises(TransactionMisused, match=r"inside run\.transaction\(\)"):
                    await call

    async with app.worker():
        await (await mix.enqueue()).result(10)


async def test_a_step_after_its_attempt_is_refused(app: App, database: Database):
    """By a task that goes on, say: it does nothing."""
    calls, kept, over = Calls(), [], asyncio.Event()

    @app.function(retry=ONCE)
    async def mix(run: Run):
        kept.append(asyncio.create_task(orphan(run)))

    async def orphan(run: Run) -> None:
        await over.wait()
        await run.step("double", calls.double, 1)

    async with app.worker():
        handle = await mix.enqueue()
        await handle.result(10)
        over.set()
        with pytest.raises(TransactionMisused, match=r"run\.step\(\) after the attempt is over"):
            await kept[0]
    assert calls.made == []
    assert steps_of(database, handle.id) == []


async def test_a_step_that_ends_after_its_run_is_not_kept(app: App, database: Database):
    """Its run was settled without it."""
    begun, over = asyncio.Event(), asyncio.Event()
    kept: list[asyncio.Task[Any]] = []

    async def slow() -> None:
        begun.set()
        await over.wait()

    @app.function(retry=ONCE)
    async def mix(run: Run):
        kept.append(asyncio.create_task(run.step("slow", slow)))
        await begun.wait()

    async with app.worker():
        handle = await mix.enqueue()
        await handle.result(10)
        over.set()
        with pytest.raises(asyncio.CancelledError):
            await kept[0]
    assert steps_of(database, handle.id) == []


# --- limits


async def test_a_result_may_have_a_mebibyte_and_all_of_a_run_four(app: App):
    """What is larger belongs elsewhere, and the error names the step and says so."""
    errors: list[StepFailed] = []

    async def give(size: int) -> str:
        return "é" * (size // 2)

    @app.function(retry=TWICE)
    async def mix(run: Run):
        with pytest.raises(StepFailed) as caught:
            await run.step("large", give, 1024 * 1024)
        errors.append(caught.value)
        for _ in range(4):
            await run.step("fits", give, 1000 * 1024)
        if run.attempt == 1:
            raise ValueError("again")
        with pytest.raises(StepFailed) as caught:
            await run.step("too much", give, 100 * 1024)
        errors.append(caught.value)

    async with app.worker():
        await (await mix.enqueue()).result(30)
    first, again, total = errors
    assert str(first) == str(again)
    assert str(first) == (
        "step 'large' failed: the result has 1,048,578 bytes as JSON and may have 1,048,576; store it elsewhere and "
        "pass a reference"
    )
    assert "step 'too much' failed: the results of this run's steps would have 4,198,410 bytes" in str(total)
    assert "return a reference" in str(total)


async def test_steps_that_run_at_once_share_the_limit(app: App):
    """What is being saved counts."""

    async def give(place: int) -> str:
        return "x" * 1000 * 1024

    @app.function(retry=ONCE)
    async def mix(run: Run) -> int:
        found = await asyncio.gather(*[run.step("give", give, n) for n in range(6)], return_exceptions=True)
        return sum(isinstance(each, StepFailed) for each in found)

    async with app.worker():
        assert await (await mix.enqueue()).result(30) == 2


# --- handlers in threads


async def test_plain_handlers_have_the_same_steps(app: App):
    """Blocking ones. What waits leaves the thread."""
    calls, unwound = Calls(), []

    @app.function(retry=ONCE)
    def child(number: int) -> int:
        return -number

    @app.function(retry=TWICE)
    def mix(run: BlockingRun) -> list[Any]:
        doubled = run.step("double", calls.double, 2)
        halved = run.options(timeout="5s", key="k").step("half", calls.half, 3)
        try:
            run.sleep("nap", "50ms")
        except BaseException as error:
            unwound.append(type(error).__name__)
            raise
        sent = run.send("say", "said.it", {"n": 1})
        heard = run.wait_for("hear", "said.it", match={"$.payload.n": 1}, timeout="5s")
        assert heard is not None
        if run.attempt == 1:
            raise ValueError("again")
        return [doubled, halved, sent == heard.id, run.invoke("kid", child, number=3)]

    async with app.worker():
        assert await (await mix.enqueue()).result(15) == [4, 1.5, True, -3]
    assert calls.made == [2, (3, False)]
    assert unwound == ["Suspending"]


# --- transactions


async def test_a_step_may_commit_its_statements_with_its_memo(app: App, database: Database):
    """Once, and at a later attempt not again; what it did before it failed is undone."""
    tries: list[str] = []

    async def write(tx: Any, text: str) -> str:
        tries.append(text)
        await tx.execute(NOTE, text)
        if len(tries) == 1:
            raise ValueError("after writing")
        return text.upper()

    def write_in_thread(tx: Any, text: str) -> str:
        tx.execute(NOTE, text)
        return text.upper()

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run) -> list[str]:
        found = [
            await run.options(tx=True).step("write", write, "one"),
            await run.options(tx=True).step("thread", write_in_thread, "two"),
        ]
        if run.attempt == 1:
            raise ValueError("again")
        return found

    async with app.worker():
        assert await (await mix.enqueue()).result(10) == ["ONE", "TWO"]
    assert notes(database) == ["one", "two"]
    assert tries == ["one", "one"]


# --- those who stop a handler


async def test_a_run_that_is_cancelled_while_a_step_runs_saves_nothing_more(app: App, probe: Probe, database: Database):
    """The flag is part of the fence; the function's cleanup runs undisturbed."""
    begun, cleaned = asyncio.Event(), []

    async def slow() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.function(retry=TWICE)
    async def mix(run: Run):
        try:
            await run.step("double", Calls().double, 1)
            await run.step("slow", slow)
        finally:
            await asyncio.sleep(0)
            cleaned.append(run.stopping)

    async with app.worker():
        handle = await mix.enqueue()
        await begun.wait()
        await handle.cancel("not wanted")
        with pytest.raises(RunCancelled, match="not wanted"):
            await handle.result(10)
    assert cleaned == ["cancel"]
    assert steps_of(database, handle.id) == [("double", "step", "completed", 0)]


async def test_a_step_whose_run_was_cancelled_meanwhile_stops_its_handler_once(app: App, database: Database):
    """It finds out when it saves; what is awaited after that, in `finally`, is not cut short."""
    cleaned: list[str] = []

    @app.function(retry=TWICE)
    async def mix(run: Run):
        async def cancel() -> None:
            database.query(f"update ostinato_runs set cancel_requested = {flag} where id = '{run.id}'")

        flag = "true" if database.dialect == "postgresql" else "1"
        try:
            await run.step("cancel", cancel)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("all")

    async with app.worker():
        handle = await mix.enqueue()
        with pytest.raises(RunCancelled):
            await handle.result(10)
    assert cleaned == ["all"]
    assert steps_of(database, handle.id) == []


async def test_a_step_whose_lease_was_lost_saves_nothing(app: App, probe: Probe, database: Database):
    """Another has the run: nothing of this attempt is written any more."""
    stops: list[Any] = []

    @app.function(retry=Retry("0s", "0s"))
    async def mix(run: Run) -> int:
        async def lose() -> None:
            if not stops:
                database.query(f"update ostinato_runs set lease_no = lease_no + 1 where id = '{run.id}'")

        try:
            await run.step("lose", lose)
        except asyncio.CancelledError:
            stops.append(run.stopping)
            raise
        return run.lease_no

    async with app.worker():
        handle = await mix.enqueue()
        await probe.next(RunClaimed, run_id=handle.id)
        await until(lambda: bool(stops))
        assert steps_of(database, handle.id) == []
    assert stops == ["lease_lost"]


async def test_a_run_past_its_timeout_keeps_what_it_has_done(app: App):
    """The next attempt goes on from there."""
    calls = Calls()

    async def hang() -> None:
        await asyncio.Event().wait()

    @app.function(retry=TWICE, timeout="300ms")
    async def mix(run: Run) -> int:
        found = await run.step("double", calls.double, 1)
        if run.attempt == 1:
            await run.step("hang", hang)
        return found

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == 2
        assert (await app.runs.get(handle.id)).attempt == 2
    assert calls.made == [1]


async def test_a_run_that_is_given_back_goes_on_from_its_steps(make_app: MakeApp, database: Database):
    """A worker shuts down while a step runs; no attempt is used up."""
    calls, begun, over = Calls(), asyncio.Event(), asyncio.Event()
    async with make_app(shutdown_grace="10ms") as app:

        async def slow() -> str:
            begun.set()
            await over.wait()
            return "done"

        @app.function(retry=ONCE)
        async def mix(run: Run) -> list[Any]:
            return [await run.step("double", calls.double, 1), await run.step("slow", slow), run.attempt]

        async with app.worker():
            handle = await mix.enqueue()
            await begun.wait()
        over.set()
        async with app.worker():
            assert await handle.result(10) == [2, "done", 1]
    assert calls.made == [1]


async def test_cancel_raised_in_a_step_cancels_the_run(app: App):
    """It is no failure of the step."""

    async def stop() -> None:
        raise Cancel("enough")

    @app.function(retry=TWICE)
    async def mix(run: Run):
        await run.step("stop", stop)

    async with app.worker():
        with pytest.raises(RunCancelled, match="enough"):
            await (await mix.enqueue()).result(10)


# --- commits whose answers are lost


@pytest.mark.parametrize("loses", ["the answer", "the commit"])
async def test_a_commit_that_fails_does_nothing_twice_and_loses_nothing(
    app: App, probe: Probe, database: Database, monkeypatch: pytest.MonkeyPatch, loses: str
):
    """A failed commit may have committed."""
    commit, calls, failed = FlowStore.commit, Calls(), set[str]()

    async def commit_in_vain(self: FlowStore, changes: Sequence[Change]) -> Committed:
        steps = {change.name for change in changes if isinstance(change, StepSaved)}
        fails = bool(steps - failed) or (any(isinstance(c, RunCompleted) for c in changes) and "end" not in failed)
        if fails:
            failed.update(steps or {"end"})
        if not fails or loses == "the answer":
            committed = await commit(self, changes)
        if fails:
            raise StoreUnavailable("the connection was lost")
        return committed

    @app.function(retry=ONCE)
    async def child(number: int) -> int:
        return -number

    @app.function(retry=Retry("0s"))
    async def mix(run: Run) -> list[Any]:
        doubled = await run.step("double", calls.double, 1)
        await run.send("say", "said.it", {"n": doubled})
        kid = await run.invoke("kid", child, number=doubled)
        await run.sleep("nap", "10ms")
        heard = await run.wait_for("hear", "said.it", timeout="10s")
        assert heard is not None
        return [doubled, kid, heard.payload]

    monkeypatch.setattr(FlowStore, "commit", commit_in_vain)
    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(20) == [2, -2, {"n": 2}]
    assert calls.made == [1]
    assert {"double", "say", "kid", "nap", "hear", "end"} <= failed
    assert probe.seen(StoreTroubled, service="steps")
    assert database.query("select count(*) from ostinato_events where type = 'said.it'") == [(1,)]
    assert database.query("select count(*) from ostinato_runs where function = 'child'") == [(1,)]


async def test_a_step_is_announced_when_it_is_kept(app: App, probe: Probe):
    """For logs, metrics and tests."""

    @app.function(retry=ONCE)
    async def mix(run: Run):
        await run.step("double", Calls().double, 1)

    async with app.worker():
        handle = await mix.enqueue()
        completed = await probe.next(StepCompleted, run_id=handle.id)
    assert (completed.step, completed.kind, completed.function) == ("double", "step", "mix")


async def test_a_step_that_the_function_gives_up_is_not_kept(app: App, database: Database):
    """The function goes on, and its run is not taken to be busy with it."""
    calls = Calls()

    @app.function(retry=ONCE)
    async def mix(run: Run) -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.step("hang", asyncio.Event().wait), 0.03)
        await run.sleep("nap", "10ms")
        return await run.step("double", calls.double, run.lease_no)

    async with app.worker():
        handle = await mix.enqueue()
        assert await handle.result(10) == 4
    assert [row[0] for row in steps_of(database, handle.id)] == ["nap", "double"]


async def test_a_step_that_ends_while_its_worker_shuts_down_is_kept_or_done_again(
    make_app: MakeApp, database: Database, monkeypatch: pytest.MonkeyPatch
):
    """What is being saved when its handler is stopped is still saved, if the run is still ours by then."""
    commit, saving, go_on = FlowStore.commit, asyncio.Event(), asyncio.Event()
    calls = Calls()

    async def commit_late(self: FlowStore, changes: Sequence[Change]) -> Committed:
        if any(isinstance(change, StepSaved) for change in changes) and not go_on.is_set():
            saving.set()
            await go_on.wait()
        return await commit(self, changes)

    monkeypatch.setattr(FlowStore, "commit", commit_late)
    async with make_app(shutdown_grace="10ms") as app:

        @app.function(retry=ONCE)
        async def mix(run: Run) -> list[int]:
            try:
                return [await run.step("double", calls.double, 2), run.attempt]
            except asyncio.CancelledError:
                go_on.set()
                await until(lambda: bool(steps_of(database, run.id)))
                raise

        async with app.worker():
            handle = await mix.enqueue()
            await saving.wait()
        async with app.worker():
            assert await handle.result(10) == [4, 1]
    assert calls.made == [2]
