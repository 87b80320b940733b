"""A function that takes its worker down, and healthy ones beside it."""

from __future__ import annotations

import asyncio
import os

from ostinato import App, Retry, Run
from tests.system.log import tell

app = App()


@app.function(retry=Retry("0s", "0s"))
async def kill(run: Run) -> None:
    """Ends its process at its start."""
    tell("killing", attempt=run.attempt)
    os._exit(1)


@app.function
async def heal(item: int) -> None:
    tell("healing", item=item)
    await asyncio.sleep(0.005)


@app.function(retry=Retry.none())
async def heal_once(item: int) -> None:
    """Must not be started a second time."""
    tell("healing once", item=item)
    await asyncio.sleep(0.005)
