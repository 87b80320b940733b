"""Work on items: some that log it, some that leave a row."""

from __future__ import annotations

from ostinato import App, Run
from tests.system.gates import passed
from tests.system.log import tell

app = App()

LEAVE_A_ROW = "insert into effects (run_id, item, lease_no) values ($1, $2, $3)"


@app.function
async def work(run: Run, item: int) -> int:
    """Logs the item."""
    tell("worked", run=run.id, item=item)
    return item * 2


@app.function
async def hold(run: Run, item: int) -> None:
    """Waits at the gate."""
    tell("holding", run=run.id, item=item, lease_no=run.lease_no)
    await passed("go")


@app.function
async def write(run: Run, item: int) -> int:
    """Leaves a row, together with its completion."""
    async with run.transaction() as tx:
        await tx.execute(LEAVE_A_ROW, run.id, item, run.lease_no)
    return item


@app.function
async def write_and_hold(run: Run, item: int) -> None:
    """Leaves a row, and waits at the gate before it can be committed, if this is the first start."""
    async with run.transaction() as tx:
        await tx.execute(LEAVE_A_ROW, run.id, item, run.lease_no)
        tell("written", run=run.id, lease_no=run.lease_no)
        if run.attempt == 1:
            await passed("go")
