"""Passes of a drainer: take its row, read a page, have it dealt with, and move on, all in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from ...errors import StoreError
from ...model.change import Change, CursorMoved, RunInserted
from ...model.drainer import Drained, Trigger
from ...model.event import Event, Page
from ...shield import shielded
from ...store.ports import Store, Transaction
from ...telemetry import DrainerHalted, EventsDrained, Telemetry

PAGE = 1000

Reach = Callable[[Transaction, Sequence[Event]], Awaitable[int]]
Ring = Callable[[str], None]


class Consumed(NamedTuple):
    """What follows from the events of a page: changes that go into the same commit as the drainer's next position."""

    changes: Sequence[Change] = ()
    triggers: Sequence[Trigger] = ()
    """Runs as asked for; one that was started before stands for its event already."""
    parked: int = 0


class Halted(Exception):
    """A consumer could not deal with a page; with which event, if only one concerned it."""

    def __init__(self, page: Page, error: Exception, *, alone: bool) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.event_id = page.events[-1].id if alone else None
        self.count = len(page.events)


class Consumer(Protocol):
    """Deals with events. What it does to the database it does in the transaction, or as changes."""

    async def consume(self, transaction: Transaction, page: Page) -> Consumed: ...


class Selective(Consumer, Protocol):
    """A consumer that knows which events concern it."""

    async def prepare(self) -> None:
        """Called before a pass, while nothing is held."""

    async def reach(self, transaction: Transaction, events: Sequence[Event]) -> int:
        """How many of the events to deal with at a time: one that concerns it, or those before the next that does."""


async def drain_page(
    store: Store,
    name: str,
    consumer: Consumer,
    *,
    limit: int = PAGE,
    reach: Reach | None = None,
    ring: Ring | None = None,
) -> Drained:
    """One pass; with `reach`, no further than that says. Nothing is done, and the drainer does not move, if it
    raises. `ring` is told the queues in which runs were started."""
    async with store.draining(name, limit) as taken:
        if taken is None:
            return Drained(skipped_due_to_lock=True)
        transaction, page = taken
        if reach is not None and page.events:
            page = page.first(await reach(transaction, page.events))
        try:
            consumed = await consumer.consume(transaction, page) if page.events else Consumed()
            moved = [CursorMoved(name, page.end.text(), len(page.events))] if page.end != page.start else []
            committed = await transaction.apply([*consumed.changes, *moved])
        except StoreError:
            raise
        except Exception as error:
            raise Halted(page, error, alone=reach is not None) from error
        await shielded(transaction.commit())
    if ring is not None:
        for queue in {change.queue for change in consumed.changes if isinstance(change, RunInserted) and change.queue}:
            ring(queue)
    started = [trigger for trigger in consumed.triggers if trigger.run_id not in committed.existing]
    return Drained(len(page.events), started, consumed.parked)


class Draining:
    """The passes of a drainer, one after the other.

    When dealing with a page fails, those of its events that concern the consumer are tried alone, so that the ones
    before the culprit are dealt with.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        consumer: Selective,
        telemetry: Telemetry,
        *,
        batch: int = PAGE,
        ring: Ring | None = None,
    ) -> None:
        self.name = name
        self._ring = ring
        self._store, self._consumer, self._telemetry, self._batch = store, consumer, telemetry, batch
        self._alone = 0
        """How many events are still to be tried alone."""

    async def step(self) -> Drained:
        """One pass. Raises `Halted` at the culprit."""
        reach = self._consumer.reach if self._alone else None
        await self._consumer.prepare()
        try:
            drained = await drain_page(
                self._store, self.name, self._consumer, limit=self._batch, reach=reach, ring=self._ring
            )
        except Halted as halted:
            if self._alone:
                raise
            self._alone = halted.count
            return await self.step()
        self._alone = max(0, self._alone - drained.processed)
        self._announce(drained)
        return drained

    async def to_the_end(self) -> Drained:
        """Until there is nothing left, or it halts, or another process drains."""
        total = Drained()
        while await self._store.undrained(self.name):
            try:
                drained = await self.step()
            except Halted as halted:
                await self.say_halted(halted.event_id, str(halted), delay=0.0)
                return total + Drained(halted_on_event_id=halted.event_id, error=str(halted))
            total += drained
            if drained.skipped_due_to_lock:
                return total
            if not drained.processed and not await self._store.undrained(self.name):
                return total + Drained(skipped_due_to_lock=True)  # another was faster
        return total

    async def say_halted(self, event_id: str | None, error: str, *, delay: float) -> None:
        """In the drainer's row, and to whoever listens here. Raises if the database cannot be told."""
        await self._store.halt(self.name, event=event_id, error=error, delay=delay)
        self._telemetry.announce(DrainerHalted(drainer=self.name, event_id=event_id, error=error, retry_in=delay))

    def _announce(self, drained: Drained) -> None:
        if drained.processed and self._telemetry.wants(EventsDrained):
            self._telemetry.announce(
                EventsDrained(
                    drainer=self.name,
                    processed=drained.processed,
                    triggered=len(drained.triggered),
                    parked=drained.parked,
                )
            )
