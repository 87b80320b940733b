"""One pass of a drainer: take its row, read a page, have it dealt with, and move on, all in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from ..errors import StoreError
from ..model.change import Change, CursorMoved
from ..model.event import Page
from ..shield import shielded
from ..store.ports import Store, Transaction

PAGE = 1000


class Trigger(NamedTuple):
    """A run that an event has started."""

    event_id: str
    subscription: str
    run_id: str


class Drained(Struct, frozen=True):
    """What one call of a drainer did."""

    processed: int = 0
    triggered: Sequence[Trigger] = ()
    parked: int = 0
    halted_on_event_id: str | None = None
    error: str | None = None
    skipped_due_to_lock: bool = False

    def __add__(self, later: Drained) -> Drained:
        return Drained(
            self.processed + later.processed,
            [*self.triggered, *later.triggered],
            self.parked + later.parked,
            later.halted_on_event_id,
            later.error,
            self.skipped_due_to_lock or later.skipped_due_to_lock,
        )


class Consumed(NamedTuple):
    """What follows from the events of a page: changes that go into the same commit as the drainer's next position."""

    changes: Sequence[Change] = ()
    triggers: Sequence[Trigger] = ()
    """Runs as asked for; one that was started before stands for its event already."""
    parked: int = 0


class Halted(Exception):  # noqa: N818 - it is not the drainer's error
    """A consumer could not deal with a page; with which event, if there was only one."""

    def __init__(self, page: Page, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.event_id = page.events[0].id if len(page.events) == 1 else None


class Consumer(Protocol):
    """Deals with events. What it does to the database it does in the transaction, or as changes."""

    async def consume(self, transaction: Transaction, page: Page) -> Consumed: ...


async def drain_page(store: Store, name: str, consumer: Consumer, *, limit: int = PAGE) -> Drained:
    """One pass. Nothing is done, and the drainer does not move, if it raises."""
    async with store.draining(name, limit) as taken:
        if taken is None:
            return Drained(skipped_due_to_lock=True)
        transaction, page = taken
        try:
            consumed = await consumer.consume(transaction, page) if page.events else Consumed()
            moved = CursorMoved(name, page.end.text(), len(page.events))
            committed = await transaction.apply([*consumed.changes, moved] if page.events else [])
        except StoreError:
            raise
        except Exception as error:
            raise Halted(page, error) from error
        await shielded(transaction.commit())
    started = [trigger for trigger in consumed.triggers if trigger.run_id not in committed.existing]
    return Drained(len(page.events), started, consumed.parked)
