"""What a user does in a transaction, written once for both colours."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ostinato import App
from ostinato.engine.threads import at_once
from ostinato.sync import Client
from tests.integrations.libraries import Held, Library

T = TypeVar("T")


async def done(answer: Any) -> Any:
    """What a call gave, awaited if it can be."""
    return await answer if inspect.isawaitable(answer) else answer


class Scene:
    """A user with a transaction open, who enqueues in it: by `await app…` in async code, by a Client in other."""

    def __init__(self, verbs: App | Client, held: Held) -> None:
        self._verbs = verbs
        self.held = held

    async def note(self, text: str) -> None:
        await done(self.held.note(text))

    async def enqueue(self, function: str = "mail", given: Any = None, /, **options: Any) -> Any:
        return await done(self._verbs.enqueue(function, given or {}, conn=self.held.conn, **options))

    async def enqueue_many(self, inputs: Any, **options: Any) -> Any:
        return await done(self._verbs.enqueue_many("mail", inputs, conn=self.held.conn, **options))

    async def record(self, payload: Any = None, **options: Any) -> Any:
        return await done(self._verbs.record("it.happened", payload, conn=self.held.conn, **options))

    async def record_many(self, events: Any, **options: Any) -> Any:
        return await done(self._verbs.record_many("it.happened", events, conn=self.held.conn, **options))

    async def commit(self) -> None:
        await done(self.held.commit())

    async def rollback(self) -> None:
        await done(self.held.rollback())

    async def savepoint(self) -> None:
        await done(self.held.savepoint())

    async def undo(self) -> None:
        await done(self.held.undo())


async def play(library: Library, app: App, work: Callable[[Scene], Coroutine[Any, Any, T]]) -> T:
    """Plays a scene where the library wants it: on the event loop, or on a thread of its own without one."""
    url = app.settings.url
    if library.is_async:
        async with library.open(url) as held:
            return await work(Scene(app, held))

    def on_a_thread() -> T:
        with library.open(url) as held, Client(app) as client:
            return at_once(work(Scene(client, held)))

    return await asyncio.to_thread(on_a_thread)
