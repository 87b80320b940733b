"""The steps of one run: who is who, what is remembered, and doing what is not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct, json

from ...codec import ResultType
from ...errors import (
    Cancel,
    InvalidInput,
    InvalidOption,
    StepFailed,
    StepMisused,
    StoreUnavailable,
    UnknownFunction,
)
from ...model.change import Change, StepSaved, WaitMet
from ...model.outcome import Stop, decisive, failure
from ...model.retry import Retry
from ...model.run import Reason
from ...model.step import LONGEST_NAME, Kind, Memo, Status, StepError, error_in, identity, retry_in
from ...shield import shielded
from ...telemetry import StepCompleted, StepRetried
from ...telemetry import StepFailed as StepFailedEvent
from ..threads import in_thread
from .callees import bound, callee_of, refusal_of, told_apart
from .options import StepOptions
from .suspending import Suspension

if TYPE_CHECKING:
    from ...model.event import Event
    from ..active import Active
    from ..door import Door
    from ..tools import Tools

inside_step: ContextVar[str | None] = ContextVar("ostinato_step", default=None)
"""The step in whose function we are."""


class Step(Struct, eq=False, gc=False):
    """One call of a step."""

    id: str
    name: str
    place: int
    kind: Kind
    input: str | None
    memo: Memo | None
    began: float
    is_async: bool = True
    retried: int = 0
    noted: bool = False
    """Whether the database knows that it runs."""


class Steps:
    """What a run remembers, and what it does now."""

    def __init__(self, active: Active, tools: Tools) -> None:
        self._active, self._tools = active, tools
        self._claimed = active.claimed
        self._own_id = active.claimed.id.encode()
        self._memos: dict[str, Memo] | None = {} if active.claimed.lease_no == 1 else None
        self._loading: asyncio.Future[None] | None = None
        self._loaded_at = monotonic()
        self._repeats: dict[tuple[str, bytes], int] = {}
        self._places = 0
        self._size = 0
        self.running: dict[str, Step] = {}
        self.suspension = Suspension(active.task)

    @property
    def run_id(self) -> str:
        return self._claimed.id

    @property
    def door(self) -> Door:
        return self._tools.door

    async def unknown(self, function: str) -> UnknownFunction:
        """The refusal of a name that the database does not know, with the one that may be meant."""
        return await self.door.unknown(function, self._tools.store.views)

    async def database_time(self) -> int:
        """Microseconds since 1970."""
        return await self._tools.store.views.moment()

    async def earlier(self, glob: str, *, since: int, after: int, limit: int) -> list[Event]:
        return await self._tools.store.earlier(glob, since=since, after=after, limit=limit)

    def has_used(self, event_id: str) -> bool:
        """Whether a wait of this run has got the event already."""
        return any(memo.event_id == event_id for memo in (self._memos or {}).values())

    async def meet(self, step: Step, event: Event) -> None:
        """Gives an event to a step that waits, unless another of the run has it or got it meanwhile."""
        met = WaitMet(self._claimed.id, step.id, event.id, json.encode(event).decode())
        await self._tools.store.commit([met])

    # --- who is who

    async def find(self, name: str, told_apart_by: bytes, kind: Kind, given: str | None = None) -> Step:
        """The step that is called now. What makes it different from others is settled before anything is awaited."""
        step_id = self._identify(name, told_apart_by)
        if self._memos is None:
            await self._load()
        return self._called_now(step_id, name, kind, given)

    def _identify(self, given: object, told_apart_by: bytes) -> str:
        name = given if isinstance(given, str) else ""
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise InvalidOption(
                f"a step's name must be text of 1 to {LONGEST_NAME} printable characters, not {given!r}"
            )
        if (outer := inside_step.get()) is not None:
            raise StepMisused(f"step {name!r} inside step {outer!r}; steps follow each other, none contains another")
        self.suspension.join()
        # The run's own id, in an idempotency key say, tells none of its steps apart; a copy of the run must find them.
        same = (name, told_apart_by.replace(self._own_id, b"\x01"))
        repeat = self._repeats.get(same, 0)
        self._repeats[same] = repeat + 1
        return identity(*same, repeat)

    def _called_now(self, step_id: str, name: str, kind: Kind, given: str | None) -> Step:
        assert self._memos is not None
        memo = self._memos.get(step_id)
        if memo is not None:
            return Step(step_id, name, memo.place, kind, given, memo, monotonic())
        self._places += 1
        return Step(step_id, name, self._places - 1, kind, given, None, monotonic())

    async def _load(self) -> None:
        """Reads what is remembered, once, whoever asks first."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._read())
        await asyncio.shield(self._loading)

    async def _read(self) -> None:
        memos = await self._tools.desk.memos(self._claimed.id)
        self._loaded_at = monotonic()
        if self._memos is None:
            self._memos = {}
            self._places = max((memo.place + 1 for memo in memos), default=0)
            self._size = sum(_size(memo.output) for memo in memos if memo.output is not None)
        self._memos.update((memo.id, memo) for memo in memos)

    async def reread(self, step: Step) -> Memo:
        """What the database remembers of a step that others may have ended."""
        await self._read()
        assert self._memos is not None
        if (memo := self._memos.get(step.id)) is None:
            await self.lost()
        return memo

    def remaining(self, memo: Memo) -> float:
        """Seconds until a pending step goes on by itself."""
        if memo.remaining is None:
            return float("inf")
        return memo.remaining - (monotonic() - self._loaded_at)

    # --- saving

    async def save(self, step: Step, status: Status, *, others: Sequence[Change] = (), **fields: Any) -> None:
        """Returns when it is committed. If the run is not ours any more, its handler is stopped."""
        saved = self.change(step, status, **fields)
        if not await self._tools.desk.save(saved, others):
            await self.lost()

    def change(self, step: Step, status: Status, **fields: Any) -> StepSaved:
        """What is to be remembered of a step now. That it runs need not be noted after that."""
        step.noted = True
        claimed = self._claimed
        return StepSaved(
            claimed.id,
            claimed.lease_no,
            step.id,
            step.name,
            step.place,
            step.kind,
            status,
            monotonic() - step.began,
            step.input,
            **fields,
        )

    async def lost(self) -> NoReturn:
        """Somebody cancelled the run, or took it over."""
        fence = (await self._tools.store.fences([self._claimed.id])).get(self._claimed.id)
        if fence is not None and fence.lease_no == self._claimed.lease_no and fence.cancel_requested:
            self._active.reason = fence.message or "cancelled"
            self._active.ask_to_stop(Stop.CANCEL)
        else:
            self._active.ask_to_stop(Stop.LEASE_LOST)
        await asyncio.sleep(0)  # where the function's own task is cancelled, once
        raise asyncio.CancelledError

    # --- doing

    async def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: StepOptions,
    ) -> Any:
        """The result of a step, done now or remembered."""
        if not callable(function):
            raise StepMisused(refusal_of(name, function))
        callee = callee_of(function)
        told_apart_by, given = told_apart(name, *bound(function, args, kwargs), options.key)
        step_id = self._identify(name, told_apart_by)
        if self._memos is None:
            await self._load()
        step = self._called_now(step_id, name, Kind.STEP, given)
        step.is_async = callee.is_async
        if (memo := step.memo) is not None:
            if memo.status == Status.COMPLETED:
                return _remembered(name, callee.result, memo)
            if memo.status == Status.FAILED:
                raise failed(name, memo)
            if memo.status == Status.PENDING and self.remaining(memo) > 0:
                await self.suspension.wait(Reason.STEP_RETRY, step.id)
        return await self._do(step, function, args, kwargs, options, callee.result)

    async def _do(
        self,
        step: Step,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: StepOptions,
        result: ResultType,
    ) -> Any:
        """Tries until it is done, has failed for good, or has to wait for the next try."""
        retried = step.memo.retry_count if step.memo is not None else 0
        while True:
            self.suspension.begin()
            self.running[step.id] = step
            step.began, step.retried, step.noted = monotonic(), retried, False
            try:
                if options.tx:
                    return await self._do_in_transaction(step, function, args, kwargs, options, result, retried)
                value = await self._timed(step, options, function, args, kwargs)
                return await self._done(step, value, result, retried)
            except Exception as raised:
                error = decisive(raised)
                if isinstance(error, Cancel | StepMisused | StoreUnavailable | StepFailed):
                    raise
                assert isinstance(error, Exception)
                retry = options.retry if options.retry is not None else self._active.retry
                delay = await self._failed(step, error, retry, retried)
            finally:
                self.running.pop(step.id, None)
                self.suspension.end()
            retried += 1
            if delay > 0:
                await self.suspension.wait(Reason.STEP_RETRY, step.id)

    async def _timed(
        self,
        step: Step,
        options: StepOptions,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        token = inside_step.set(step.name)
        call = function if step.is_async else self._threaded(function)
        try:
            if options.timeout is None:
                return await call(*args, **kwargs)
            try:
                async with asyncio.timeout(options.timeout) as deadline:
                    return await call(*args, **kwargs)
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                raise TimeoutError(f"step {step.name!r} ran longer than {options.timeout:g} s") from error
        finally:
            inside_step.reset(token)

    def _threaded(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            value = await in_thread(self._tools.threads, self._active, lambda: function(*args, **kwargs))
            return await value if inspect.isawaitable(value) else value

        return call

    async def _done(self, step: Step, value: Any, result: ResultType, retried: int) -> Any:
        encoded, again = self._kept(value, result)
        await self.save(step, Status.COMPLETED, output=encoded, retry_count=retried)
        self.completed(step)
        return again

    def _kept(self, value: Any, result: ResultType) -> tuple[str, Any]:
        """The result as it is stored and as it comes back; one that cannot be kept is the step's failure for good."""
        tools = self._tools
        try:
            encoded, again = result.kept(value, limit=tools.step_limit)
            if self._size + len(encoded) > tools.steps_limit:
                raise InvalidInput(
                    f"the results of this run's steps would have {self._size + len(encoded):,} bytes and may have "
                    f"{tools.steps_limit:,}; store it elsewhere and return a reference"
                )
        except InvalidInput as error:
            raise _Unkeepable(str(error)) from error
        self._size += len(encoded)
        return encoded.decode(), again

    def completed(self, step: Step) -> None:
        """It is saved: tells who listens."""
        telemetry = self._tools.telemetry
        if telemetry.wants(StepCompleted):
            telemetry.announce(
                StepCompleted(
                    run_id=self._claimed.id,
                    function=self._claimed.function,
                    step=step.name,
                    kind=step.kind,
                    duration=monotonic() - step.began,
                )
            )

    async def _do_in_transaction(
        self,
        step: Step,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: StepOptions,
        result: ResultType,
        retried: int,
    ) -> Any:
        """The step's statements and its memo, committed together or not at all."""
        async with self._tools.step_transaction() as (transaction, tx):
            given = tx if step.is_async else self._tools.blocking(tx)
            value = await self._timed(step, options, function, (given, *args), kwargs)
            encoded, again = self._kept(value, result)
            saved = self.change(step, Status.COMPLETED, output=encoded, retry_count=retried)
            if (await transaction.apply([saved])).refused:
                await transaction.rollback()
                await self.lost()
            try:
                await shielded(transaction.commit())
            except StoreUnavailable:
                if not await self._was_committed(step):
                    raise
        self.completed(step)
        return again

    async def _was_committed(self, step: Step) -> bool:
        """A failed commit may have committed: ask, as long as it takes."""
        memos = await self._tools.desk.memos(self._claimed.id)
        return any(memo.id == step.id and memo.status == Status.COMPLETED for memo in memos)

    # --- failing

    async def _failed(self, step: Step, error: Exception, retry: Retry, retried: int) -> float:
        """Seconds until the next try; raises StepFailed when there is none."""
        why = _why(error)
        delay = None if isinstance(error, _Unkeepable) else retry_in(error, retry, retried, step=step.id)
        encoded = json.encode(why).decode()
        if delay is None:
            await self.save(step, Status.FAILED, error=encoded, retry_count=retried)
        else:
            await self.save(step, Status.PENDING, error=encoded, retry_count=retried + 1, delay=delay)
        self._announce_failure(step, why, retried, delay)
        if delay is None:
            raise StepFailed(step.name, why.code, why.message) from error
        return delay

    def _announce_failure(self, step: Step, why: StepError, retried: int, delay: float | None) -> None:
        common: dict[str, Any] = {
            "run_id": self._claimed.id,
            "function": self._claimed.function,
            "step": step.name,
            "error_code": why.code,
            "message": why.message,
        }
        telemetry = self._tools.telemetry
        if delay is None:
            telemetry.announce(StepFailedEvent(**common, retry_count=retried))
        else:
            telemetry.announce(StepRetried(**common, retry_count=retried + 1, retry_in=delay))


class _Unkeepable(Exception):
    """A result that cannot be remembered. Doing it again would not help."""


def failed(name: str, memo: Memo) -> StepFailed:
    """The failure that is remembered."""
    assert memo.error is not None
    why = error_in(memo.error)
    return StepFailed(name, why.code, why.message, run_id=why.run_id)


def _why(error: Exception) -> StepError:
    if isinstance(error, _Unkeepable):
        return StepError("unserialisable_result", str(error))
    found = failure(error)
    return StepError(getattr(found, "code", type(error).__name__), getattr(found, "message", str(error)))


def _size(encoded: str) -> int:
    return len(encoded) if encoded.isascii() else len(encoded.encode())


def _remembered(name: str, result: ResultType, memo: Memo) -> Any:
    try:
        return result.read(memo.output or "null")
    except InvalidInput as error:
        raise StepMisused(
            f"step {name!r} was done, and {error}; a step that returns something else needs another name"
        ) from error
