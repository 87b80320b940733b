"""One run, from its claim to its settlement: resolve → run → decide → settle."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from msgspec import Raw, json

from ..codec import to_json
from ..errors import InvalidInput, StepFailed, StoreError
from ..model.difference import differences
from ..model.outcome import (
    Cancelled,
    Done,
    Failed,
    GivenBack,
    Interrupted,
    Lost,
    Outcome,
    Settled,
    Stop,
    Unknown,
    decisive,
    failure,
    settle,
)
from ..model.run import Claimed
from ..shield import shielded
from ..store.ports import Fence
from .active import DEFAULT_TIMEOUT, Active
from .blocking import BlockingRun
from .context import Run
from .door import current_run
from .marks import StartMarks
from .registry import FunctionSpec, Registry
from .threads import in_thread
from .tools import Tools
from .tracing import processing, trace_id_of

_NULL = Raw(b"null")
_NOTHING = Done(_NULL)


class Executor:
    """Starts handlers and turns what becomes of them into settlements."""

    def __init__(
        self,
        registry: Registry,
        tools: Tools,
        *,
        marks: StartMarks,
        on_concluded: Callable[[Active], None],
    ) -> None:
        self._registry, self._tools, self._marks = registry, tools, marks
        self._on_concluded = on_concluded
        self._loop = asyncio.get_running_loop()

    def start(self, claimed: Claimed, worker: str, now: float) -> Active:
        """Begins an attempt in a task of its own, whatever factory the loop has: it must not start before the caller
        knows of it."""
        spec = self._registry.functions.get(claimed.function)
        timeout = claimed.timeout or (spec.timeout if spec is not None else DEFAULT_TIMEOUT)
        active = Active(claimed, spec, worker, (claimed.id, claimed.lease_no), now, now + timeout)
        if claimed.trace is not None:
            active.trace_id = trace_id_of(claimed.trace)
        active.task = asyncio.Task(self._execute(active), loop=self._loop, name="ostinato run")
        return active

    async def close(self) -> None:
        await self._tools.desk.close()
        self._tools.threads.close()

    async def _execute(self, active: Active) -> None:
        current_run.set(active.claimed)
        active.begun = True
        if (span := processing(active.claimed, active.worker)) is not None:
            active.trace_id = span.trace_id
        active.outcome = await self._attempt(active) if active.stop is None else _stopped(active)
        active.ended = self._loop.time()
        if span is not None:
            span.end(active.outcome)
        if not active.abandoned:
            self._on_concluded(active)

    async def _attempt(self, active: Active) -> Outcome:
        spec = active.spec
        if spec is None:
            return Unknown()
        try:
            if spec.only_once:
                if not await self._marks.mark(active.claimed):
                    return Lost()
                active.only_start = True
            value = await self._call(active, spec)
            if active.run is not None and (suspended := active.run.suspended) is not None:
                return suspended
            active.finishing = True
            return _NOTHING if value is None and active.run is None else await self._finish(active, value)
        except GeneratorExit:  # the event loop is gone, and nothing can be awaited any more
            raise
        except BaseException as error:
            return await self._failed(active, error)
        finally:
            active.finishing = True  # it has ended: a stop that comes now must not cut short what follows
            if active.run is not None:
                await _undo(active.run)

    async def _failed(self, active: Active, error: BaseException) -> Outcome:
        if active.run is not None and (suspended := active.run.suspended) is not None:
            return suspended  # whatever the function made of being left, or was asked meanwhile: the fence knows
        if active.run is not None and active.run.completed_by_caller and await self._is_completed(active):
            return Settled()
        if isinstance(error, asyncio.CancelledError):
            return _stopped(active)
        error = decisive(error)
        if isinstance(error, InvalidInput):
            return Failed("invalid_input", _misfit(active) or str(error), error, retriable=False)
        if isinstance(error, StepFailed):
            return Failed("step_failed", str(error), error, retriable=False)
        outcome = failure(error)
        if active.only_start and isinstance(outcome, Interrupted):  # it has started, and must not start again
            return Failed("store_unavailable", outcome.message, error, retriable=False)
        return outcome

    # --- calling the handler

    def _call(self, active: Active, spec: FunctionSpec) -> Awaitable[Any]:
        if self._registry.middleware:
            return self._through_middleware(active, spec)
        return self._handle(active, spec)

    def _handle(self, active: Active, spec: FunctionSpec) -> Awaitable[Any]:
        if spec.is_async:
            run = self._run_of(active) if spec.input.takes_run else None
            return spec.input.call(spec.handler, run, active.claimed.input)  # type: ignore[no-any-return]
        return self._handle_in_thread(active, spec)

    async def _handle_in_thread(self, active: Active, spec: FunctionSpec) -> Any:
        run = BlockingRun(self._run_of(active), self._loop)
        call = lambda: spec.input.call(spec.handler, run, active.claimed.input)  # noqa: E731
        return await in_thread(self._tools.threads, active, call)

    async def _through_middleware(self, active: Active, spec: FunctionSpec) -> Any:
        run = self._run_of(active)

        async def innermost() -> Any:
            return await self._handle(active, spec)

        call: Callable[[], Awaitable[Any]] = innermost
        for middleware in reversed(self._registry.middleware):
            call = _around(middleware, run, call)
        return await call()

    def _run_of(self, active: Active) -> Run:
        if active.run is None:
            active.run = Run(active, self._tools)
        return active.run

    # --- finishing

    async def _finish(self, active: Active, value: Any) -> Outcome:
        run = active.run
        if run is not None and run.completed_by_caller:
            return await self._verify_completion(active)
        if inspect.iscoroutine(value):
            value.close()
            message = (
                "the handler returned a coroutine; is an `await` missing, or an `async def` hidden behind a decorator?"
            )
            return Failed("unserialisable_result", message, retriable=False)
        try:
            output = _NULL if value is None else Raw(to_json(value, what="the result", limit=self._tools.output_limit))
        except InvalidInput as error:
            return Failed("unserialisable_result", str(error), error, retriable=False)
        if run is not None and run.open_transaction is not None:
            return await self._commit_transaction(active, Done(output))
        return Done(output)

    async def _commit_transaction(self, active: Active, done: Done) -> Outcome:
        """Commits what the handler did in run.transaction() together with the run's completion, or neither."""
        run, transaction = active.run, active.run.open_transaction if active.run else None
        assert run is not None
        assert transaction is not None
        changes = settle(active.claimed, done, active.retry, worker=active.worker, duration=0.0, told=active.told)
        committed = await transaction.apply(changes)
        if committed.refused:
            await run.close()
            return await self._refusal(active)
        try:
            await shielded(transaction.commit())
        except StoreError as error:
            return await self._verify_commit(active, error)
        return Settled()

    async def _verify_completion(self, active: Active) -> Outcome:
        if await self._is_completed(active):
            return Settled()
        message = "run.complete(conn=) was called, but its transaction was not committed before the handler returned"
        return Failed("not_committed", message)

    async def _verify_commit(self, active: Active, error: StoreError) -> Outcome:
        """A failed commit may have committed: ask, as long as it takes."""
        while True:
            try:
                return Settled() if await self._is_completed(active) else failure(error)
            except StoreError:
                await asyncio.sleep(0.5)

    async def _is_completed(self, active: Active) -> bool:
        fence = await self._fence(active)
        return fence is not None and _is_ours(fence, active) and fence.state == "completed"

    async def _refusal(self, active: Active) -> Outcome:
        """Why the database refused a settlement: somebody cancelled the run, or took it over."""
        fence = await self._fence(active)
        if fence is not None and _is_ours(fence, active) and fence.cancel_requested:
            return Cancelled(fence.message or "cancelled")
        return Lost()

    async def _fence(self, active: Active) -> Fence | None:
        return (await self._tools.store.fences([active.claimed.id])).get(active.claimed.id)


def _misfit(active: Active) -> str | None:
    """How the stored input differs from what the handler takes, if it does: another version of it was enqueued."""
    if active.spec is None:
        return None
    try:
        active.spec.input.check(active.claimed.input)
    except InvalidInput as error:
        found = differences(json.decode(active.spec.input.schema or b"{}"), json.decode(active.claimed.input))
        return f"{error}; against what the function takes here: {'; '.join(found)}" if found else str(error)
    return None


async def _undo(run: Run) -> None:
    """Ends the transaction that a handler left open; if that fails, its connection is gone, and it with it."""
    if run.shut():
        with suppress(Exception):
            await shielded(run.close())


def _is_ours(fence: Fence | None, active: Active) -> bool:
    return fence is not None and fence.lease_no == active.claimed.lease_no


def _around(middleware: Any, run: Run, call: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return lambda: middleware(run, call)


def _stopped(active: Active) -> Outcome:
    """What a cancelled handler means, by who asked for it."""
    match active.stop:
        case Stop.CANCEL:
            return Cancelled(active.reason or "cancelled")
        case Stop.TIMEOUT:
            return timed_out(active)
        case Stop.SHUTDOWN:
            return GivenBack()
        case Stop.LEASE_LOST:
            return Lost()
        case None:
            return Failed("CancelledError", "the handler was cancelled by something inside it")


def timed_out(active: Active) -> Failed:
    return Failed("timeout", f"the handler ran longer than {active.deadline - active.started:g} s", TimeoutError())
