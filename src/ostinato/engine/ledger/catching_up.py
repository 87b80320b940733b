"""Subscriptions that begin in the past: they are given what the built-in drainer had passed before they were there."""

from __future__ import annotations

from ...errors import QueueFull
from ...model.event import Event, Subscription, Unsuitable
from ...model.glob import GlobIndex
from ...store.ports import Store
from ...telemetry import StoreTroubled, SubscriptionCaughtUp, Telemetry
from ..service import Service
from .dispatching import Compiled, Decisions, Dispatcher, Entity, compiled
from .draining import PAGE

FOR_EVER = 253_402_300_799_000_000
"""The end of the year 9999, in microseconds since 1970."""

LOOK_EVERY = 60.0
FULL_PAUSE = 5.0


async def catch_up(store: Store, dispatcher: Dispatcher, given: Subscription) -> int:
    """Starts the runs that a subscription asks for of what is in the ledger; answers how many events it read.

    The runs have the keys that the drainer would give them, so who is interrupted, or comes second, starts none twice.
    What is recorded meanwhile is the drainer's: it knows the subscription by now.
    """
    await dispatcher.refresh()
    subscription, index = compiled(given), GlobIndex([(given.glob, True)])
    blocked: set[tuple[str, Entity]] = set()
    end, read = (await store.place()).sequence_no, 0
    last = 0 if given.since_at is None else await store.number_before(given.since_at)
    while page := await store.recorded(last, end, since=given.since_at or 0, until=FOR_EVER, limit=PAGE):
        last, read = page[-1].sequence_no, read + len(page)
        decisions = dispatcher.decisions(blocked)
        for event in page:
            if any(index.find(event.type)):
                _decide(decisions, event, subscription)
        if decisions.changes:
            await store.commit(decisions.changes)
    await store.caught_up(given.name)
    return read


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
