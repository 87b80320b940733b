"""`app.events`: recording events, looking at them, reading them in order, and what followed from what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import json

from ..clock import utc
from ..engine.ledger import recording
from ..engine.ledger.following import BEGINNING, Following, Reader
from ..engine.ledger.recording import EMPTY, NO_OPTIONS, RecordOptions
from ..errors import ConfigError, InvalidOption, UnknownEvent
from ..model.change import Committed, EventRecorded
from ..model.event import Event
from ..model.history import MOST_COUNTED, EventCount, EventFilter, EventPage, Trace
from ..store.ports import Store
from .tracing import Tracing

if TYPE_CHECKING:
    from ..engine.site import Site

MOST = 10_000


class Events:
    """The ledger."""

    def __init__(self, site: Site) -> None:
        self._site = site

    # --- recording

    async def record(
        self, event_type: str, payload: Any = EMPTY, options: RecordOptions = NO_OPTIONS, *, conn: object | None = None
    ) -> str:
        """Records an event; answers its id, or that of the event that has its idempotency key."""
        change = recording.one(self._site.door, event_type, payload, options)
        return (await self._commit([change], conn))[0]

    async def record_many(
        self,
        event_type: str,
        events: Iterable[Mapping[str, Any]],
        common: RecordOptions = NO_OPTIONS,
        *,
        conn: object | None = None,
    ) -> list[str]:
        """Records many events of a type, all or none; answers their ids in the order given."""
        changes = recording.many(self._site.door, event_type, events, common)
        return await self._commit(changes, conn) if changes else []

    async def _commit(self, changes: Sequence[EventRecorded], connection: object | None) -> list[str]:
        if (store := self._site.opened()) is not None:
            committed = await self._apply(store, changes, connection)
        else:
            async with self._site.store() as store:
                committed = await self._apply(store, changes, connection)
        return recording.ids_of(changes, committed.recorded)

    async def _apply(self, store: Store, changes: Sequence[EventRecorded], connection: object | None) -> Committed:
        if connection is None:
            return await store.commit(changes)
        return await store.apply_on(self._site.adapt(connection), changes)

    # --- looking

    async def get(self, event_id: str) -> Event:
        async with self._site.store() as store:
            for event in await store.views.events([event_id]):
                return event
            raise UnknownEvent(event_id)

    async def recent(
        self,
        on: str | None = None,
        *,
        entity: tuple[str, str] | None = None,
        source: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
    ) -> Sequence[Event]:
        """The latest events, the last one first; of a type or glob, of an entity, from a source, recorded since."""
        where = EventFilter(
            on=on,
            entity=None if entity is None else recording.pair(entity),
            source=source,
            since=_instant(since),
            limit=_number(limit),
        )
        async with self._site.store() as store:
            return await store.views.recent_events(where)

    async def types(self) -> Sequence[EventCount]:
        """The types of events that there are, by source: how many, and when the last was recorded. Of each type the
        latest 10,000 are counted, so it costs no more when there are millions."""
        async with self._site.store() as store:
            return await store.views.event_counts(count_to=MOST_COUNTED)

    def schemas(self) -> dict[str, Any]:
        """What payloads look like, as JSON Schema, of the types that this app declares: for docs and forms."""
        declared = self._site.door.registry.events
        return {kind: json.decode(payload.schema) for kind, payload in declared.items() if payload.schema is not None}

    async def trace(self, event_id: str) -> Trace:
        """What an event follows from and what follows from it: events and runs, both ways."""
        async with self._site.store() as store:
            return await Tracing(store.views).of(event_id)

    # --- reading in order

    async def read(
        self, token: str | None = None, *, on: str = "**", limit: int = 1000, start_at: str = BEGINNING
    ) -> EventPage:
        """The next events after a token, in order and without a gap, whatever commits late; without a token, those from
        the beginning, or none with `start_at="now"`. Nobody remembers how far you are but the token."""
        async with self._site.store() as store:
            reader = await Reader.starting(store, token=token, on=on, start_at=start_at)
            events, more = await reader.page(_number(limit))
            return EventPage(events, reader.token, more)

    def follow(
        self,
        on: str = "**",
        *,
        entity: tuple[str, str] | None = None,
        source: str | None = None,
        token: str | None = None,
        start_at: str = "now",
    ) -> Following:
        """Events as they are recorded, for `async for`: those after a token, from now on, or from the beginning. Its
        `token` says how far it is, to be gone on from later."""
        return Following(
            self._site,
            on=on,
            entity=None if entity is None else recording.pair(entity),
            source=source,
            token=token,
            start_at=start_at,
        )


def _instant(since: datetime | None) -> datetime | None:
    try:
        return None if since is None else utc(since, what="since")
    except ConfigError as error:
        raise InvalidOption(str(error)) from error


def _number(limit: int) -> int:
    if type(limit) is not int or not 0 < limit <= MOST:
        raise InvalidOption(f"limit={limit!r} must be a whole number from 1 to {MOST}")
    return limit
