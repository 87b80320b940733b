"""For peers that do not say when their completions are durable: their tables are asked, once all handlers have run."""

import asyncio
from collections.abc import Awaitable, Callable

EVERY = 0.002


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Return as soon as the check holds, give or take two milliseconds."""
    while not await check():  # noqa: ASYNC110  (nobody sets an event)
        await asyncio.sleep(EVERY)
