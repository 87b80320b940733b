"""The app: declarations, and the wiring of everything to a database."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

from . import config
from .clock import Duration, seconds
from .codec import payload_type
from .config import Queue, Retention, Settings
from .engine.door import NO_OPTIONS, PRIORITIES
from .engine.ledger.consumers import specify_drainer
from .engine.ledger.draining import PAGE
from .engine.ledger.recording import EMPTY, RecordOptions, event_type
from .engine.ledger.subscribing import origin_of, subscription
from .engine.registry import FunctionSpec, Middleware, Registry, StartAt, specify
from .engine.scheduling import plan
from .engine.site import Site
from .engine.transaction import Tx
from .engine.worker import Worker
from .errors import ConfigError
from .function import Function
from .integrations.connections import caller_of
from .model.cancelling import Given as Cancelling
from .model.cancelling import specified as cancelling
from .model.lifecycle import ends_of
from .model.retry import Retry
from .resources.doctor import Doctor
from .resources.drainers import Drainers
from .resources.events import Events
from .resources.queues import Queues
from .resources.runs import Handle, Runs
from .resources.schedules import Schedules
from .resources.subscriptions import Subscriptions
from .resources.workers import Workers
from .store.ports import Migrations, Store
from .telemetry import Telemetry, log_to, logger

if TYPE_CHECKING:
    from .observability.metrics import Metrics
    from .observability.server import MetricsServer

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """Functions and the database that remembers their runs.

    >>> app = App("sqlite:///radio.db")
    >>> @app.function
    ... async def greet(name: str) -> str:
    ...     return f"hello {name}"
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str | None = None,
        queues: Mapping[str, int | Queue] | str | None = None,
        lease: Duration | None = None,
        poll: Duration | None = None,
        notify: bool | None = None,
        listen_url: str | None = None,
        shutdown_grace: Duration | None = None,
        retention: Retention | Mapping[str, Duration | None] | Duration | None = None,
        input_limit: int | None = None,
        step_limit: int | None = None,
        steps_limit: int | None = None,
        metrics_port: int | None = None,
        metrics_host: str | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self.settings: Settings = config.settle(given)
        self.telemetry = Telemetry()
        self.registry = Registry()
        self._site = Site(
            self.settings, self.registry, self.telemetry, make_store=lambda: make_store(self.settings), adapt=caller_of
        )
        self.runs = Runs(self._site)
        self.events = Events(self._site)
        self.queues = Queues(self._site, self.runs)
        self.workers = Workers(self._site)
        self.doctor = Doctor(self._site)
        self.schedules = Schedules(self._site, self.runs)
        self.drainers = Drainers(self._site)
        self.subscriptions = Subscriptions(self._site)
        self._metrics: Metrics | None = None
        self._logged = False

    def configure(self, **flags: Any) -> None:
        """Changes settings before anything is opened: the command line's flags win over all others (None: not
        given)."""
        self.settings = self._site.settings = config.changed(self.settings, flags)
        self._site.door.input_limit = self.settings.input_limit

    # --- declaring

    @overload
    def function(self, handler: Callable[P, R], /) -> Function[P, R]: ...

    @overload
    def function(
        self,
        /,
        *,
        name: str | None = None,
        on: str | Sequence[str] | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        version: str | None = None,
        start_timeout: Duration | None = None,
        finish_timeout: Duration | None = None,
        lifecycle: bool | Sequence[str] = False,
        on_failure: Function[..., Any] | str | None = None,
        cancel_on: Cancelling | None = None,
    ) -> Callable[[Callable[P, R]], Function[P, R]]: ...

    def function(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declares a function. Its input is what the handler's parameters say. Events that `on=` means, a glob or
        several, start it with their payload.

        A run that has not started `start_timeout` after it was due, or not ended `finish_timeout` after that, is
        cancelled, and so is one that an event of `cancel_on` is about. `lifecycle` has the ends of runs recorded in the
        ledger, all or those named; `on_failure` is the function that is started when a run has failed for good.
        """
        if handler is None:
            return lambda handler: self._declare(handler, **options)
        return self._declare(handler)

    def _declare(
        self, handler: Callable[..., Any], *, on: str | Sequence[str] | None = None, **options: Any
    ) -> Function[..., Any]:
        spec = self._specify(handler, **options)
        globs = [on] if isinstance(on, str) else on or ()
        origin = origin_of(spec, spec.name, "")
        self.registry.add(spec, [subscription(glob, spec.name, spec.input.schema, origin=origin) for glob in globs])
        return Function(spec, self.runs)

    def _specify(
        self,
        handler: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        version: str | None = None,
        start_timeout: Duration | None = None,
        finish_timeout: Duration | None = None,
        lifecycle: bool | Sequence[str] = False,
        on_failure: Function[..., Any] | str | None = None,
        cancel_on: Cancelling | None = None,
    ) -> FunctionSpec:
        if isinstance(handler, Function):
            raise ConfigError(f"{handler.name!r} is a function already; put @app.cron above @app.function, not below")
        name = name or handler.__name__
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigError(f"function {name!r}: retry={retry!r} must be a Retry, like Retry('30s', '5m')")
        if priority is not None and priority not in PRIORITIES:
            raise ConfigError(f"function {name!r}: priority={priority!r} must be from -600 to 600")
        return specify(
            handler,
            name=name,
            queue=None if queue is None else config.queue_name(queue),
            retry=retry,
            timeout=_finite(timeout, name, "timeout"),
            priority=priority,
            version=version,
            start_timeout=_finite(start_timeout, name, "start_timeout"),
            finish_timeout=_finite(finish_timeout, name, "finish_timeout"),
            lifecycle=ends_of(lifecycle, what=f"function {name!r}"),
            on_failure=self._for_failures(on_failure, name),
            cancel_on=cancelling(cancel_on, what=f"function {name!r}"),
        )

    def _for_failures(self, function: Function[..., Any] | str | None, name: str) -> str | None:
        """The name of the function that is started when a run has failed; a worker that starts knows whether it is
        there."""
        if function is None or (isinstance(function, str) and function):
            return function
        if not isinstance(function, Function):
            raise ConfigError(f"function {name!r}: on_failure={function!r} is no function; declare it, or name one")
        if self.registry.get(function.name) is not function.spec:
            raise ConfigError(f"function {name!r}: on_failure={function.name!r} belongs to another app; name it")
        return function.name

    def cron(
        self,
        expression: str,
        /,
        *,
        tz: str = "UTC",
        name: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - what it is called everywhere
        missed: str = "once",
        catch_up: Duration = "1d",
        jitter: Duration = 0,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        version: str | None = None,
    ) -> Callable[[Callable[P, R]], Function[P, R]]:
        """Declares a function that is started by a schedule, or puts a declared one on a schedule.

        >>> app = App("sqlite:///radio.db")
        >>> @app.cron("0 3 * * *", tz="Europe/Paris")
        ... async def clean_up(): ...
        """
        options = {"queue": queue, "retry": retry, "timeout": timeout, "priority": priority, "version": version}
        given = {option: value for option, value in options.items() if value is not None}

        def schedule(handler: Callable[P, R]) -> Function[P, R]:
            function = self._scheduled(handler, name, given)
            planned = plan(
                function.spec,
                expression,
                name=name or function.name,
                tz=tz,
                given=input,
                missed=missed,
                catch_up=catch_up,
                jitter=jitter,
                limit=self.settings.input_limit,
            )
            self.registry.add_schedule(planned, function.spec)
            return function

        return schedule

    def _scheduled(self, handler: Callable[P, R], name: str | None, options: dict[str, Any]) -> Function[P, R]:
        """The function that a schedule is for. It is added together with the schedule, if it is new."""
        if not isinstance(handler, Function):
            if not callable(handler):
                raise ConfigError(f"@app.cron: {handler!r} is neither a handler nor what @app.function gave")
            return Function(self._specify(handler, name=name, **options), self.runs)
        if self.registry.get(handler.name) is not handler.spec:
            raise ConfigError(f"function {handler.name!r} belongs to another app; declare its schedules there")
        if options:
            raise ConfigError(f"function {handler.name!r} is declared already; give {min(options)}= to @app.function")
        return handler

    def subscribe(
        self,
        glob: str,
        function: Function[..., Any] | str,
        /,
        *,
        filter: str | None = None,  # noqa: A002 - what it is called everywhere
        map: Mapping[str, Any] | None = None,  # noqa: A002
        name: str | None = None,
        ordered: bool = False,
        enabled: bool = True,
        start_at: StartAt = "now",
    ) -> None:
        """Declares that events start a function: those that the glob means and the filter accepts, with the input that
        the mapper makes of them, or with their payload.

        >>> app = App("sqlite:///radio.db")
        >>> @app.function
        ... async def reprice(sku: str): ...
        >>> app.subscribe("price.*", reprice, filter="event.payload.delta > 5", map={"sku": "$.entity_id"})
        """
        spec = self._subscribed(function)
        called = function if isinstance(function, str) else function.name
        module = sys._getframe(1).f_globals.get("__name__", "")
        declared = subscription(
            glob,
            called,
            spec.input.schema if spec else None,
            filter=filter,
            map=map,
            name=name,
            ordered=ordered,
            enabled=enabled,
            start_at=start_at,
            origin=origin_of(spec, called, module),
        )
        self.registry.add_subscriptions([declared])

    def _subscribed(self, function: Function[..., Any] | str) -> FunctionSpec | None:
        """The function that a subscription starts, unless others declare it, or it is declared later."""
        if isinstance(function, str):
            return self.registry.get(function)
        if not isinstance(function, Function):
            raise ConfigError(f"app.subscribe: {function!r} is no function; declare it with @app.function, or name one")
        if self.registry.get(function.name) is not function.spec:
            raise ConfigError(f"function {function.name!r} belongs to another app; subscribe it there, or by its name")
        return function.spec

    def drainer(
        self, name: str, /, *, on: str = "**", start_at: StartAt = "beginning", batch: int = PAGE
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares a handler of events, which gets those that the glob means, in order and in batches, with a
        transaction in which its effects and the drainer's position are committed together.

        >>> app = App("sqlite:///radio.db")
        >>> @app.drainer("billing", on="invoice.*")
        ... async def billing(tx, events):
        ...     await tx.execute("update totals set invoices = invoices + $1", len(events))
        """

        def drain(handler: Callable[..., Any]) -> Callable[..., Any]:
            self.registry.add_drainer(specify_drainer(handler, name=name, on=on, start_at=start_at, batch=batch))
            return handler

        return drain

    def middleware(self, around: Middleware) -> Middleware:
        """Declares what goes around every handler: `async def timed(run, call_next): return await call_next()`."""
        if not inspect.iscoroutinefunction(around):
            raise ConfigError(f"middleware {around!r} must be `async def name(run, call_next)`")
        self.registry.middleware.append(around)
        return around

    def lifespan(self, generator: Callable[[], AsyncIterator[Mapping[str, Any]]]) -> Callable[[], Any]:
        """Declares resources that live as long as a worker: an async generator that yields a mapping, seen as
        `run.resources`."""
        if not inspect.isasyncgenfunction(generator):
            raise ConfigError(f"lifespan {generator!r} must be an `async def` that yields a mapping once")
        self.registry.lifespans.append(asynccontextmanager(generator))
        return generator

    # --- enqueuing

    async def enqueue(self, function: str, given: Mapping[str, Any] | None = None, /, **options: Any) -> Handle:
        """Enqueues a run by the function's name, which a worker elsewhere may have declared."""
        source = options.pop("source", "api")
        value = () if given is None else (given,)
        return await self.runs.enqueue(function, value, {}, NO_OPTIONS.changed(**options), source=source)

    async def enqueue_many(self, function: str, inputs: Iterable[Mapping[str, Any]], /, **options: Any) -> list[Handle]:
        """Enqueues many runs by the function's name, all or none."""
        source = options.pop("source", "api")
        return await self.runs.enqueue_many(function, inputs, NO_OPTIONS.changed(**options), source=source)

    # --- recording

    def event(self, type: str, payload: Any = None, /) -> Any:  # noqa: A002 - what it is called everywhere
        """Declares what the payloads of a type of events look like: a struct, dataclass, TypedDict, pydantic model or
        any other type. Others are refused at the door. Also as a decorator of the payload's class.

        >>> app = App("sqlite:///radio.db")
        >>> app.event("price.changed", dict[str, float])
        dict[str, float]
        """
        if payload is None:
            return lambda payload: self.event(type, payload)
        self.registry.add_event(event_type(type), payload_type(payload, name=type))
        return payload

    async def record(
        self,
        type: str,  # noqa: A002 - what it is called everywhere
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
        """Records an event; answers its id, or that of the event that has its idempotency key. With `ordered` it holds
        the entity's lock until the commit, so that whoever asks for the same comes after it."""
        options = RecordOptions(entity, idempotency_key, caused_by, source, occurred_at, ordered)
        return await self.events.record(type, payload, options, conn=conn)

    async def record_many(
        self,
        type: str,  # noqa: A002 - what it is called everywhere
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
        """Records many events of a type, all or none: each is a mapping with `payload` and what `record` takes by name.
        What is given here goes for all that do not say otherwise. Answers their ids in the order given."""
        options = RecordOptions(entity, None, caused_by, source, occurred_at, ordered)
        return await self.events.record_many(type, events, options, conn=conn)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Tx]:
        """The user's statements and `tx.enqueue` in one transaction, committed at the end of the block, or rolled
        back."""
        async with self._site.store() as store, store.begin() as transaction:
            yield Tx(transaction, self._site.door, store.views)
            await transaction.commit()

    # --- life

    async def __aenter__(self) -> Self:
        await self._site.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._site.close()

    def migrations(self) -> Migrations:
        """The schema's steps, for `ostinato migrate`."""
        return make_store(self.settings).migrations()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Worker]:
        """A worker in the current event loop, for the block."""
        async with self._site.store() as store:
            worker = self._make_worker(store)
            with self._observed(worker):
                task = asyncio.create_task(worker.run(), name="ostinato worker")
                started = asyncio.create_task(worker.started.wait())
                try:
                    await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
                    if task.done():
                        await task
                    yield worker
                finally:
                    started.cancel()
                    if not worker.stopping:
                        worker.stop()
                    await task

    async def run_worker(self, *, handle_signals: bool = True) -> None:
        """Works until SIGTERM or SIGINT: the first drains for the grace period, the second gives everything back at
        once."""
        async with self._site.store() as store:
            worker = self._make_worker(store)
            with suppress(
                NotImplementedError, RuntimeError
            ):  # not on the main thread: the caller stops us by cancelling
                if handle_signals:
                    for number in (signal.SIGTERM, signal.SIGINT):
                        asyncio.get_running_loop().add_signal_handler(number, worker.stop)
            with self._observed(worker):
                await worker.run()

    # --- being looked at

    @property
    def metrics(self) -> Metrics:
        """What happens in this process from now on, and how much waits, as a collector for any Prometheus registry:
        `prometheus_client.REGISTRY.register(app.metrics)`."""
        if self._metrics is None:
            self._metrics = make_metrics(self._site)
        return self._metrics

    def serve_metrics(
        self, worker: Worker, *, port: int | None = None, host: str | None = None, loop_limit: Duration = 10.0
    ) -> AbstractContextManager[MetricsServer]:
        """Answers /metrics, /livez, /readyz and /healthz for a worker of this event loop, for the block.

        Port and host are those of the settings if not given; port 0 is any that is free. A worker whose event loop
        has not answered for `loop_limit` is not alive.
        """
        metrics = self.metrics
        from .observability.server import serving

        return serving(
            metrics,
            worker,
            self.telemetry,
            host=host or self.settings.metrics_host,
            port=port if port is not None else self.settings.metrics_port or 0,
            loop_limit=seconds(loop_limit, what="loop_limit"),
        )

    def _observed(self, worker: Worker) -> AbstractContextManager[object]:
        return nullcontext() if self.settings.metrics_port is None else self.serve_metrics(worker)

    def _make_worker(self, store: Store, kind: type[Worker] = Worker) -> Worker:
        if not self._logged:
            log_to(logger, self.telemetry)
            self._logged = True
        return kind(store, self.registry, self.settings, self.telemetry, door=self._site.door, adapt=caller_of)


def _finite(timeout: Duration | None, name: str, option: str) -> float | None:
    if timeout is None:
        return None
    if not (amount := seconds(timeout, what=f"{option} of {name!r}")):
        raise ConfigError(f"function {name!r}: {option}={timeout!r} must be longer than zero")
    return amount


def make_metrics(site: Site) -> Metrics:
    try:
        from .observability.metrics import Metrics
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise ConfigError("metrics need prometheus-client: pip install 'ostinato[metrics]'") from error
    return Metrics(site)


def make_store(settings: Settings) -> Store:
    """The store that the URL names. This is the only place that knows which there are."""
    if settings.dialect == "postgresql":
        try:
            from .store.postgres import PostgresStore
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise ConfigError("PostgreSQL needs asyncpg: pip install 'ostinato[postgres]'") from error
        return PostgresStore(
            settings.url, schema=settings.schema, listen_url=settings.listen_url, notify=settings.notify
        )
    from .store.sqlite import SqliteStore

    return SqliteStore(settings.url, schema=settings.schema, notify=settings.notify)
