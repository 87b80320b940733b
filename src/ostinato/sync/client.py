"""The client: an app whose verbs block, for code without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack
from weakref import finalize

from ..app import App
from ..clock import Duration
from ..engine.blocking import BlockingTx
from ..engine.door import NO_OPTIONS, EnqueueOptions
from ..engine.ledger.recording import EMPTY
from ..engine.threads import entered
from ..errors import ConfigError, InvalidOption, WouldBlock
from ..function import Enqueuer
from .background import BACKGROUND
from .hold import Hold
from .views import Handle, View

if TYPE_CHECKING:
    from .views import Events, Queues, Runs, Schedules, Workers

T = TypeVar("T")

_RESOURCES = f"{__package__.rpartition('.')[0]}.resources."


class Options(TypedDict, total=False):
    """What can be said about a run besides its input: see `EnqueueOptions`."""

    delay: Duration | None
    run_at: datetime | None
    priority: int | None
    key: str | None
    unique: Duration
    queue: str | None
    timeout: Duration | None
    metadata: Mapping[str, Any] | None
    force: bool
    conn: object | None


class Client:
    """The app for code without an event loop: the same verbs and resources, and each call waits for its result.

    >>> client = Client("sqlite:///radio.db")
    >>> handle = client.enqueue("enrich", {"track_id": "42"}, key="track-42")   # doctest: +SKIP

    Any number of threads may use it, before and after a fork. Connections are opened at the first call and kept until
    `close`, the end of a `with` block, or the end of the process.
    """

    if TYPE_CHECKING:
        runs: Runs
        workers: Workers
        queues: Queues
        schedules: Schedules
        events: Events

    def __init__(self, app: App | str | None = None, /, **settings: Any) -> None:
        if isinstance(app, App) and settings:
            raise ConfigError(f"{min(settings)}= is a setting of the app that is given; set it there: App(url, …)")
        self.app = app if isinstance(app, App) else App(app, **settings)
        self.app._site.new_store()  # imports what it needs: while another thread forks would be a bad moment
        self._hold = Hold(self.app._site)
        finalize(self, self._hold.drop).atexit = False

    # --- enqueuing

    def enqueue(self, function: str | Enqueuer, given: Any = None, /, **options: Unpack[Options]) -> Handle:
        """Enqueues a run of a function, or by its name, with the whole input as one object: keywords are options.

        With a sync `conn=` it is done here, on the calling thread and inside the caller's transaction.
        """
        name, settled = _target(function, options)
        value = () if given is None else (given,)
        work = partial(self.app.runs.enqueue, name, value, {}, settled)
        return Handle.of_run(self._carry_out("enqueue", work, settled.conn), self._ask)

    def enqueue_many(
        self, function: str | Enqueuer, inputs: Iterable[Any], /, **options: Unpack[Options]
    ) -> list[Handle]:
        """Enqueues a run for each input, all or none."""
        name, settled = _target(function, options)
        each = list(inputs)  # on this thread: it may be a cursor's
        work = partial(self.app.runs.enqueue_many, name, each, settled)
        return [Handle.of_run(handle, self._ask) for handle in self._carry_out("enqueue_many", work, settled.conn)]

    def record(
        self,
        event_type: str,
        payload: Any = EMPTY,
        /,
        *,
        entity: tuple[str, str] | None = None,
        idempotency_key: str | None = None,
        caused_by: str | None = None,
        source: str | None = None,
        occurred_at: datetime | None = None,
        ordered: bool = False,
        conn: object | None = None,
    ) -> str:
        """Records an event; answers its id, or that of the event that has its idempotency key.

        With a sync `conn=` it is done here, on the calling thread and inside the caller's transaction.
        """
        work = partial(
            self.app.record,
            event_type,
            payload,
            entity=entity,
            idempotency_key=idempotency_key,
            caused_by=caused_by,
            source=source,
            occurred_at=occurred_at,
            ordered=ordered,
            conn=conn,
        )
        return self._carry_out("record", work, conn)

    def record_many(
        self,
        event_type: str,
        events: Iterable[Mapping[str, Any]],
        /,
        *,
        entity: tuple[str, str] | None = None,
        caused_by: str | None = None,
        source: str | None = None,
        occurred_at: datetime | None = None,
        ordered: bool = False,
        conn: object | None = None,
    ) -> list[str]:
        """Records many events of a type, all or none; see `App.record_many`."""
        work = partial(
            self.app.record_many,
            event_type,
            list(events),  # on this thread: it may be a cursor's
            entity=entity,
            caused_by=caused_by,
            source=source,
            occurred_at=occurred_at,
            ordered=ordered,
            conn=conn,
        )
        return self._carry_out("record_many", work, conn)

    @contextmanager
    def transaction(self) -> Iterator[BlockingTx]:
        """The user's statements and `tx.enqueue` in one transaction, committed at the end of the block, or rolled
        back."""
        _refuse_in_event_loop("async with app.transaction() as tx:")
        with BACKGROUND.thread() as thread:
            thread.wait(self._hold.keep(thread))
            with entered(self.app.transaction(), thread.wait) as tx:
                yield BlockingTx(tx, thread.wait)

    # --- resources

    def __getattr__(self, name: str) -> Any:
        resource = None if name == "app" else getattr(self.app, name, None)
        if not type(resource).__module__.startswith(_RESOURCES):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return View(resource, name, self._ask)

    def __dir__(self) -> list[str]:
        resources = [name for name, value in vars(self.app).items() if type(value).__module__.startswith(_RESOURCES)]
        return [*super().__dir__(), *resources]

    # --- life

    def __enter__(self) -> Self:
        """Opens the connections at once: a database that cannot be used is noticed here."""
        _refuse_in_event_loop("async with app:")
        with BACKGROUND.thread() as thread:
            thread.wait(self._hold.keep(thread))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, after the calls of other threads; the next call opens them again. In a running event
        loop they are closed a little later, so as not to block it."""
        if _in_event_loop():
            self._hold.drop()
        else:
            self._hold.let_go()

    # --- waiting

    def _carry_out(self, asked: str, work: Callable[[], Coroutine[Any, Any, T]], connection: object | None) -> T:
        """The result of a verb that may have a `conn=`, which is then used here, on the calling thread."""
        if connection is None:
            return self._ask(asked, work)
        if self.app._site.adapt(connection).is_async:
            kind = type(connection)
            raise ConfigError(
                f"conn= is an async connection ({kind.__module__}.{kind.__qualname__}), which only its event loop may "
                f"use; there, use `await app.{asked}(..., conn=conn)`, and here a connection of a sync driver"
            )
        return self.app._site.inline(work())

    def _ask(self, asked: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a verb of the app's."""
        _refuse_in_event_loop(f"await app.{asked}(...)")
        with BACKGROUND.thread() as thread:
            return thread.wait(self._hold.during(thread, work))


def _target(function: str | Enqueuer, options: Options) -> tuple[str, EnqueueOptions]:
    """The function's name, and its options with those of the call."""
    if isinstance(function, str):
        name, known = function, NO_OPTIONS
    elif isinstance(function, Enqueuer):
        name, known = function.name, function.enqueue_options
    else:
        raise ConfigError(f"{function!r} is no function of an app; declare it with @app.function, or give its name")
    try:
        return name, known.changed(**options)
    except InvalidOption as error:
        raise InvalidOption(f"{error}; the input is the second argument, as one object: ({name!r}, {{...}})") from None


def _in_event_loop() -> bool:
    try:
        return asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


def _refuse_in_event_loop(instead: str) -> None:
    if _in_event_loop():
        raise WouldBlock(
            f"a blocking call would stop the event loop that this code runs in; use `{instead}` here, or make the call "
            "in a thread: `await asyncio.to_thread(...)`"
        )
