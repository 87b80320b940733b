"""The drainers that an app declares: what `@app.drainer` says is checked here, and how its handler gets events."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ...clock import utc
from ...errors import ConfigError
from ...model.drainer import BUILT_IN
from ...model.event import WORKFLOW_RUNNER, Event, Page, Position
from ...model.glob import GlobIndex, checked
from ...model.schedule import micros
from ...store.ports import DeclaredDrainer, Store, Transaction
from ...telemetry import Telemetry
from ..blocking import BlockingTx
from ..door import Door
from ..registry import DrainerSpec, Registry, StartAt
from ..threads import Threads, adopt, in_context
from ..transaction import Tx
from .dispatching import Dispatcher
from .draining import PAGE, Consumed, Draining, Ring

T = TypeVar("T")

LONGEST_NAME = 200


# --- declaring ------------------------------------------------------------------------------------------------------


def specify_drainer(handler: Any, *, name: str, on: str, start_at: StartAt, batch: Any) -> DrainerSpec:
    """A drainer from its declaration."""
    what = f"drainer {name!r}"
    check_name(name)
    if not callable(handler) or inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigError(f"{what}: {handler!r} must be a function, like `async def {name}(tx, events)`")
    _check_signature(handler, what)
    if not isinstance(batch, int) or isinstance(batch, bool) or not 0 < batch <= 10 * PAGE:
        raise ConfigError(f"{what}: batch={batch!r} must be a number of events from 1 to {10 * PAGE}")
    return DrainerSpec(
        name=name,
        glob=_glob(on, what),
        handler=handler,
        start_at=check_start(start_at, what),
        batch=batch,
        is_async=inspect.iscoroutinefunction(handler),
        origin=f"{handler.__module__}:{getattr(handler, '__qualname__', name)}",
    )


def check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ConfigError(f"a drainer's name must have 1 to {LONGEST_NAME} printable characters, and is {name!r}")
    if name == WORKFLOW_RUNNER:
        raise ConfigError(f"{WORKFLOW_RUNNER!r} is the drainer that is built in; give yours another name")


def check_start(start_at: object, what: str) -> StartAt:
    if isinstance(start_at, datetime):
        return utc(start_at, what=f"{what}: start_at")
    if start_at in ("beginning", "now"):
        return start_at
    raise ConfigError(f"{what}: start_at={start_at!r} must be 'beginning', 'now' or a datetime")


def _glob(on: object, what: str) -> str:
    if not isinstance(on, str):
        raise ConfigError(f"{what}: on={on!r} must be a glob over event types, like 'invoice.*' or '**'")
    try:
        return checked(on)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def _check_signature(handler: Callable[..., Any], what: str) -> None:
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            f"{what}: its handler is called with the transaction and the events, and {error}; "
            "write `async def name(tx, events)`"
        ) from error


async def declare(store: Store, specs: Iterable[DrainerSpec]) -> None:
    """Writes down the built-in drainer and these, and where those begin that are new."""
    built_in = DeclaredDrainer(WORKFLOW_RUNNER, "**", BUILT_IN, (await store.place()).beginning.text())
    declared = [await _declared(store, spec) for spec in specs]
    await store.declare_drainers([built_in, *declared])


async def _declared(store: Store, spec: DrainerSpec) -> DeclaredDrainer:
    """One that is there keeps its position, so none needs to be looked for."""
    start_at: StartAt = "beginning" if await store.knows_drainer(spec.name) else spec.start_at
    start = await beginning_at(store, start_at)
    return DeclaredDrainer(spec.name, spec.glob, spec.origin, start.text())


async def beginning_at(store: Store, start_at: StartAt) -> Position:
    """Where one begins to read who wants what was recorded from a moment on."""
    if isinstance(start_at, datetime):
        return await store.position_at(micros(start_at))
    place = await store.place()
    return place.now if start_at == "now" else place.beginning


def drainings(
    store: Store, registry: Registry, door: Door, telemetry: Telemetry, *, ring: Ring | None = None
) -> list[Draining]:
    """The built-in drainer, and those that an app declares; `ring` is told where runs were started."""
    dispatcher = Dispatcher(store, door, registry.functions)
    declared = [
        Draining(store, spec.name, Handled(spec, store, door), telemetry, batch=spec.batch)
        for spec in registry.drainers.values()
    ]
    return [Draining(store, WORKFLOW_RUNNER, dispatcher, telemetry, ring=ring), *declared]


# --- handlers -------------------------------------------------------------------------------------------------------


class Handled:
    """Gives a handler the events that its glob means, with a transaction in which its effects and the drainer's next
    position are committed together."""

    def __init__(self, spec: DrainerSpec, store: Store, door: Door) -> None:
        self._spec, self._store, self._door = spec, store, door
        self._index = GlobIndex([(spec.glob, True)])

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def consume(self, transaction: Transaction, page: Page) -> Consumed:
        if events := [event for event in page.events if self._concerns(event)]:
            tx = Tx(transaction, self._door, self._store.views)
            try:
                await self._call(tx, events)
            finally:
                tx.close()
        return Consumed()

    async def reach(self, transaction: Transaction, events: Sequence[Event]) -> int:
        return next((place for place, event in enumerate(events) if self._concerns(event)), len(events)) or 1

    def _concerns(self, event: Event) -> bool:
        return any(self._index.find(event.type))

    async def _call(self, tx: Tx, events: list[Event]) -> None:
        handler = self._spec.handler
        if self._spec.is_async:
            await handler(tx, events)
            return
        threads, loop = Threads(), asyncio.get_running_loop()

        def wait(work: Coroutine[Any, Any, T]) -> T:
            result, context = asyncio.run_coroutine_threadsafe(in_context(work), loop).result()
            adopt(context)
            return result

        try:
            await threads.call(lambda: handler(BlockingTx(tx, wait), events))
        finally:
            threads.close()
