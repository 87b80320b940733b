"""Where an app's verbs are carried out: its store in the current event loop, and what goes with it.

Connections belong to an event loop and to a process. So each loop has a store of its own; it is opened by `async with
app` and kept until the end of the block, or opened for one call and closed after it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from ..config import Settings
from ..store.ports import Caller, Store
from ..telemetry import Telemetry
from .door import Door
from .registry import Registry
from .results import Results


class _Here:
    """An open store of one event loop, and how many hold it open."""

    def __init__(self, store: Store, results: Results) -> None:
        self.store = store
        self.results = results
        self.holders = 0
        self.opening = asyncio.create_task(store.open(), name="ostinato opening")


class Site:
    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        telemetry: Telemetry,
        *,
        make_store: Callable[[], Store],
        adapt: Callable[[object], Caller],
    ) -> None:
        self.settings, self.registry, self.telemetry, self.adapt = settings, registry, telemetry, adapt
        self.door = Door(registry, input_limit=settings.input_limit)
        self._make_store = make_store
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Here] = WeakKeyDictionary()
        self._process = os.getpid()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """The store of this event loop, open for the block."""
        here = await self._enter()
        try:
            yield here.store
        finally:
            await self._leave(here)

    def opened(self) -> Store | None:
        """The store of this event loop, if something holds it open: what `async with app` makes cheap."""
        here = self._places.get(asyncio.get_running_loop())
        if here is None or self._process != os.getpid() or not here.opening.done():
            return None
        return here.store

    def results(self) -> Results:
        """Those who wait for results in this event loop, inside `store()`."""
        return self._places[asyncio.get_running_loop()].results

    async def _enter(self) -> _Here:
        if self._process != os.getpid():  # forked: the parent's connections are not ours
            self._process, self._places = os.getpid(), WeakKeyDictionary()
        loop = asyncio.get_running_loop()
        if (here := self._places.get(loop)) is None:
            store = self._make_store()
            here = self._places[loop] = _Here(store, Results(store, self.telemetry, notify=self.settings.notify))
        here.holders += 1
        try:
            await asyncio.shield(here.opening)  # who is cancelled meanwhile does not take the others along
        except BaseException:
            await self._leave(here)
            raise
        return here

    async def _leave(self, here: _Here) -> None:
        here.holders -= 1
        if here.holders == 0:
            self._places.pop(asyncio.get_running_loop(), None)
            here.opening.cancel()
            await asyncio.wait([here.opening])
            await here.results.close()
            await here.store.close()
