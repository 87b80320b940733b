"""Reading the ledger from outside: by a token that the reader keeps, a page at a time or as events are recorded."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Self

from msgspec import MsgspecError, Struct, json

from ...errors import InvalidOption, LedgerMoved, StoreUnavailable
from ...model.event import Event, Page, Place, Position
from ...model.glob import GlobIndex, checked
from ...store.ports import LEDGER, Store
from ...telemetry import FollowerAsleep, StoreTroubled
from ..alarm import Alarm
from ..wakeups import Wakeups

if TYPE_CHECKING:
    from ..site import Site

FOLLOW = "follow"
"""What one who follows is called where services have their names."""

BEGINNING = "beginning"
NOW = "now"
PAGE = 1000
MOST_PAGES = 20
"""So many are read in a call for events that are rare."""
BRISK_POLL = 0.005
LONGEST_BRISK_POLL = 0.1
PAUSE = 1.0
"""Before a database that went away is asked again."""


class Token(Struct, frozen=True, array_like=True):
    """What a reader keeps: how far he is, and in whose transactions that is said."""

    lineage: str
    position: Position

    def text(self) -> str:
        return urlsafe_b64encode(json.encode(self)).decode().rstrip("=")


def token_in(text: str) -> Token:
    try:
        return json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Token)
    except (MsgspecError, ValueError, TypeError) as error:
        raise InvalidOption("the token is none that `events.read` gave; give one, or none to begin") from error


class Reader:
    """Somebody who reads on from where he is."""

    def __init__(self, store: Store, lineage: str, position: Position, on: str) -> None:
        self._store, self._lineage, self._position = store, lineage, position
        self._matches = _matcher(on)

    @classmethod
    async def starting(cls, store: Store, *, token: str | None, on: str, start_at: str) -> Self:
        if start_at not in (BEGINNING, NOW):
            raise InvalidOption(f"start_at={start_at!r} must be {BEGINNING!r} or {NOW!r}; to go on later, give a token")
        checked(on)
        place = await store.place()
        if token is None:
            return cls(store, place.lineage, place.beginning if start_at == BEGINNING else place.now, on)
        return cls(store, place.lineage, _fitting(token_in(token), place), on)

    @property
    def token(self) -> str:
        return self.token_at(self._position)

    def token_at(self, position: Position) -> str:
        return Token(self._lineage, position).text()

    async def page(self, limit: int) -> tuple[list[Event], bool]:
        """The next events that match, and whether there may be more at once."""
        found: list[Event] = []
        for _ in range(MOST_PAGES):
            if (page := await self._next()) is None:
                return found, False
            for place, event in enumerate(page.events, start=1):
                if self._matches(event.type):
                    found.append(event)
                    if len(found) == limit:
                        self._position = page.after(place)
                        return found, True
        return found, True

    async def _next(self) -> Page | None:
        """The next page, which may be without events where retention has removed some; None at the end."""
        page = await self._store.read_on(self._position, PAGE)
        if not page.events and page.end == self._position:
            return None
        self._position = page.end
        return page

    async def following(self) -> list[tuple[Event, Position]] | None:
        """The next page: its events that match, each with the position after it; None if there is none."""
        if (page := await self._next()) is None:
            return None
        each = enumerate(page.events, start=1)
        return [(event, page.after(place)) for place, event in each if self._matches(event.type)]

    async def anything(self) -> bool:
        """Whether there is something to read."""
        page = await self._store.read_on(self._position, 1)
        return bool(page.events) or page.end != self._position


class Following:
    """Events as they are recorded: `async for event in app.events.follow("price.*")`."""

    def __init__(
        self,
        site: Site,
        *,
        on: str,
        entity: tuple[str, str] | None,
        source: str | None,
        token: str | None,
        start_at: str,
    ) -> None:
        self._site, self._on, self._entity, self._source = site, checked(on), entity, source
        self._start_at = start_at
        self.token = token
        """How far it is: after the event that was given last. None before it has begun."""
        self._events = self._follow()
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._closed:  # a generator that was closed may say that it runs
            raise StopAsyncIteration
        return await anext(self._events)

    async def begin(self) -> None:
        """Finds the place to begin at, so that whatever is recorded from now on is given."""
        if self.token is None:
            async with self._site.store() as store:
                reader = await Reader.starting(store, token=None, on=self._on, start_at=self._start_at)
                self.token = reader.token

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._events.aclose()

    async def _follow(self) -> AsyncGenerator[Event, None]:
        await self.begin()
        async with self._site.store() as store:
            recorded = Alarm()
            wakeups = Wakeups(store, self._site.telemetry, enabled=self._site.settings.notify)
            wakeups.on_events_recorded(recorded.set)
            await wakeups.start()
            try:
                while True:
                    reader = await self._going_on(store)
                    while (page := await self._page(reader, wakeups, recorded)) is not None:
                        for event, position in page:
                            self.token = reader.token_at(position)
                            if self._wants(event):
                                yield event
                        self.token = reader.token
            finally:
                await wakeups.stop()

    async def _going_on(self, store: Store) -> Reader:
        """A reader from where we are, as soon as the database is there."""
        while True:
            try:
                return await Reader.starting(store, token=self.token, on=self._on, start_at=BEGINNING)
            except StoreUnavailable as error:
                await self._troubled(error)

    async def _page(self, reader: Reader, wakeups: Wakeups, recorded: Alarm) -> list[tuple[Event, Position]] | None:
        """The next page, whenever it comes; None if the database went away, and the place is to be found again."""
        try:
            while (page := await reader.following()) is None:
                await self._sleep(reader, wakeups, recorded)
            return page
        except StoreUnavailable as error:
            await self._troubled(error)
            return None

    async def _troubled(self, error: StoreUnavailable) -> None:
        self._site.telemetry.announce(StoreTroubled(service=FOLLOW, error=str(error), retry_in=PAUSE))
        await asyncio.sleep(PAUSE)

    async def _sleep(self, reader: Reader, wakeups: Wakeups, recorded: Alarm) -> None:
        """Until something was recorded, or it is time to look."""
        pause = BRISK_POLL
        while not await wakeups.arm(LEDGER) and wakeups.working:
            if await reader.anything() or await recorded.wait(pause):
                return
            pause = min(pause * 1.5, LONGEST_BRISK_POLL)
        if not await reader.anything():
            if self._site.telemetry.wants(FollowerAsleep):
                self._site.telemetry.announce(FollowerAsleep(on=self._on))
            await recorded.wait(wakeups.poll_interval(self._site.settings.poll))

    def _wants(self, event: Event) -> bool:
        return self._entity in (None, event.entity) and self._source in (None, event.source)


def _fitting(token: Token, place: Place) -> Position:
    """The token's position, if it speaks of this ledger."""
    if token.lineage == place.lineage and token.position.last <= max(place.sequence_no, token.position.end):
        return token.position
    raise LedgerMoved(
        "the token is of another ledger, or the database was restored since; read from the beginning again, or with "
        "start_at='now' what comes from now on"
    )


def _matcher(glob: str) -> Callable[[str], bool]:
    if glob == "**":
        return lambda event_type: True
    index: GlobIndex[None] = GlobIndex([(glob, None)])
    return lambda event_type: any(True for _ in index.find(event_type))
