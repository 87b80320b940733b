"""What handlers that are plain functions in threads have instead of a run and its `tx`: the same, waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..clock import Duration
from ..errors import ConfigError
from ..model.event import Event
from .ledger.recording import EMPTY
from .threads import at_once, entered, waited
from .transaction import Tx

if TYPE_CHECKING:
    from .context import OptedRun, Run

T = TypeVar("T")


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

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `Run.step`."""
        return self._wait(self._run.step(name, function, *args, **kwargs))

    def options(self, **options: Any) -> BlockingOptedRun:
        """See `Run.options`."""
        return BlockingOptedRun(self._run.options(**options), self._wait)

    def sleep(self, name: str, duration: Duration) -> None:
        """See `Run.sleep`."""
        self._wait(self._run.sleep(name, duration))

    def sleep_until(self, name: str, moment: datetime) -> None:
        """See `Run.sleep_until`."""
        self._wait(self._run.sleep_until(name, moment))

    def wait_for(self, name: str, event_type: str, **options: Any) -> Event | None:
        """See `Run.wait_for`."""
        return self._wait(self._run.wait_for(name, event_type, **options))

    def send(self, name: str, event_type: str, payload: Any = EMPTY, /, **options: Any) -> str:
        """See `Run.send`."""
        return self._wait(self._run.send(name, event_type, payload, **options))

    def invoke(self, name: str, function: object, given: Any = None, /, **fields: Any) -> Any:
        """See `Run.invoke`."""
        return self._wait(self._run.invoke(name, function, given, **fields))

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
        return waited(work, self._loop)


class BlockingOptedRun:
    """`OptedRun` for a thread."""

    def __init__(self, run: OptedRun, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._run, self._wait = run, wait

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._wait(self._run.step(name, function, *args, **kwargs))

    def sleep(self, name: str, duration: Duration) -> None:
        self._wait(self._run.sleep(name, duration))

    def sleep_until(self, name: str, moment: datetime) -> None:
        self._wait(self._run.sleep_until(name, moment))

    def wait_for(self, name: str, event_type: str, **options: Any) -> Event | None:
        return self._wait(self._run.wait_for(name, event_type, **options))  # type: ignore[no-any-return]

    def send(self, name: str, event_type: str, payload: Any = EMPTY, /, **options: Any) -> str:
        return self._wait(self._run.send(name, event_type, payload, **options))  # type: ignore[no-any-return]

    def invoke(self, name: str, function: object, given: Any = None, /, **fields: Any) -> Any:
        return self._wait(self._run.invoke(name, function, given, **fields))

    def options(self, **options: Any) -> BlockingOptedRun:
        return BlockingOptedRun(self._run.options(**options), self._wait)


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
