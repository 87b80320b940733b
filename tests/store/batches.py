"""Asking SQLite's writer for several things at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from ostinato.store.ports import Store

T = TypeVar("T")


async def together(store: Store, *commits: Any) -> list[Any]:
    """The answers to what was asked for while the writer was busy, and which is therefore one batch."""
    async with store.begin():
        tasks = [outside(commit) for commit in commits]
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


def outside(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that does not know of the transaction around it, like those of other people."""
    return asyncio.create_task(work, context=Context())
