"""What a handler knows of its run, and may do with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, ClassVar, TypeVar

from msgspec import Raw, json

from ..codec import to_json
from ..errors import ConfigError, LeaseLost, TransactionMisused, UnknownEvent
from ..model.change import Change
from ..model.event import Event, event_of
from ..model.outcome import Done, Stop, settle
from ..model.run import Claimed
from ..store.ports import Caller, Store, Transaction
from .active import Active
from .door import Door
from .ledger.recording import EMPTY
from .threads import adopt, at_once, entered, in_context
from .transaction import Tx

T = TypeVar("T")

TRANSACTION_LIMIT = 5.0


class Tools:
    """What the engine lends to every run."""

    __slots__ = ("adapt", "door", "loop", "output_limit", "resources", "store")

    def __init__(
        self,
        store: Store,
        door: Door,
        adapt: Callable[[object], Caller],
        *,
        output_limit: int,
        resources: Mapping[str, Any],
    ) -> None:
        self.store, self.door, self.adapt = store, door, adapt
        self.output_limit = output_limit
        self.resources = resources
        self.loop = asyncio.get_running_loop()


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

    # --- what it may do

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """The run's last act: statements that commit together with the handler's return value, or not at all.

        Leaving the block commits nothing; the engine does, when the handler returns, if the run is still its own.
        """
        self._refuse_after_the_end("transaction")
        self._stack = AsyncExitStack()
        opened = await self._stack.enter_async_context(self._tools.store.begin(limit=TRANSACTION_LIMIT))
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
    def open_transaction(self) -> Transaction | None:
        return self._transaction

    @property
    def completed_by_caller(self) -> bool:
        return self._completed_by_caller

    async def close(self) -> None:
        """The attempt is over. A transaction that was not committed is undone, and no other can be opened."""
        self._closed = True
        await self._end_transaction()

    async def _end_transaction(self) -> None:
        stack, self._stack, self._transaction = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    @property
    def _claimed(self) -> Claimed:
        return self._active.claimed

    def _completion(self, output: Raw) -> list[Change]:
        return settle(self._claimed, Done(output), self._active.retry, worker=self._active.worker, duration=0.0)

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


class BlockingRun:
    """The same run for a handler that is a plain function in a thread."""

    __ostinato_run__: ClassVar[bool] = True

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    @property
    def event(self) -> Event | None:
        """See `Run.event`."""
        return self._wait(self._run.event)

    @contextmanager
    def transaction(self) -> Iterator[BlockingTx]:
        """See `Run.transaction`."""
        with entered(self._run.transaction(), self._wait) as tx:
            yield BlockingTx(tx, self._wait)

    def complete(self, output: Any = None, *, conn: object) -> None:
        """See `Run.complete`. The connection is used here, on the calling thread; the event loop is not waited for,
        as it may be waiting for a lock that the caller's transaction holds."""
        caller = self._run.completer(conn)
        if caller.is_async:
            kind = type(conn)
            raise ConfigError(
                f"conn= is an async connection ({kind.__module__}.{kind.__qualname__}), which only its event loop may "
                f"use, and {self._run.function!r} is a plain function in a thread; declare it with `async def`, or use "
                "`with run.transaction() as tx:`"
            )
        at_once(self._run.complete_on(caller, output))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        result, context = asyncio.run_coroutine_threadsafe(in_context(work), self._loop).result()
        adopt(context)
        return result


class BlockingTx:
    """`Tx` for a thread."""

    def __init__(self, tx: Tx, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._tx = tx
        self._wait = wait

    def execute(self, sql: str, *args: Any) -> int:
        return self._wait(self._tx.execute(sql, *args))  # type: ignore[no-any-return]

    def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        return self._wait(self._tx.fetch(sql, *args))  # type: ignore[no-any-return]

    def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None:
        return self._wait(self._tx.fetchrow(sql, *args))  # type: ignore[no-any-return]

    def fetchval(self, sql: str, *args: Any) -> Any:
        return self._wait(self._tx.fetchval(sql, *args))

    def enqueue(self, function: object, given: Any = None, /, **fields: Any) -> str:
        return self._wait(self._tx.enqueue(function, given, **fields))  # type: ignore[no-any-return]

    def enqueue_many(self, function: object, inputs: Any) -> list[str]:
        return self._wait(self._tx.enqueue_many(function, list(inputs)))  # type: ignore[no-any-return]

    def record(self, event_type: str, payload: Any = EMPTY, /, **options: Any) -> str:
        return self._wait(self._tx.record(event_type, payload, **options))  # type: ignore[no-any-return]

    def record_many(self, event_type: str, events: Any, /, **common: Any) -> list[str]:
        return self._wait(self._tx.record_many(event_type, list(events), **common))  # type: ignore[no-any-return]


class _RunLog(logging.LoggerAdapter[logging.Logger]):
    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            message = str(msg) % args if args else str(msg)
            event = {"event": "run_log", "message": message, **(self.extra or {})}
            kwargs["extra"] = {**kwargs.get("extra", {}), "ostinato_event": event}
            self.logger.log(level, msg, *args, **kwargs)
