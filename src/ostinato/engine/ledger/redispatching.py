"""Giving events to a subscription again: those that were parked, and those of a time that is over."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import IllegalMove, UnknownSubscription
from ...model.change import Change, EventUnparked
from ...model.drainer import Drained, ParkedView, Refusal, Replayed, Trigger
from ...model.event import WORKFLOW_RUNNER, Event, Unsuitable
from ...model.glob import GlobIndex
from ...shield import shielded
from ...store.ports import Store, Transaction
from .dispatching import Compiled, Decisions, Dispatcher, Entity
from .draining import PAGE

SHOWN = 10


class Redispatcher:
    """What the built-in drainer does, on demand. It keeps that one from passing on meanwhile, since what it parks
    behind an event must not come just after that was let go."""

    def __init__(self, store: Store, dispatcher: Dispatcher) -> None:
        self._store, self._dispatcher = store, dispatcher
        self._found: dict[str, Compiled] = {}
        self._latecomers: set[str] | None = None
        self._seen: set[tuple[str, Entity]] = set()
        """Whose events were given to an ordered subscription again, as far as they could."""

    async def subscription(self, name: str) -> Compiled:
        if name not in self._found:
            self._found[name] = await self._dispatcher.subscription(name)
        return self._found[name]

    async def _refuse_behind(self, name: str) -> None:
        """Who has an ordered one catch up knows by heart what is parked, and may be interrupted and begin again."""
        if self._latecomers is None:
            subscriptions = await self._store.views.subscriptions()
            self._latecomers = {each.name for each in subscriptions if each.ordered and each.is_behind}
        if name in self._latecomers:
            raise IllegalMove(
                f"subscription {name!r} is still catching up with its past, as a worker does; "
                "retry and discard what is parked when it has"
            )

    # --- parked events

    async def retry(self, parked: ParkedView) -> Drained:
        """Gives a parked event to its subscription again. Where that is ordered, all of its entity that are parked, in
        their order, up to the first that is refused again."""
        try:
            subscription = await self.subscription(parked.subscription)
        except UnknownSubscription:
            return Drained(parked=1)
        await self._refuse_behind(parked.subscription)
        entity = _entity(parked, subscription)
        if entity is not None and (parked.subscription, entity) in self._seen:
            return Drained()
        async with self._store.begin() as transaction:
            await self._store.hold_drainer(transaction, WORKFLOW_RUNNER)
            chain = await self._store.parked_chain(transaction, parked.subscription, parked.sequence_no, entity)
            drained = await self._again(transaction, chain, subscription, [])
        if entity is not None:
            self._seen.add((parked.subscription, entity))
        return drained

    async def discard(self, parked: ParkedView, *, doomed_to: int) -> Drained:
        """Takes a parked event away. Where its subscription is ordered, those that wait behind it follow, except for
        the ones up to a number, which are to be taken away as well."""
        gone = EventUnparked(parked.subscription, parked.sequence_no)
        try:
            subscription = await self.subscription(parked.subscription)
        except UnknownSubscription:
            await self._store.commit([gone])
            return Drained()
        await self._refuse_behind(parked.subscription)
        async with self._store.begin() as transaction:
            await self._store.hold_drainer(transaction, WORKFLOW_RUNNER)
            behind = await self._behind(transaction, parked, subscription)
            follow = [event for event in behind if event.sequence_no > doomed_to]
            return await self._again(transaction, follow, subscription, [gone])

    async def _behind(self, transaction: Transaction, parked: ParkedView, subscription: Compiled) -> list[Event]:
        """What is parked of the same entity, if this one is the first."""
        if (entity := _entity(parked, subscription)) is None:
            return []
        chain = await self._store.parked_chain(transaction, parked.subscription, parked.sequence_no, entity)
        is_first = not chain or chain[0].sequence_no >= parked.sequence_no
        return [event for event in chain if event.sequence_no != parked.sequence_no] if is_first else []

    async def _again(
        self, transaction: Transaction, chain: Sequence[Event], subscription: Compiled, changes: list[Change]
    ) -> Drained:
        decisions = self._dispatcher.decisions(set())
        let_go = 0
        for event in chain:
            try:
                decisions.start(event, subscription, set())
            except Unsuitable as error:
                decisions.park(event, subscription.given, error)
                break
            decisions.changes.append(EventUnparked(subscription.given.name, event.sequence_no))
            let_go += 1
        committed = await transaction.apply([*changes, *decisions.changes])
        await shielded(transaction.commit())
        return Drained(let_go, _started(decisions, committed.existing), len(chain) - let_go)

    # --- replaying

    async def replay(self, name: str, *, since: int, until: int, replay: str, dry_run: bool) -> Replayed:
        """Gives a subscription all events of a time, a page in each commit."""
        subscription = await self.subscription(name)
        end = (await self._store.place()).sequence_no
        events = runs = refused = 0
        last = await self._store.number_before(since) if since else 0
        refusals: list[Refusal] = []
        while page := await self._store.recorded(last, end, since=since, until=until, limit=PAGE):
            last = page[-1].sequence_no
            decisions = self._dispatcher.decisions(set(), replay=replay)
            meant = _meant(page, subscription)
            found = _replayed(meant, subscription, decisions)
            started: Sequence[Trigger] = ()
            if decisions.changes:
                started = _started(decisions, await self._inserted(decisions.changes, dry_run=dry_run))
            events, runs, refused = events + len(meant), runs + len(started), refused + len(found)
            refusals += found[: SHOWN - len(refusals)]
        return Replayed(
            replay=replay,
            subscription=name,
            function=subscription.given.function,
            events=events,
            runs=runs,
            refused=refused,
            refusals=refusals,
            dry_run=dry_run,
        )

    async def _inserted(self, changes: Sequence[Change], *, dry_run: bool) -> dict[str, str]:
        """Starts runs; answers for those that a replay of the name has started before. A dry run takes it all back."""
        if not dry_run:
            return (await self._store.commit(changes)).existing
        async with self._store.begin() as transaction:
            return (await transaction.apply(changes)).existing


def _entity(parked: ParkedView, subscription: Compiled) -> Entity | None:
    """Whose order is to be kept."""
    if not subscription.given.ordered or parked.entity_type is None or parked.entity_id is None:
        return None
    return parked.entity_type, parked.entity_id


def _meant(events: Sequence[Event], subscription: Compiled) -> list[Event]:
    index = GlobIndex([(subscription.given.glob, True)])
    return [event for event in events if any(index.find(event.type))]


def _replayed(events: Sequence[Event], subscription: Compiled, decisions: Decisions) -> list[Refusal]:
    """Decides about events, and answers which are refused. They are not parked: they may be running by now."""
    refusals = []
    for event in events:
        try:
            decisions.start(event, subscription, set())
        except Unsuitable as error:
            refusals.append(Refusal(event.id, error.code, str(error)))
    return refusals


def _started(decisions: Decisions, existing: dict[str, str]) -> list[Trigger]:
    return [trigger for trigger in decisions.triggers if trigger.run_id not in existing]
