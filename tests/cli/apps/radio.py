"""A small application for the tests of the command line. Its database is given by flags or the environment."""

from __future__ import annotations

import asyncio
from typing import Any

from ostinato import App, Fatal, Queue, Retry, Run

app = App(queues={"default": Queue(7, max_waiting=1000), "mail": 3}, lease="20s")


@app.function(retry=Retry("0s"))
async def greet(name: str, times: int = 1) -> str:
    if name == "nobody":
        raise ValueError("nobody is there")
    return " ".join([f"hello {name}"] * times)


@app.function(queue="mail")
async def refuse(run: Run) -> None:
    raise Fatal("we do not do that")


@app.function(timeout="60s")
async def linger(seconds: float) -> dict[str, Any]:
    """Takes its time. Tests wait for what it logs and for how it ends, never for the time."""
    await asyncio.sleep(seconds)
    return {"lingered": seconds}
