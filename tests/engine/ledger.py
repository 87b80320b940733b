"""Small helpers for tests of the ledger: events, subscriptions, and the runs that they start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, json

from ostinato import App
from ostinato.ids import new_id
from ostinato.model.change import Change, EventRecorded
from ostinato.model.event import Subscription
from ostinato.model.view import RunView

Entity = tuple[str, str]


def an_event(kind: str, payload: Any = None, entity: Entity | None = None, **fields: Any) -> EventRecorded:
    entity_type, entity_id = entity or (None, None)
    encoded = Raw(json.encode({} if payload is None else payload))
    return EventRecorded(new_id(), kind, encoded, entity_type, entity_id, **fields)


async def record(app: App, *events: EventRecorded) -> list[str]:
    """Records events in one commit; answers their ids."""
    changes: Sequence[Change] = events
    async with app._site.store() as store:
        await store.commit(changes)
    return [event.id for event in events]


async def subscribe(app: App, name: str, glob: str, function: str, **fields: Any) -> None:
    """What a starting worker does with a declared subscription."""
    if "mapper" in fields:
        fields["mapper"] = Raw(json.encode(fields["mapper"]))
    async with app._site.store() as store:
        await store.declare_subscriptions([Subscription(name=name, glob=glob, function=function, **fields)])


async def runs_of(app: App, function: str) -> list[RunView]:
    """The runs of a function in the order in which they were started."""
    return sorted(await app.runs.list(function=function, limit=5000), key=lambda run: run.id)
