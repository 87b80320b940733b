"""What a handler knows of its run, and may do with it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar, ParamSpec, TypeVar, overload

from msgspec import Raw, json

from ..clock import Duration
from ..codec import sorted_json, to_json
from ..errors import LeaseLost, TransactionMisused, UnknownEvent
from ..model.change import Change
from ..model.event import Event, event_of
from ..model.outcome import Done, Stop, Suspended, settle
from ..model.run import Claimed
from ..model.step import Status
from ..store.ports import Caller, Transaction
from .active import Active
from .door import EnqueueOptions
from .ledger.recording import EMPTY
from .ledger.recording import NO_OPTIONS as NO_RECORD_OPTIONS
from .steps import waiting
from .steps.options import NO_OPTIONS, StepOptions
from .steps.steps import Step, Steps
from .steps.suspending import Suspending
from .tools import Tools
from .transaction import Tx, target_of

P = ParamSpec("P")
R = TypeVar("R")


class Run:
    """A run, inside its handler."""

    __ostinato_run__: ClassVar[bool] = True

    def __init__(self, active: Active, tools: Tools) -> None:
        self._active = active
        self._tools = tools
        self._stack: AsyncExitStack | None = None
        self._transaction: Transaction | None = None
        self._completed_by_caller = False
        self._inside = False
        self._closed = False
        self._event: Event | None = None
        self._steps: Steps | None = None

    # --- what it is

    @property
    def id(self) -> str:
        return self._claimed.id

    @property
    def function(self) -> str:
        return self._claimed.function

    @property
    def queue(self) -> str:
        return self._claimed.queue

    @property
    def attempt(self) -> int:
        """1 at the first start."""
        return self._claimed.attempt

    @property
    def lease_no(self) -> int:
        return self._claimed.lease_no

    @property
    def key(self) -> str | None:
        return self._claimed.key

    @property
    def invoked_by(self) -> str:
        """How the run came to be: `api`, `sql`, `run:…`, `event:…`, `cron:…`."""
        return self._claimed.invoked_by

    @property
    async def event(self) -> Event | None:
        """The event that started the run, as `await run.event`; None if something else did."""
        if self._event is None and (event_id := event_of(self.invoked_by)) is not None:
            if not (found := await self._tools.store.views.events([event_id])):
                raise UnknownEvent(event_id)
            self._event = found[0]
        return self._event

    @property
    def version(self) -> str | None:
        """The function's, as it is declared here."""
        return self._active.spec.version if self._active.spec else None

    @property
    def metadata(self) -> dict[str, Any]:
        return json.decode(self._claimed.metadata) if self._claimed.metadata else {}

    @property
    def resources(self) -> Mapping[str, Any]:
        """What the app's lifespans provide."""
        return self._tools.resources

    @property
    def stopping(self) -> Stop | None:
        """Why the handler is asked to stop: `cancel`, `timeout`, `shutdown` or `lease_lost`; None while it is not."""
        return self._active.stop

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the run."""
        fields = {"job_id": self.id, "job_type": self.function, "attempt": self.attempt}
        if self._active.trace_id is not None:
            fields["trace_id"] = self._active.trace_id
        return _RunLog(logging.getLogger("ostinato.run"), fields)

    def idempotency_key(self, step: str = "") -> str:
        """A key for calls to other services, the same at every attempt."""
        return f"{self.id}:{step}" if step else self.id

    # --- steps

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function once, with these arguments. Its result is committed before this returns, and returned at
        every later attempt without calling it again."""
        return await self._own_steps("step").call(name, function, args, kwargs, NO_OPTIONS)

    def options(self, **options: Any) -> OptedRun:
        """`run.options(key=, retry=, timeout=, tx=True).step(...)`: a step that is told apart by a key, has a policy or
        a time of its own, or commits its statements together with its memo. A key is for steps that wait, too."""
        return OptedRun(self, NO_OPTIONS.changed(options))

    async def sleep(self, name: str, duration: Duration) -> None:
        """Goes on after a time, up to a year. The run holds nothing meanwhile."""
        await waiting.sleep(self._own_steps("sleep"), name, waiting.duration(duration, what="duration"))

    async def sleep_until(self, name: str, moment: datetime) -> None:
        """Goes on at a moment, by the database's clock."""
        await waiting.sleep_until(self._own_steps("sleep_until"), name, moment)

    async def wait_for(
        self,
        name: str,
        event_type: str,
        *,
        match: str | Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        since: datetime | Duration | None = None,
    ) -> Event | None:
        """Goes on with the first event of a type, a glob, recorded since the run started; None when the time is over.

        `match` is like `{"$.payload.order": 42}`, or a condition in CEL. `since` is a moment, or how long ago.
        """
        steps = self._own_steps("wait_for")
        return await waiting.wait_for(steps, name, event_type, match=match, timeout=timeout, since=since)

    async def send(self, name: str, event_type: str, payload: Any = EMPTY, /, **options: Any) -> str:
        """Records an event, once however often the run is attempted; answers its id. The options are those of
        `app.record`."""
        steps = self._own_steps("send")
        return await waiting.send(steps, name, event_type, payload, NO_RECORD_OPTIONS.changed(options))

    async def invoke(self, name: str, function: object, given: Any = None, /, **fields: Any) -> Any:
        """Starts a run of another function, once, and goes on with its result. If it fails or is cancelled, StepFailed
        is raised; if this run is cancelled, so is that one."""
        target, options = target_of(function)
        return await self._invoke(name, target, options, () if given is None else (given,), fields, None)

    async def _invoke(
        self,
        name: str,
        target: str,
        options: EnqueueOptions,
        inputs: tuple[Any, ...],
        fields: Mapping[str, Any],
        key: str | None,
    ) -> Any:
        steps = self._own_steps("invoke")
        child = self._tools.door.one(target, inputs, fields, options, invoked_by=f"run:{self.id}")
        return await waiting.invoke(steps, name, child, sorted_json([inputs, fields]), key=key)

    # --- what it may do

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """The run's last act: statements that commit together with the handler's return value, or not at all.

        Leaving the block commits nothing; the engine does, when the handler returns, if the run is still its own.
        """
        self._refuse_after_the_end("transaction")
        self._stack = AsyncExitStack()
        opened = await self._stack.enter_async_context(self._tools.begin())
        self._transaction, self._inside = opened, True
        tx = Tx(opened, self._tools.door, self._tools.store.views)
        try:
            yield tx
        except BaseException:
            await self._end_transaction()
            raise
        finally:
            self._inside = False
            tx.close()

    async def complete(self, output: Any = None, *, conn: object) -> None:
        """Completes the run in the caller's own transaction, which the caller commits: the same fence as anywhere
        else."""
        await self.complete_on(self.completer(conn), output)

    # --- for the engine

    def completer(self, conn: object) -> Caller:
        """Who completes the run in the caller's transaction."""
        self._refuse_after_the_end("complete")
        return self._tools.adapt(conn)

    async def complete_on(self, caller: Caller, output: Any) -> None:
        """Also called on a handler's own thread: it touches nothing that belongs to the event loop. The flag is only
        ever set, and whatever the loop concludes before it is, the fence decides."""
        encoded = to_json(output, what="output", limit=self._tools.output_limit)
        committed = await self._tools.store.apply_on(caller, self._completion(Raw(encoded)))
        if committed.refused:
            raise LeaseLost(f"run {self.id} is not ours any more; roll back, nothing of it may be written")
        self._completed_by_caller = True

    @property
    def suspended(self) -> Suspended | None:
        """That the run waits, once it does."""
        return None if self._steps is None else self._steps.suspension.outcome

    @property
    def running_steps(self) -> Iterable[Step]:
        return () if self._steps is None else list(self._steps.running.values())

    def note_running(self, step: Step) -> None:
        """Has the database know that a step runs; nobody waits for that."""
        assert self._steps is not None
        step.noted = True
        saved = self._tools.desk.save(self._steps.change(step, Status.RUNNING, retry_count=step.retried))
        saved.add_done_callback(lambda saved: saved.cancelled() or saved.exception())

    def _own_steps(self, verb: str) -> Steps:
        steps = self._steps
        if steps is not None and steps.suspension.outcome is not None:
            raise Suspending  # a task that goes on after the run was left is left, too
        self._refuse_after_the_end(verb)
        if steps is None:
            steps = self._steps = Steps(self._active, self._tools)
        return steps

    @property
    def open_transaction(self) -> Transaction | None:
        return self._transaction

    @property
    def completed_by_caller(self) -> bool:
        return self._completed_by_caller

    def shut(self) -> bool:
        """The attempt is over, and no transaction can be opened any more. Whether one is left, for `close` to undo."""
        self._closed = True
        return self._stack is not None

    async def close(self) -> None:
        """The attempt is over. A transaction that was not committed is undone, and no other can be opened."""
        self.shut()
        await self._end_transaction()

    async def _end_transaction(self) -> None:
        stack, self._stack, self._transaction = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    @property
    def _claimed(self) -> Claimed:
        return self._active.claimed

    def _completion(self, output: Raw) -> list[Change]:
        active = self._active
        return settle(active.claimed, Done(output), active.retry, worker=active.worker, duration=0.0, told=active.told)

    def _refuse_after_the_end(self, verb: str) -> None:
        if self._inside:
            raise TransactionMisused(
                f"run.{verb}() inside run.transaction(); use `tx`, which commits together with the run"
            )
        if self._closed and not self._completed_by_caller:
            raise TransactionMisused(f"run.{verb}() after the attempt is over; whatever it did would be nobody's")
        if self._transaction is not None or self._completed_by_caller:
            raise TransactionMisused(
                f"run.{verb}() after the run's last act; run.transaction() and run.complete() come once, at the end"
            )


class OptedRun:
    """A run whose next step has options."""

    def __init__(self, run: Run, options: StepOptions) -> None:
        self._run, self._options = run, options

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `Run.step`. With `tx=True` the function gets a `tx` before its own arguments."""
        return await self._run._own_steps("step").call(name, function, args, kwargs, self._options)

    async def sleep(self, name: str, duration: Duration) -> None:
        """See `Run.sleep`. This and what follows takes `key=` alone."""
        key = self._options.only_key("sleep")
        amount = waiting.duration(duration, what="duration")
        await waiting.sleep(self._run._own_steps("sleep"), name, amount, key=key)

    async def sleep_until(self, name: str, moment: datetime) -> None:
        """See `Run.sleep_until`."""
        key = self._options.only_key("sleep_until")
        await waiting.sleep_until(self._run._own_steps("sleep_until"), name, moment, key=key)

    async def wait_for(
        self,
        name: str,
        event_type: str,
        *,
        match: str | Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        since: datetime | Duration | None = None,
    ) -> Event | None:
        """See `Run.wait_for`."""
        key, steps = self._options.only_key("wait_for"), self._run._own_steps("wait_for")
        return await waiting.wait_for(steps, name, event_type, match=match, timeout=timeout, since=since, key=key)

    async def send(self, name: str, event_type: str, payload: Any = EMPTY, /, **options: Any) -> str:
        """See `Run.send`."""
        key, steps = self._options.only_key("send"), self._run._own_steps("send")
        return await waiting.send(steps, name, event_type, payload, NO_RECORD_OPTIONS.changed(options), key=key)

    async def invoke(self, name: str, function: object, given: Any = None, /, **fields: Any) -> Any:
        """See `Run.invoke`."""
        key = self._options.only_key("invoke")
        target, options = target_of(function)
        return await self._run._invoke(name, target, options, () if given is None else (given,), fields, key)

    def options(self, **options: Any) -> OptedRun:
        """See `Run.options`."""
        return OptedRun(self._run, self._options.changed(options))


class _RunLog(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            message = str(msg) % args if args else str(msg)
            event = {"event": "run_log", "message": message, **(self.extra or {})}
            kwargs["extra"] = {**kwargs.get("extra", {}), "ostinato_event": event}
            self.logger.log(level, msg, *args, **kwargs)
