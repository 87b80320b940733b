"""Handlers that are asked to stop, and say why."""

from __future__ import annotations

import asyncio
import time

from ostinato import App, Retry, Run
from tests.system.gates import passed, passed_blocking
from tests.system.log import tell

app = App()


@app.function
async def listen(run: Run) -> str:
    """Works until the gate is open; asked to stop, it says why, and stops."""
    tell("listening", run=run.id, attempt=run.attempt)
    try:
        await passed("go")
    except asyncio.CancelledError:
        tell("stopping", run=run.id, why=run.stopping)
        raise
    return "finished"


@app.function
def listen_in_a_thread(run: Run) -> str:
    """The same as a plain function, which cannot be interrupted: it looks for itself."""
    tell("listening", run=run.id, attempt=run.attempt)
    while run.stopping is None:
        time.sleep(0.005)
    tell("stopping", run=run.id, why=run.stopping)
    return "finished"


@app.function
def ignore_everything(run: Run) -> str:
    """A plain function that never looks up."""
    tell("listening", run=run.id, attempt=run.attempt)
    if run.attempt == 1:
        passed_blocking("never")
    return "finished"


@app.function(retry=Retry("0s"), timeout="500ms")
async def block(run: Run) -> str:
    """Holds the event loop at its first start, so that nothing in its process can end it."""
    tell("blocking", run=run.id, lease_no=run.lease_no)
    if run.lease_no == 1:
        passed_blocking("never")
    return "finished"


@app.function(retry=Retry.none(), timeout="300ms")
async def linger(run: Run) -> None:
    """Swallows its cancellation and goes on."""
    tell("lingering", run=run.id)
    try:
        await passed("never")
    except asyncio.CancelledError:
        tell("stopping", run=run.id, why=run.stopping)
    await passed("go")
    tell("lingered", run=run.id)


@app.function(retry=Retry.none(), timeout="300ms")
async def fail_in_time(run: Run, delay: float) -> None:
    """Fails at about the moment of its timeout."""
    await asyncio.sleep(delay)
    raise RuntimeError("just in time")


@app.function
async def quick() -> None: ...


@app.function(retry=Retry.none())
async def quick_once() -> None:
    tell("started once")


@app.function
async def compute(run: Run, seconds: float) -> None:
    """Keeps the event loop busy, and the interpreter too."""
    tell("computing", run=run.id, lease_no=run.lease_no)
    _compute(seconds)


@app.function
def compute_in_a_thread(run: Run, seconds: float) -> None:
    tell("computing", run=run.id, lease_no=run.lease_no)
    _compute(seconds)


def _compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))
