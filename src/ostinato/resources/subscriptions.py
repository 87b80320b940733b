"""`app.subscriptions`: which events start which functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw, ValidationError, convert, json, structs

from ..engine.ledger.catching_up import catch_up
from ..engine.ledger.dispatching import Compiled, Decisions, Dispatcher
from ..engine.ledger.subscribing import placed, subscription
from ..engine.registry import StartAt
from ..errors import ConfigError, InvalidInput, UnknownSubscription
from ..ids import new_id
from ..model.change import RunInserted
from ..model.event import Event, Subscription, Unsuitable
from ..model.schedule import moment
from ..model.view import Match, SubscriptionView
from ..store.ports import Store

if TYPE_CHECKING:
    from ..engine.site import Site

LAST = 2**62
"""A number that comes after all others."""


class Subscriptions:
    """Subscriptions that workers have declared, and those that were added at run time, by name."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def list(self) -> Sequence[SubscriptionView]:
        """All subscriptions, those too that are disabled or that no code declares any more."""
        async with self._site.store() as store:
            return await store.views.subscription_views()

    async def get(self, name: str) -> SubscriptionView:
        async with self._site.store() as store:
            return await _find(store, name)

    async def add(
        self,
        glob: str,
        function: str,
        /,
        *,
        filter: str | None = None,  # noqa: A002 - what it is called everywhere
        map: Mapping[str, Any] | None = None,  # noqa: A002
        name: str | None = None,
        ordered: bool = False,
        enabled: bool = True,
        start_at: StartAt = "now",
    ) -> SubscriptionView:
        """Adds a subscription of a function that this app, or a worker somewhere, has declared.

        With `start_at` in the past it comes back when the runs of what is in the ledger are started.
        """
        async with self._site.store() as store:
            spec = subscription(
                glob,
                function,
                await self._schema(store, function),
                filter=filter,
                map=map,
                name=name,
                ordered=ordered,
                enabled=enabled,
                start_at=start_at,
            )
            added = placed(spec, await store.place())
            if not await store.add_subscription(added):
                raise ConfigError(f"a subscription is named {added.name!r} already; remove that one, or give name=")
            await self._catch_up(store, added)
            return await _find(store, added.name)

    async def enable(self, name: str) -> SubscriptionView:
        """Lets a subscription start runs, from now on: what was recorded while it was disabled is over."""
        return await self._switch(name, enabled=True)

    async def disable(self, name: str) -> SubscriptionView:
        """Stops a subscription from starting runs until it is enabled, whatever workers start meanwhile."""
        return await self._switch(name, enabled=False)

    async def remove(self, name: str) -> SubscriptionView:
        """Removes a subscription and what is parked for it. One that code declares is there again when a worker with
        that code starts: disable it, or take it out of the code."""
        async with self._site.store() as store:
            removed = await _find(store, name)
            if not await store.remove_subscription(name):
                raise UnknownSubscription(name)
            return removed

    async def match(self, event: Event | Mapping[str, Any]) -> Sequence[Match]:
        """What an event would start, if it were recorded now, and with which input. Nothing is recorded or started.

        `{"type": "price.changed", "payload": {...}, "entity": ["product", "42"]}`, or with any other field of an
        event.
        """
        async with self._site.store() as store:
            meant = _event(event, moment(await store.views.moment()))
            dispatcher = self._dispatcher(store)
            matching = await dispatcher.refresh()
            blocked = set()
            if matching.ordered and meant.entity is not None:
                blocked = await store.views.parked_entities(matching.ordered, [meant.entity])
        started: set[str] = set()
        return [_match(dispatcher.decisions(blocked), meant, each, started) for each in matching.of(meant)]

    async def _switch(self, name: str, *, enabled: bool) -> SubscriptionView:
        async with self._site.store() as store:
            if await store.switch_subscription(name, enabled=enabled):
                await self._catch_up(store, *[each for each in await store.views.subscriptions() if each.name == name])
            return await _find(store, name)

    async def _catch_up(self, store: Store, *subscriptions: Subscription) -> None:
        for each in subscriptions:
            if each.is_behind:
                await catch_up(store, self._dispatcher(store), each)

    async def _schema(self, store: Store, function: str) -> Raw | None:
        """What is known of a function's input; an error if nobody knows the function."""
        if (spec := self._site.registry.get(function)) is not None:
            return spec.input.schema
        found = [known for known in await store.views.functions() if known.name == function]
        if not found:
            raise await self._site.door.unknown(function, store.views)
        return None if found[0].input_schema is None else Raw(json.encode(found[0].input_schema))

    def _dispatcher(self, store: Store) -> Dispatcher:
        return Dispatcher(store, self._site.door, self._site.registry.functions)


async def _find(store: Store, name: str) -> SubscriptionView:
    if found := await store.views.subscription_views(name):
        return found[0]
    raise UnknownSubscription(name, [each.name for each in await store.views.subscriptions()])


# --- the dry run ----------------------------------------------------------------------------------------------------


def _match(decisions: Decisions, event: Event, subscription: Compiled, started: set[str]) -> Match:
    given = subscription.given
    common = {"subscription": given.name, "function": given.function}
    is_second = given.function in started
    try:
        decisions.start(event, subscription, set())
    except Unsuitable as error:
        return Match(**common, outcome="parked", code=error.code, message=str(error))
    runs = [change for change in decisions.changes if isinstance(change, RunInserted)]
    if not runs:
        return Match(**common, outcome="filtered")
    started.add(given.function)
    return Match(**common, outcome="same run" if is_second else "start", input=json.decode(runs[0].input))


def _event(event: Event | Mapping[str, Any], now: datetime) -> Event:
    """An event as if it were recorded now."""
    if isinstance(event, Event):
        return structs.replace(event, sequence_no=LAST, recorded_at=now)
    if not isinstance(event, Mapping):
        raise InvalidInput(f'an event must be an object, like {{"type": "price.changed"}}, and is {event!r}')
    usual = {"id": new_id(), "payload": {}, "occurred_at": now}
    given = {**usual, **event, "sequence_no": LAST, "recorded_at": now}
    if (entity := given.pop("entity", None)) is not None:
        given["entity_type"], given["entity_id"] = _entity(entity)
    if unknown := set(given) - set(Event.__struct_fields__):
        known = ", ".join(["entity", *Event.__struct_fields__])
        raise InvalidInput(f"an event has no {min(unknown)!r}; it has {known}", path=f"$.{min(unknown)}")
    try:
        return convert(given, Event)
    except ValidationError as error:
        raise InvalidInput(f"the event cannot be read: {error}") from error


def _entity(entity: Any) -> tuple[str, str]:
    match entity:
        case [str(kind), str(name)]:
            return kind, name
        case _:
            raise InvalidInput(f"entity {entity!r} must be a pair, like ['product', '42']", path="$.entity")
