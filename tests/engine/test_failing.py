"""What becomes of attempts that do not end well."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from msgspec import Raw

from ostinato import App, Cancel, Fatal, Retry, RetryAfter, Run, RunCancelled, RunFailed, StoreUnavailable
from ostinato.telemetry import Event, RunCompleted
from ostinato.telemetry import RunCancelled as AttemptCancelled
from ostinato.telemetry import RunFailed as AttemptFailed
from ostinato.testing.probe import Probe
from tests.engine.conftest import MakeApp
from tests.engine.databases import states

AT_ONCE = Retry("0s", "0s")


async def failure_of(handle: Any, timeout: float = 5) -> RunFailed:
    """The error with which a run's result is refused."""
    with pytest.raises(RunFailed) as caught:
        await handle.result(timeout)
    return caught.value


# --- retries


async def test_a_failed_attempt_is_tried_again(app: App):
    """Until it succeeds, and the run knows which attempt it is."""
    attempts: list[int] = []

    @app.function(retry=AT_ONCE)
    async def flaky(run: Run) -> str:
        attempts.append(run.attempt)
        if run.attempt < 3:
            raise ValueError("not yet")
        return "done"

    async with app.worker():
        handle = await flaky.enqueue()
        assert await handle.result(5) == "done"
    assert attempts == [1, 2, 3]
    view = await app.runs.get(handle.id)
    assert (view.state, view.attempt, view.lease_no, view.error) == ("completed", 3, 3, None)


async def test_a_failed_attempt_waits_as_the_policy_says(app: App, probe: Probe):
    """Held with the reason, announced with the delay, due when it should be."""

    @app.function(retry=Retry("1h", jitter=0.5))
    async def flaky():
        raise ValueError("bad")

    async with app.worker():
        handle = await flaky.enqueue()
        failed = await probe.next(AttemptFailed, run_id=handle.id)
    view = await app.runs.get(handle.id)
    assert (view.state, view.held_because, view.status, view.attempt) == ("held", "retry", "waiting", 1)
    assert failed.will_retry
    assert failed.retry_in is not None
    assert 1800 <= failed.retry_in <= 5400
    (attempt,) = view.attempts
    assert (view.run_at - attempt.ended_at).total_seconds() == pytest.approx(failed.retry_in, abs=1)


async def test_short_delays_are_kept(app: App, probe: Probe):
    """The next attempt starts after the delay, and soon after."""

    @app.function(retry=Retry("150ms"))
    async def flaky(run: Run):
        if run.attempt == 1:
            raise ValueError("bad")

    async with app.worker():
        handle = await flaky.enqueue()
        await probe.next(RunCompleted, run_id=handle.id)
    view = await app.runs.get(handle.id)
    assert view.claimed_at is not None
    assert (view.run_at - view.attempts[0].ended_at).total_seconds() == pytest.approx(0.15, abs=0.1)
    assert 0 <= (view.claimed_at - view.run_at).total_seconds() < 2


async def test_a_run_fails_when_its_attempts_are_used_up(app: App, probe: Probe):
    """As often as the policy says and not more; all attempts are kept for people to read."""
    started: list[int] = []

    @app.function(retry=AT_ONCE)
    async def broken(run: Run):
        started.append(run.attempt)
        raise ValueError(f"no {run.attempt}")

    async with app.worker() as worker:
        handle = await broken.enqueue()
        error = await failure_of(handle)
        name = worker.id
    assert (error.code, error.run_id) == ("ValueError", handle.id)
    assert str(error) == f"run {handle.id} failed: ValueError: no 3"
    assert started == [1, 2, 3]
    view = await app.runs.get(handle.id)
    assert (view.state, view.attempt, view.locked_by) == ("failed", 3, None)
    assert view.error is not None
    assert (view.error.code, view.error.message) == ("ValueError", "no 3")
    assert [(kept.attempt, kept.code, kept.message, kept.worker) for kept in view.attempts] == [
        (number, "ValueError", f"no {number}", name) for number in (1, 2, 3)
    ]
    assert all("raise ValueError" in (kept.traceback or "") for kept in view.attempts)
    assert all(kept.started_at <= kept.ended_at for kept in view.attempts)
    assert [failed.will_retry for failed in probe.seen(AttemptFailed)] == [True, True, False]


async def test_an_attempt_shows_how_long_it_took(app: App):
    """By the database's clock."""

    @app.function(retry=Retry.none())
    async def slow():
        await asyncio.sleep(0.1)
        raise ValueError

    async with app.worker():
        handle = await slow.enqueue()
        await failure_of(handle)
    (kept,) = (await app.runs.get(handle.id)).attempts
    assert 0.09 < (kept.ended_at - kept.started_at).total_seconds() < 5


async def test_retry_after_decides_when(app: App, probe: Probe):
    """The handler knows better than the policy."""

    @app.function(retry=Retry("1h"))
    async def limited(run: Run):
        if run.attempt == 1:
            raise RetryAfter("50ms", "429")

    async with app.worker():
        handle = await limited.enqueue()
        failed = await probe.next(AttemptFailed, run_id=handle.id)
        await handle.result(5)
    assert (failed.error_code, failed.message, failed.retry_in) == ("retry_after", "429", 0.05)


async def test_retry_after_does_not_go_on_for_ever(app: App):
    """It counts as an attempt."""

    @app.function(retry=AT_ONCE)
    async def limited():
        raise RetryAfter(0)

    async with app.worker():
        assert (await failure_of(await limited.enqueue())).code == "retry_after"


async def test_fatal_fails_at_once(app: App):
    """Whatever the policy says."""

    @app.function(retry=AT_ONCE)
    async def hopeless():
        raise Fatal("the track is gone")

    async with app.worker():
        handle = await hopeless.enqueue()
        error = await failure_of(handle)
    assert (error.code, str(error)) == ("fatal", f"run {handle.id} failed: fatal: the track is gone")
    assert (await app.runs.get(handle.id)).attempt == 1


async def test_cancel_ends_the_run_as_cancelled(app: App, probe: Probe):
    """With the handler's reason, and no failed attempt."""

    @app.function(retry=AT_ONCE)
    async def unwanted():
        raise Cancel("nobody needs it")

    async with app.worker():
        handle = await unwanted.enqueue()
        with pytest.raises(RunCancelled, match=f"^run {handle.id} was cancelled: nobody needs it$"):
            await handle.result(5)
        assert (await probe.next(AttemptCancelled)).reason == "nobody needs it"
    view = await app.runs.get(handle.id)
    assert (view.state, view.attempts) == ("cancelled", [])


async def test_exceptions_may_have_rules_of_their_own(app: App):
    """Subclasses included."""
    policy = Retry("0s").on(OSError, "0s", "0s", "0s").never(KeyError)

    @app.function(retry=policy)
    async def fail(kind: str):
        raise {"os": ConnectionResetError, "key": KeyError, "value": ValueError}[kind]("x")

    async with app.worker():
        handles = {kind: await fail.enqueue(kind=kind) for kind in ("os", "key", "value")}
        for handle in handles.values():
            await failure_of(handle)
    attempts = {kind: (await app.runs.get(handle.id)).attempt for kind, handle in handles.items()}
    assert attempts == {"os": 4, "key": 1, "value": 2}


async def test_a_database_out_of_reach_burns_no_attempt(app: App, probe: Probe):
    """It is nobody's failure."""
    seen: list[int] = []

    @app.function(retry=Retry("1h"))
    async def work(run: Run):
        seen.append(run.attempt)
        if len(seen) == 1:
            raise StoreUnavailable("gone for a moment")

    async with app.worker():
        handle = await work.enqueue()
        failed = await probe.next(AttemptFailed, run_id=handle.id)
        assert (failed.error_code, failed.will_retry) == ("store_unavailable", True)
        await handle.result(5)
    assert seen == [1, 1]


# --- results


async def test_a_result_that_cannot_be_stored_fails_without_retry(app: App):
    """Trying again would give the same; the error says where the problem is."""

    @app.function(retry=AT_ONCE)
    async def odd() -> Any:
        return {"rows": [1, object()]}

    async with app.worker():
        handle = await odd.enqueue()
        error = await failure_of(handle)
    assert error.code == "unserialisable_result"
    assert "the result: $.rows[1] cannot be stored as JSON: object is not a JSON type" in str(error)
    assert (await app.runs.get(handle.id)).attempt == 1


@pytest.mark.parametrize("value", ["\x00", float("nan"), "\ud800", {"a\x00b": 1}, {"a\ud800b": 1}])
async def test_a_result_that_databases_refuse_is_refused_before_them(app: App, value: Any):
    """And its error can be stored."""

    @app.function
    async def odd() -> Any:
        return value

    async with app.worker():
        assert (await failure_of(await odd.enqueue())).code == "unserialisable_result"


async def test_a_result_that_is_too_large_fails_without_retry(make_app: MakeApp):
    """With both sizes and the remedy."""
    async with make_app(input_limit=1000) as app:

        @app.function(retry=AT_ONCE)
        async def large() -> str:
            return "x" * 2000

        async with app.worker():
            error = await failure_of(await large.enqueue())
    assert error.code == "unserialisable_result"
    assert "the result has 2,002 bytes as JSON and may have 1,000; store it elsewhere" in str(error)


async def test_raw_json_that_is_none_fails_alone(app: App):
    """Its neighbours' results are stored all the same."""

    @app.function
    async def work(n: int) -> Any:
        return Raw(b"not json") if n == 5 else n

    async with app.worker():
        handles = await work.enqueue_many({"n": n} for n in range(10))
        for n, handle in enumerate(handles):
            if n == 5:
                await failure_of(handle)
            else:
                assert await handle.result(5) == n


async def test_a_sync_function_that_gives_a_coroutine_is_told_so(app: App):
    """A decorator that hides `async def` is a common mistake; nothing is left unawaited."""

    async def hidden() -> str:
        return "done"

    given = hidden()

    @app.function(retry=Retry.none())
    def wrapped():
        return given

    async with app.worker():
        assert "coroutine" in str(await failure_of(await wrapped.enqueue()))
    state = inspect.getcoroutinestate(given)
    given.close()
    assert state == inspect.CORO_CLOSED


# --- input


async def test_old_input_that_no_longer_fits_fails_and_can_be_retried_by_hand(make_app: MakeApp):
    """The error shows the difference; once the code fits again, a person sends it on."""
    async with make_app() as old:

        @old.function(name="enrich")
        async def before(track: int): ...

        handle = await before.enqueue(track=5)
    async with make_app() as new:

        @new.function(name="enrich", retry=AT_ONCE)
        async def after(track: str): ...

        async with new.worker():
            error = await failure_of(new.runs.handle(handle.id))
            assert error.code == "invalid_input"
            assert "input of 'enrich': $.track: Expected `str`, got `int`" in str(error)
            assert "what the function takes here: track is an integer, not string" in str(error)
        assert (await new.runs.get(handle.id)).attempt == 1
    async with make_app() as fixed:

        @fixed.function(name="enrich")
        async def both(track: int | str) -> int | str:
            return track

        async with fixed.worker():
            again = await fixed.runs.retry(handle.id)
            assert await again.result(5) == 5


async def test_a_function_that_this_worker_does_not_know_is_parked(make_app: MakeApp):
    """Held, visible, with its attempt returned; not lost and not failed."""
    async with make_app() as there:

        @there.function
        async def elsewhere(): ...

        handle = await elsewhere.enqueue()
    async with make_app() as here:
        with Probe(here.telemetry) as probe:
            async with here.worker() as worker:
                failed = await probe.next(AttemptFailed, run_id=handle.id, timeout=3)
                name = worker.id
        assert (failed.error_code, failed.will_retry) == ("unknown_function", True)
        view = await here.runs.get(handle.id)
    assert (view.state, view.held_because, view.attempt) == ("held", "parked", 0)
    assert view.error is not None
    said = f"worker {name} serves this queue but has no function 'elsewhere'; start a worker that declares it"
    assert view.error.message.startswith(said)


# --- exceptions of all kinds


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say what is wrong")


class NotAnException(BaseException):
    """As pytest's own outcomes are, and those of some frameworks."""


@pytest.mark.parametrize(
    "error",
    [
        Unprintable(),
        NotAnException("odd"),
        asyncio.CancelledError("by something inside"),
        ValueError("NUL \x00 and \ud800"),
        Fatal("\x00"),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        StopAsyncIteration(),
        ValueError("x" * 1_000_000),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_any_exception_fails_its_run_and_nothing_else(app: App, error: BaseException):
    """Its slot is free afterwards, and its neighbour completes."""

    @app.function(retry=Retry.none())
    async def odd():
        raise error

    @app.function
    async def fine() -> str:
        return "fine"

    async with app.worker():
        bad, good = await odd.enqueue(), await fine.enqueue()
        assert await good.result(5) == "fine"
        await failure_of(bad, timeout=1)
        assert await (await fine.enqueue()).result(5) == "fine"
    assert await states(app) == {"failed": 1, "completed": 2}


@pytest.mark.parametrize("reason", ["NUL \x00", "surrogate \ud800", 42, None, ValueError("x")], ids=ascii)
async def test_any_reason_to_cancel_cancels_its_run_and_nothing_else(app: App, reason: Any):
    """Views can still read it."""

    @app.function
    async def odd():
        raise Cancel(reason)

    @app.function
    async def fine() -> str:
        return "fine"

    async with app.worker():
        bad, good = await odd.enqueue(), await fine.enqueue()
        assert await good.result(5) == "fine"
        with pytest.raises(RunCancelled):
            await bad.result(2)
    assert len(await app.runs.list()) == 2


async def test_a_handler_that_exits_fails_and_leaves_the_worker_alone(app: App):
    """`sys.exit()` somewhere inside a library is no reason to stop working. In a thread, since asyncio itself
    would end the loop for a task that raises it."""

    @app.function(retry=Retry.none())
    def leave():
        raise SystemExit(1)

    @app.function
    async def fine() -> str:
        return "fine"

    async with app.worker():
        assert (await failure_of(await leave.enqueue(), timeout=2)).code == "SystemExit"
        assert await (await fine.enqueue()).result(5) == "fine"


async def test_a_nested_enqueue_that_is_refused_is_the_handlers_failure(app: App):
    """With an error that can be stored."""

    @app.function
    async def child(data: dict[str, Any]): ...

    @app.function(retry=Retry.none())
    async def parent():
        await child.enqueue({"a\x00b": 1})

    async with app.worker():
        assert (await failure_of(await parent.enqueue(), timeout=2)).code == "invalid_input"


async def test_every_attempt_that_fails_is_announced_once(app: App, probe: Probe):
    """No more and no less."""

    @app.function(retry=AT_ONCE)
    async def broken():
        raise ValueError

    async with app.worker():
        handle = await broken.enqueue()
        await failure_of(handle)
    ends = [event for event in probe.seen(Event) if isinstance(event, AttemptFailed | RunCompleted | AttemptCancelled)]
    assert [event.attempt for event in ends] == [1, 2, 3]


async def test_a_run_with_one_attempt_does_not_start_again_after_an_outage(app: App):
    """Its attempt is not returned once it has begun, whoever's fault the failure was."""
    starts: list[int] = []

    @app.function(retry=Retry.none())
    async def once():
        starts.append(1)
        raise StoreUnavailable("no route")

    async with app.worker():
        assert (await failure_of(await once.enqueue())).code == "store_unavailable"
    assert starts == [1]
