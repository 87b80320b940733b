"""Subscriptions that begin in the past: they are given what the built-in drainer had passed before they were there."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import QueueFull
from ...model.change import Change
from ...model.event import WORKFLOW_RUNNER, Event, Page, Position, Subscription, Unsuitable
from ...model.glob import GlobIndex
from ...shield import shielded
from ...store.ports import Store
from ...telemetry import StoreTroubled, SubscriptionCaughtUp, Telemetry
from ..service import Service
from .dispatching import Compiled, Decisions, Dispatcher, Entity, compiled
from .draining import PAGE

LOOK_EVERY = 60.0
FULL_PAUSE = 5.0


async def catch_up(store: Store, dispatcher: Dispatcher, given: Subscription) -> int:
    """Starts the runs that a subscription asks for of what is in the ledger; answers how many events it read.

    The runs have the keys that the drainer would give them, so who is interrupted, or comes second, starts none twice.
    What is recorded meanwhile is the drainer's, which knows the subscription by now. One that is ordered is left alone
    by the drainer until it has caught up: else later events of an entity would be started before earlier ones.
    """
    await dispatcher.refresh()
    past = _Past(dispatcher, given)
    end, position = (await store.place()).sequence_no, await _beginning(store, given)
    while (page := await store.read_on(position, PAGE)).end != position:
        if not given.ordered and page.events and page.events[0].sequence_no > end:
            break
        if changes := past.changes(page):
            await store.commit(changes)
        position = page.end
    if given.ordered:
        await _hand_over(store, past, position)
    else:
        await store.caught_up(given.name)
    return past.read


async def _beginning(store: Store, given: Subscription) -> Position:
    return (await store.place()).beginning if given.since_at is None else await store.position_at(given.since_at)


async def _hand_over(store: Store, past: _Past, position: Position) -> None:
    """The rest, while the drainer is kept from passing on: what is not visible now, it has not passed."""
    async with store.begin() as transaction:
        await store.hold_drainer(transaction, WORKFLOW_RUNNER)
        while (page := await store.read_on(position, PAGE)).end != position:
            if changes := past.changes(page):
                await transaction.apply(changes)
            position = page.end
        await store.caught_up(past.name, transaction)
        await shielded(transaction.commit())


class _Past:
    """What follows for one subscription from the events that it is given late, page after page."""

    def __init__(self, dispatcher: Dispatcher, given: Subscription) -> None:
        self.name, self.read = given.name, 0
        self._dispatcher, self._subscription = dispatcher, compiled(given)
        self._index = GlobIndex([(given.glob, True)])
        self._blocked: set[tuple[str, Entity]] = set()

    def changes(self, page: Page) -> Sequence[Change]:
        self.read += len(page.events)
        decisions = self._dispatcher.decisions(self._blocked)
        for event in page.events:
            if self._subscription.concerns(event) and any(self._index.find(event.type)):
                _decide(decisions, event, self._subscription)
        return decisions.changes


def _decide(decisions: Decisions, event: Event, subscription: Compiled) -> None:
    try:
        decisions.start(event, subscription, set())
    except Unsuitable as error:
        decisions.park(event, subscription.given, error)


class Latecomers(Service):
    """Has subscriptions catch up that begin in the past: those just declared, and those of who was interrupted."""

    first_after = 0.2

    def __init__(self, dispatcher: Dispatcher, *, store: Store, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._store, self._dispatcher = store, dispatcher

    async def tick(self) -> float:
        for subscription in await self._store.views.subscriptions():
            if not subscription.is_behind:
                continue
            try:
                read = await catch_up(self._store, self._dispatcher, subscription)
            except QueueFull as error:
                self.telemetry.announce(StoreTroubled(service=self.name, error=str(error), retry_in=FULL_PAUSE))
                return FULL_PAUSE
            self.telemetry.announce(SubscriptionCaughtUp(subscription=subscription.name, events=read))
        return LOOK_EVERY
