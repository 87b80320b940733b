"""Reading events in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from ...model.event import Event, Page, Place, Position, Subscription
from .commits import Transaction
from .values import DeclaredDrainer


class Pass(NamedTuple):
    """A drainer that is ours until its transaction ends, and what it is to deal with next."""

    transaction: Transaction
    page: Page


class Bearings(NamedTuple):
    """What whoever starts runs from events must know to be up to date."""

    version: tuple[int, int]
    """Something that changes whenever a subscription does."""
    functions: Mapping[str, str | None]
    """Those that workers have declared, and which events cancel their runs, as JSON."""


class Ledger(Protocol):
    """Reading events in order. That they are recorded, and that a drainer moves on, are changes of commits."""

    def draining(self, name: str, limit: int) -> AbstractAsyncContextManager[Pass | None]:
        """The next events of a drainer in a transaction that holds it; None if another process holds it. Whoever
        commits the transaction moves the drainer in it."""

    async def undrained(self, name: str) -> bool:
        """Whether there is something to read for a drainer."""

    async def halt(self, name: str, *, event: str | None, error: str, delay: float) -> None:
        """Notes that a drainer could not go on, and when it tries again."""

    async def declare_drainers(self, drainers: Sequence[DeclaredDrainer]) -> None:
        """Writes down what a starting worker declares. A drainer that is there keeps its position."""

    async def declare_subscriptions(self, subscriptions: Sequence[Subscription], modules: Sequence[str] = ()) -> None:
        """Writes down what a starting worker declares. What an operator has switched off stays off. Others that code of
        the same modules had declared are noted as left over."""

    async def add_subscription(self, subscription: Subscription) -> bool:
        """False when there is one of the name."""

    async def switch_subscription(self, name: str, *, enabled: bool) -> bool:
        """False when it is so already, or there is none of the name."""

    async def remove_subscription(self, name: str) -> bool:
        """Removes a subscription and what is parked for it; False when there is none of the name."""

    async def caught_up(self, subscription: str, transaction: Transaction | None = None) -> None:
        """Notes that it was given what was in the ledger when it came; in the transaction, if one is given."""

    async def knows_drainer(self, name: str) -> bool: ...

    async def hold_drainer(self, transaction: Transaction, name: str) -> str | None:
        """Waits until nobody has the drainer, and keeps it from passing on until the transaction ends; answers where it
        is, as it is stored."""

    async def reset_drainer(self, name: str, position: Position) -> bool:
        """Puts a drainer elsewhere and wakes who drains; False when there is none of the name."""

    async def acknowledge(self, name: str, *, start: str, end: str, count: int) -> bool:
        """Moves a drainer on; False when it is not where its reader began any more."""

    async def remove_drainer(self, name: str) -> bool:
        """Forgets a drainer and how far it was; False when there is none of the name."""

    async def bearings(self, transaction: Transaction | None = None) -> Bearings:
        """As the transaction sees it, if one is given."""

    async def blocked(
        self, transaction: Transaction, subscriptions: Sequence[str], entities: Sequence[tuple[str, str]]
    ) -> set[tuple[str, tuple[str, str]]]:
        """Of these entities, those of which these subscriptions have events parked, as the transaction sees it."""

    async def parked_chain(
        self, transaction: Transaction, subscription: str, sequence_no: int, entity: tuple[str, str] | None
    ) -> list[Event]:
        """A parked event in its order among those of the entity that are parked too, if one is given."""

    async def lag(self, position: Position, limit: int) -> int:
        """How many events come after a position, counted to a limit."""

    async def position_at(self, since: int) -> Position:
        """The position before the first event that was recorded from a moment on, in microseconds since 1970."""

    async def number_before(self, since: int) -> int:
        """A number below those of all events that were recorded from a moment on, in microseconds since 1970."""

    async def recorded(self, last: int, end: int, *, since: int, until: int, limit: int) -> list[Event]:
        """Events by number after `last` up to `end`, of those recorded between two moments."""

    async def place(self) -> Place:
        """Where the ledger is now."""

    async def read_on(self, position: Position, limit: int) -> Page:
        """The next events for one who keeps the position himself."""
