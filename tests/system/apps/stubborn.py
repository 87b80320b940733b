"""Handlers that go on although they were told to stop, and write."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ostinato import App, Run
from tests.system.apps.items import LEAVE_A_ROW
from tests.system.gates import passed
from tests.system.log import tell

app = App()

WAYS = ("return", "transaction", "raise")


@app.function
async def finish(run: Run, item: int) -> str:
    """Ends in one of three ways: told to stop it does so at once, and else when the gate is open."""
    tell("holding", item=item, lease_no=run.lease_no)
    with suppress(asyncio.CancelledError):
        await passed("go")
    way = WAYS[item % len(WAYS)]
    if way == "transaction":
        async with run.transaction() as tx:
            await tx.execute(LEAVE_A_ROW, run.id, item, run.lease_no)
    if way == "raise" and run.lease_no == 1:
        raise RuntimeError("only the first claim fails")
    return f"claim {run.lease_no}"
