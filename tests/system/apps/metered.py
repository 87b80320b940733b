"""Handlers that end in every way there is, in a worker that can be asked for its metrics until the test lets it go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec import structs

from ostinato import App, Cancel, Fatal, Retry, Run
from ostinato.telemetry import Event, LeaseRenewed, MetricsServed, NotificationReceived, RunGivenBack
from tests.system.gates import passed
from tests.system.log import tell

app = App()


def _tell(event: Event) -> None:
    tell(type(event).__name__, **structs.asdict(event))


for kind in (LeaseRenewed, MetricsServed, NotificationReceived, RunGivenBack):
    app.telemetry.subscribe(kind, _tell)


@app.lifespan
async def last_word() -> AsyncIterator[dict[str, Any]]:
    """The worker has stopped, and what it counted can still be read."""
    yield {}
    await passed("end")


@app.function
async def succeed() -> None: ...


@app.function(retry=Retry("0s", "0s"))
async def flaky(run: Run) -> None:
    """Succeeds at the third attempt."""
    if run.attempt < 3:
        raise RuntimeError("not yet")


@app.function(retry=Retry("0s"))
async def doomed() -> None:
    raise RuntimeError("never")


@app.function
async def refuse() -> None:
    raise Fatal("we do not do that")


@app.function
async def unwanted() -> None:
    raise Cancel("not today")


@app.function
async def listen(run: Run, gate: str) -> None:
    """Works until the gate is open."""
    tell("listening", run=run.id, lease_no=run.lease_no)
    await passed(gate)


@app.function(retry=Retry.none())
async def once(run: Run, gate: str) -> None:
    """The same, and may start once only."""
    tell("listening", run=run.id, lease_no=run.lease_no)
    await passed(gate)
