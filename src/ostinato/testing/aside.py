"""Coroutines for code that may be inside an event loop and cannot await."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def aside(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, in a thread with a loop of its own, since the caller may be inside a loop."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that the caller is inside of."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
