"""What the engine lends to every run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from ..store.ports import Caller, Store, Transaction
from ..telemetry import Telemetry
from .blocking import BlockingTx
from .door import Door
from .steps.desk import StepDesk
from .threads import Threads, waited
from .transaction import Tx

TRANSACTION_LIMIT = 5.0
"""Seconds that a transaction of a run may last, where that matters."""


class Tools:
    """What the engine lends to every run."""

    __slots__ = (
        "adapt",
        "desk",
        "door",
        "loop",
        "output_limit",
        "resources",
        "step_limit",
        "steps_limit",
        "store",
        "telemetry",
        "threads",
    )

    def __init__(
        self,
        store: Store,
        door: Door,
        adapt: Callable[[object], Caller],
        telemetry: Telemetry,
        *,
        output_limit: int,
        step_limit: int,
        steps_limit: int,
        resources: Mapping[str, Any],
    ) -> None:
        self.store, self.door, self.adapt, self.telemetry = store, door, adapt, telemetry
        self.output_limit, self.step_limit, self.steps_limit = output_limit, step_limit, steps_limit
        self.resources = resources
        self.loop = asyncio.get_running_loop()
        self.threads = Threads()
        self.desk = StepDesk(store, telemetry)

    def begin(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction of a run, which may not last long."""
        return self.store.begin(limit=TRANSACTION_LIMIT)

    @asynccontextmanager
    async def step_transaction(self) -> AsyncIterator[tuple[Transaction, Tx]]:
        """A transaction of a step, undone on leaving unless it was committed."""
        async with self.begin() as transaction:
            tx = Tx(transaction, self.door, self.store.views)
            try:
                yield transaction, tx
            finally:
                tx.close()

    def blocking(self, tx: Tx) -> BlockingTx:
        """The same for a function in a thread."""
        return BlockingTx(tx, lambda work: waited(work, self.loop))
