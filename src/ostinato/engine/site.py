"""Where an app's verbs are carried out: its store in the current event loop, and what goes with it.

Connections belong to an event loop and to a process. So each loop has a store of its own; it is opened by `async with
app` and kept until the end of the block, or opened for one call and closed after it. A forked child begins with none.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from ..config import Settings
from ..errors import OstinatoError
from ..model.change import Change, Committed
from ..store.ports import Caller, Store
from ..telemetry import Telemetry
from .door import Door
from .registry import Registry
from .results import Results
from .threads import at_once

T = TypeVar("T")


class _Here:
    """An open store of one event loop, and how many hold it open."""

    def __init__(self, store: Store, results: Results) -> None:
        self.store = store
        self.results = results
        self.holders = 0
        self.is_open = False
        self.opening = asyncio.create_task(store.open(), name="ostinato opening")

    async def close(self) -> None:
        if not self.opening.done():
            self.opening.cancel()
            await asyncio.wait([self.opening])
        await self.results.close()
        await self.store.close()


class _CallersStore:
    """A store that is never opened: all it does is done on callers' own connections, and needs no event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.views = self

    async def apply_on(self, caller: Caller, changes: Sequence[Change]) -> Committed:
        return await self._store.apply_on(caller, changes)

    async def function_names(self) -> list[str]:
        """Nobody can be asked; the names that the app itself knows must do."""
        return []


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
        self._inline: _CallersStore | None = None
        self._start_over()
        _SITES.add(self)

    def _start_over(self) -> None:
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Here] = WeakKeyDictionary()
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncExitStack]] = WeakKeyDictionary()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """The store of this event loop, open for the block.

        When a loop ends inside the block, as `asyncio.run` ends one, it closes this generator, and so the store.
        """
        if _inlining.get() is self:
            yield self._callers_store()
            return
        here = await self._enter()
        try:
            yield here.store
        finally:
            await self._leave(here)

    async def open(self) -> None:
        """Holds the store of this event loop open until `close`, or until the loop ends."""
        stack = AsyncExitStack()
        await stack.enter_async_context(self.store())
        self._held.setdefault(asyncio.get_running_loop(), []).append(stack)

    async def close(self) -> None:
        """Lets go of the store of this event loop."""
        if not (held := self._held.get(asyncio.get_running_loop())):
            raise OstinatoError(
                "the app is not open in this event loop, or was closed before; use `async with app:`, in one loop"
            )
        await held.pop().aclose()

    def opened(self) -> Store | None:
        """The store of this event loop, if something holds it open: what `async with app` makes cheap."""
        if _inlining.get() is self:
            return self._callers_store()
        here = self._places.get(asyncio.get_running_loop())
        return here.store if here is not None and here.is_open else None

    def new_store(self) -> Store:
        """A store that nobody has opened, for who looks at a database with something wrong."""
        return self._make_store()

    def results(self) -> Results:
        """Those who wait for results in this event loop, inside `store()`."""
        return self._places[asyncio.get_running_loop()].results

    def inline(self, work: Coroutine[Any, Any, T]) -> T:
        """Carries out a verb with a sync `conn=` on the calling thread, whether that has an event loop or not."""
        token = _inlining.set(self)
        try:
            return at_once(work)
        finally:
            _inlining.reset(token)

    # --- places

    async def _enter(self) -> _Here:
        loop = asyncio.get_running_loop()
        if (here := self._places.get(loop)) is None:
            self._forget_closed_loops()
            store = self._make_store()
            here = self._places[loop] = _Here(store, Results(store, self.telemetry, notify=self.settings.notify))
        here.holders += 1
        try:
            await asyncio.shield(here.opening)  # who is cancelled meanwhile does not take the others along
            here.is_open = True
        except BaseException:
            await self._leave(here)
            raise
        return here

    async def _leave(self, here: _Here) -> None:
        here.holders -= 1
        if here.holders == 0:
            self._places.pop(asyncio.get_running_loop(), None)
            try:
                await here.close()
            except asyncio.CancelledError:
                await here.close()  # what is left: who is cancelled twice, as at the end of a loop, leaves nothing open
                raise

    def _forget_closed_loops(self) -> None:
        """Those that were closed by hand while the app was open: what they left behind cannot be closed any more."""
        for loop in [loop for loop in list(self._places) if loop.is_closed()]:
            self._places.pop(loop, None)
            self._held.pop(loop, None)

    def _callers_store(self) -> Store:
        self._inline = self._inline or _CallersStore(self._make_store())
        return self._inline  # type: ignore[return-value]

    # --- forks

    def after_fork_in_child(self) -> None:
        """The parent's connections are not ours."""
        keep_for_ever((self._places, self._held))
        self._start_over()


_SITES: WeakSet[Site] = WeakSet()
_inlining: ContextVar[Site | None] = ContextVar("ostinato_inline", default=None)
"""The site whose verb is being carried out without an event loop."""


def keep_for_ever(inherited: object) -> None:
    """Has something of the parent's never collected in a forked child, not even at exit.

    A connection or an event loop that is collected takes its sockets out of its selector, and an epoll is shared with
    the parent: there, nothing would be heard from them any more.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _after_fork_in_child() -> None:
    for site in list(_SITES):
        site.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
