"""What the built-in drainer does with events: it starts the runs that subscriptions ask for, or parks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Raw, json, structs

from ...errors import ConfigError, InvalidInput, UnknownSubscription
from ...ids import new_id
from ...model.cancelling import Rule, rules_in
from ...model.change import Change, EventParked, EventRecorded, RunInserted
from ...model.drainer import Trigger
from ...model.event import DISPATCH_FAILED, Event, Page, Subscription, Unsuitable
from ...model.filter import compile_filter
from ...model.glob import GlobIndex, matches
from ...model.mapper import compile_mapper
from ...store.ports import Store, Transaction
from ..door import NO_OPTIONS, Door
from ..steps.meeting import met_waits
from .cancelling import met_cancels
from .draining import Consumed

Entity = tuple[str, str]


class Compiled(NamedTuple):
    """A subscription that is ready to be asked. What does not compile here (an extra that is not installed, a later
    version's syntax) is as unsuitable as an event that it refuses."""

    given: Subscription
    accepts: Callable[[Event], bool]
    input_of: Callable[[Event], Any]

    def concerns(self, event: Event) -> bool:
        since = self.given.since_at
        return event.sequence_no > self.given.since_sequence and (since is None or event.recorded_micros >= since)


def compiled(subscription: Subscription) -> Compiled:
    recipe = None if subscription.mapper is None else json.decode(subscription.mapper)
    try:
        accepts = compile_filter(subscription.filter) if subscription.filter else _accepts_all
        return Compiled(subscription, accepts, compile_mapper(recipe) if recipe is not None else _payload)
    except ConfigError as error:
        return Compiled(subscription, _refusing(str(error)), _payload)


def _compiled_once(subscription: Subscription, known: Compiled | None) -> Compiled:
    return known if known is not None and known.given == subscription else compiled(subscription)


def _accepts_all(event: Event) -> bool:
    return True


def _payload(event: Event) -> Any:
    return event.payload


def _refusing(message: str) -> Callable[[Event], bool]:
    def refuse(event: Event) -> bool:
        raise Unsuitable("subscription", message)

    return refuse


class Matching:
    """All subscriptions that are switched on, found by an event's type. What has not changed since `earlier` is not
    compiled again."""

    def __init__(self, subscriptions: Sequence[Subscription], earlier: Matching | None = None) -> None:
        known = earlier._compiled if earlier is not None else {}
        switched_on = [_compiled_once(each, known.get(each.name)) for each in subscriptions if each.enabled]
        self._compiled: dict[str, Compiled] = {each.given.name: each for each in switched_on}
        self._index = GlobIndex([(each.given.glob, each) for each in switched_on])
        self.ordered = [each.given.name for each in switched_on if each.given.ordered]

    def of(self, event: Event) -> list[Compiled]:
        """Those that an event concerns, by name."""
        found = [each for each in self._index.find(event.type) if each.concerns(event)]
        found.sort(key=lambda each: each.given.name)
        return found


class Decisions:
    """What follows from the events of one page."""

    def __init__(
        self,
        matching: Matching,
        door: Door,
        known: frozenset[str],
        blocked: set[tuple[str, Entity]],
        *,
        replay: str | None = None,
    ) -> None:
        self._matching, self._door, self._known, self._blocked = matching, door, known, blocked
        self._replay = replay
        self.changes: list[Change] = []
        self.triggers: list[Trigger] = []
        self.parked = 0

    def decide(self, event: Event) -> None:
        started: set[str] = set()
        for subscription in self._matching.of(event):
            if subscription.given.ordered and subscription.given.is_behind:
                continue  # who has it catch up comes to this event too, after those before it
            try:
                self.start(event, subscription, started)
            except Unsuitable as error:
                self.park(event, subscription.given, error)

    def start(self, event: Event, subscription: Compiled, started: set[str]) -> None:
        """The run that a subscription asks for, unless its function is among those started for the event."""
        given = subscription.given
        if given.ordered and event.entity is not None and (given.name, event.entity) in self._blocked:
            raise Unsuitable("behind", f"an earlier event of {event.entity_type} {event.entity_id} is parked")
        if (made := _made(event, subscription)) is None:
            return
        run = self.run_for(event, given.function, made.input)
        if given.function not in started:  # one run per function and event
            started.add(given.function)
            self.changes.append(run)
            self.triggers.append(Trigger(event.id, given.name, run.id))

    def run_for(self, event: Event, function: str, value: Any) -> RunInserted:
        if function not in self._known:
            raise Unsuitable("unknown_function", f"no function is named {function!r}; start a worker that declares it")
        options = NO_OPTIONS.changed(key=f"event:{event.id}", unique="forever")
        if self._replay is not None:
            marked = {"replay": self._replay}
            options = options.changed(key=f"replay:{self._replay}:event:{event.id}", metadata=marked)
        try:
            return self._door.one(function, (value,), {}, options, invoked_by=event.reason)
        except InvalidInput as error:
            raise Unsuitable("invalid_input", str(error)) from error

    def park(self, event: Event, subscription: Subscription, error: Unsuitable) -> None:
        self.parked += 1
        if subscription.ordered and event.entity is not None:
            self._blocked.add((subscription.name, event.entity))
        self.changes.append(
            EventParked(
                subscription=subscription.name,
                sequence_no=event.sequence_no,
                event_id=event.id,
                code=error.code,
                message=str(error),
                entity_type=event.entity_type,
                entity_id=event.entity_id,
            )
        )
        if error.code != "behind" and event.type != DISPATCH_FAILED:  # what announces failures must not fail for ever
            self.changes.append(_dispatch_failed(event, subscription, error))


class _Made(NamedTuple):
    input: Any


def _made(event: Event, subscription: Compiled) -> _Made | None:
    """The input for the subscription's function; None if its filter does not want the event. Nobody else is asked, so
    whatever goes wrong will go wrong again: it must not hold up the others."""
    try:
        return _Made(subscription.input_of(event)) if subscription.accepts(event) else None
    except Unsuitable:
        raise
    except Exception as error:
        raise Unsuitable("subscription", f"{type(error).__name__}: {error}") from error


def _dispatch_failed(event: Event, subscription: Subscription, error: Unsuitable) -> EventRecorded:
    payload = {
        "event_id": event.id,
        "event_type": event.type,
        "subscription": subscription.name,
        "function": subscription.function,
        "code": error.code,
        "message": str(error),
    }
    return EventRecorded(
        id=new_id(),
        type=DISPATCH_FAILED,
        payload=Raw(json.encode(payload)),
        entity_type=event.entity_type,
        entity_id=event.entity_id,
        caused_by=f"event:{event.id}",
        source="ostinato",
        idempotency_key=f"{DISPATCH_FAILED}:{subscription.name}:{event.id}",
    )


class Dispatcher:
    """The consumer of the built-in drainer."""

    def __init__(self, store: Store, door: Door, functions: Mapping[str, object]) -> None:
        self._store, self._door, self._functions = store, door, functions
        self._version: tuple[int, int] | None = None
        self._matching = Matching(())
        self._known: frozenset[str] = frozenset()
        self._cancelling: list[tuple[str, str]] = []
        self._rules: GlobIndex[Rule] = GlobIndex()

    async def prepare(self) -> None:
        """Compiles all there is once before a pass begins, which holds the only write lock on SQLite."""
        if self._version is None:
            await self.refresh()

    async def consume(self, transaction: Transaction, page: Page) -> Consumed:
        ordered = (await self.refresh(transaction)).ordered
        entities = list({event.entity for event in page.events if event.entity is not None}) if ordered else []
        blocked = await self._store.blocked(transaction, ordered, entities) if entities else set()
        decisions = self.decisions(blocked)
        for event in page.events:
            decisions.decide(event)
        decisions.changes += await met_waits(self._store, transaction, page.events)
        if self._cancelling:
            decisions.changes += await met_cancels(self._store, transaction, page.events, self._rules)
        return Consumed(decisions.changes, decisions.triggers, decisions.parked)

    async def reach(self, transaction: Transaction, events: Sequence[Event]) -> int:
        matching = await self.refresh(transaction)
        types = {event.type for event in events}
        globs = {wait.glob for wait in await self._store.waits(transaction, sorted(types))}
        awaited = {each for each in types if any(matches(glob, each) for glob in globs)}
        concerned = (place for place, event in enumerate(events) if event.type in awaited or matching.of(event))
        return next(concerned, len(events)) or 1

    def decisions(self, blocked: set[tuple[str, Entity]], *, replay: str | None = None) -> Decisions:
        return Decisions(self._matching, self._door, self._known, blocked, replay=replay)

    async def subscription(self, name: str) -> Compiled:
        """One by its name, for every event, and whether it is switched on or not."""
        await self.refresh()
        subscriptions = {each.name: each for each in await self._store.views.subscriptions()}
        if name not in subscriptions:
            raise UnknownSubscription(name, subscriptions)
        return compiled(structs.replace(subscriptions[name], since_sequence=0, since_at=None))

    async def refresh(self, transaction: Transaction | None = None) -> Matching:
        """The subscriptions as they are now; compiled anew only if one has changed. In a pass it is asked after the
        page was read, so that events know all subscriptions that are older than they, and in the same transaction."""
        version, functions = await self._store.bearings(transaction)
        if version != self._version:
            subscriptions = await self._store.views.subscriptions()
            self._matching, self._version = Matching(subscriptions, self._matching), version
        self._known = frozenset([*functions, *self._functions])
        self._know_rules([(name, stored) for name, stored in functions.items() if stored is not None])
        return self._matching

    def _know_rules(self, stored: list[tuple[str, str]]) -> None:
        """The events that cancel runs; compiled anew only if they have changed."""
        if stored != self._cancelling:
            rules = [rule for name, text in stored for rule in rules_in(name, text)]
            self._rules, self._cancelling = GlobIndex([(rule.glob, rule) for rule in rules]), stored
