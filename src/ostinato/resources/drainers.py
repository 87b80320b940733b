"""`app.drainers`: who reads the ledger, how far, and what could not be dealt with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from ..clock import utc
from ..engine.ledger.consumers import beginning_at, check_name, check_start, declare, drainings
from ..engine.ledger.dispatching import Dispatcher
from ..engine.ledger.draining import Draining
from ..engine.ledger.redispatching import Redispatcher
from ..errors import ConfigError, InvalidOption, LedgerMoved, StaleToken, UnknownDrainer
from ..ids import new_id
from ..model import glob
from ..model.change import CursorMoved
from ..model.drainer import (
    BUILT_IN,
    EXTERNAL,
    MOST_LAG,
    Acknowledgement,
    Batch,
    Drained,
    DrainerView,
    ParkedView,
    Placed,
    Replayed,
    Reset,
    read_token,
    token_of,
)
from ..model.event import Event, Place, Position, position_in
from ..model.schedule import micros
from ..shield import shielded
from ..store.ports import DeclaredDrainer, Store

if TYPE_CHECKING:
    from ..engine.site import Site

MOST_READ = 10_000
PARKED_PAGE = 1_000
LOOK_AGAIN = 0.005
FOR_EVER = 253_402_300_799_000_000
"""The end of the year 9999, in microseconds since 1970."""


class Drainers:
    """Drainers that workers have declared, and those that are read from outside, by name."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def list(self) -> Sequence[DrainerView]:
        """All drainers, the built-in one first."""
        async with self._site.store() as store:
            return await store.views.drainers(count_to=MOST_LAG)

    async def get(self, name: str) -> DrainerView:
        async with self._site.store() as store:
            return await _find(store, name)

    # --- draining

    async def drain(self, name: str | None = None) -> Drained:
        """Drains here and now, until nothing is left or it halts: one drainer, or all that this app has.

        The built-in one can be drained by any process, others by those whose app declares them.
        """
        async with self._site.store() as store:
            total = Drained()
            for draining in await self._drainings(store, name):
                if not await store.knows_drainer(draining.name):
                    await declare(store, self._site.registry.drainers.values())
                total += await draining.to_the_end()
            return total

    async def _drainings(self, store: Store, name: str | None) -> Sequence[Draining]:
        site = self._site
        known = drainings(store, site.registry, site.door, site.telemetry)
        chosen = [draining for draining in known if name is None or draining.name == name]
        if not chosen:
            drainer = await _find(store, str(name))
            raise ConfigError(f"drainer {name!r} cannot be drained here: {_elsewhere(drainer)}")
        return chosen

    # --- moving

    async def reset(self, name: str, to: str | datetime, *, dry_run: bool = False) -> Reset:
        """Has a drainer go on from elsewhere: `beginning`, `now`, what was recorded from a moment on, or a token.

        Events that it has dealt with before come again. The built-in drainer starts no second run for them; that is
        what `replay` does.
        """
        async with self._site.store() as store:
            drainer = await _find(store, name)
            position = await _position(store, to)
            events = await store.lag(position, MOST_LAG)
            if not dry_run and not await store.reset_drainer(name, position):
                raise UnknownDrainer(name)
            token = token_of(Placed(_history(await store.place()), position.text()))
            return Reset(drainer.name, token, events, dry_run)

    async def remove(self, name: str) -> None:
        """Forgets a drainer and how far it was. One that code declares is there again, as a new one, when a worker with
        that code starts."""
        async with self._site.store() as store:
            if (await _find(store, name)).origin == BUILT_IN:
                raise ConfigError(f"{name!r} is built in and stays; disable subscriptions to start no runs")
            await store.remove_drainer(name)

    # --- parked events

    async def parked(
        self, subscription: str | None = None, *, event: str | None = None, limit: int = 100
    ) -> Sequence[ParkedView]:
        """Events that subscriptions could not be given, in the order in which they were recorded."""
        async with self._site.store() as store:
            return await store.views.parked(subscription, event, limit=limit)

    async def retry_parked(self, subscription: str | None = None, *, event: str | None = None) -> Drained:
        """Gives parked events to their subscriptions again, in order: all, those of a subscription, or one.

        Where a subscription is ordered, an entity's events go together, from the first that is parked, until one is
        refused again. `processed` are those that are parked no longer, `parked` those that still are. Events that are
        recorded meanwhile are not among them.
        """
        async with self._site.store() as store:
            redispatcher = self._redispatcher(store)
            if subscription is not None:
                await redispatcher.subscription(subscription)
            total = Drained()
            async for page in _chosen(store, subscription, event, end=(await store.place()).sequence_no):
                retried = [await redispatcher.retry(parked) for parked in page]
                total = reduce(add, retried, total)
            return total

    async def discard_parked(self, subscription: str | None = None, *, event: str | None = None) -> int:
        """Takes parked events away: those of a subscription, or one. What waits behind one follows, where its
        subscription is ordered."""
        if subscription is None and event is None:
            raise InvalidOption("discarding needs a subscription, an event, or both: discarded events are not started")
        async with self._site.store() as store:
            redispatcher = self._redispatcher(store)
            count, end = 0, (await store.place()).sequence_no
            async for page in _chosen(store, subscription, event, end=end):
                for parked in page:
                    await redispatcher.discard(parked, doomed_to=end if event is None else 0)
                count += len(page)
            if not count and subscription is not None:
                await redispatcher.subscription(subscription)  # is there one?
            return count

    async def replay(
        self,
        subscription: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        name: str | None = None,
        dry_run: bool = True,
    ) -> Replayed:
        """Gives a subscription the events again that were recorded from one moment to another, whether they have
        started a run before or not.

        The runs have `replay` in their metadata. A replay of the same name starts no run twice, so one that broke off
        can be given again. A dry run says how many runs it would start.
        """
        if name is not None:
            _check_replay(name)
        start = 0 if since is None else micros(utc(since, what="since"))
        end = FOR_EVER if until is None else micros(utc(until, what="until"))
        async with self._site.store() as store:
            return await self._redispatcher(store).replay(
                subscription, since=start, until=end, replay=name or new_id(), dry_run=dry_run
            )

    def _redispatcher(self, store: Store) -> Redispatcher:
        return Redispatcher(store, Dispatcher(store, self._site.door, self._site.registry.functions))

    # --- reading from outside

    async def add(self, name: str, *, on: str = "**", start_at: str | datetime = "beginning") -> DrainerView:
        """Makes a drainer that is read from outside, with `read` and `acknowledge`. One that is there keeps its
        place."""
        check_name(name)
        start = check_start(start_at, f"drainer {name!r}")
        glob.checked(on)
        async with self._site.store() as store:
            there = await store.views.drainers(name, count_to=1)
            if there and there[0].origin != EXTERNAL:
                raise ConfigError(f"drainer {name!r} is there already: {_elsewhere(there[0])}")
            position = await beginning_at(store, start)
            await store.declare_drainers([DeclaredDrainer(name, on, EXTERNAL, position.text())])
            return await _find(store, name)

    async def read(self, name: str, limit: int = 100) -> Batch:
        """The next events of a drainer that is read from outside, in order, and the token that acknowledges them.
        Until then the same are read again."""
        if not 0 < limit <= MOST_READ:
            raise InvalidOption(f"limit={limit!r} must be from 1 to {MOST_READ}")
        async with self._site.store() as store:
            drainer = await _find_external(store, name)
            while await store.undrained(name):
                batch = await _read(store, drainer, limit)
                if batch is None:
                    await asyncio.sleep(LOOK_AGAIN)
                elif batch.events:
                    return batch
            return Batch([], None)

    async def acknowledge(self, name: str, token: str) -> None:
        """Says that what was read has been dealt with. A token counts once, and only while nobody has moved the
        drainer."""
        read = read_token(token, Acknowledgement)
        if read.drainer != name:
            raise InvalidOption(f"the token is of drainer {read.drainer!r}, not of {name!r}")
        async with self._site.store() as store:
            await _find_external(store, name)
            if not await store.acknowledge(name, start=read.start, end=read.end, count=read.count):
                raise StaleToken(
                    f"the token is not of where drainer {name!r} is now: it was acknowledged before, or the drainer "
                    "was reset; read again"
                )


# --- finding --------------------------------------------------------------------------------------------------------


async def _find(store: Store, name: str) -> DrainerView:
    if found := await store.views.drainers(name, count_to=MOST_LAG):
        return found[0]
    raise UnknownDrainer(name, [drainer.name for drainer in await store.views.drainers(count_to=1)])


async def _find_external(store: Store, name: str) -> DrainerView:
    drainer = await _find(store, name)
    if drainer.origin != EXTERNAL:
        raise ConfigError(f"drainer {name!r} cannot be read from outside: {_elsewhere(drainer)}")
    return drainer


def _elsewhere(drainer: DrainerView) -> str:
    """Who drains it."""
    if drainer.origin == EXTERNAL:
        return "it is read from outside, with `read` and `acknowledge`"
    if drainer.origin == BUILT_IN:
        return "it is built in, and workers drain it"
    return f"{drainer.origin} handles its events; name the app that declares it, or choose another name"


async def _position(store: Store, to: str | datetime) -> Position:
    if isinstance(to, datetime):
        return await store.position_at(micros(utc(to, what="to")))
    place = await store.place()
    if to in ("beginning", "now"):
        return place.now if to == "now" else place.beginning
    placed = read_token(to, Placed)
    if placed.lineage != _history(place):
        raise LedgerMoved("the token is of another cluster's ledger; reset to a time, `beginning` or `now`")
    return position_in(placed.position)


def _history(place: Place) -> str:
    """Which ledger positions are of; after the slash, PostgreSQL says who holds it now."""
    return place.lineage.partition("/")[0]


async def _read(store: Store, drainer: DrainerView, limit: int) -> Batch | None:
    """What a page has for the reader; what is none of his business is passed over. None if another holds the row."""
    async with store.draining(drainer.name, limit) as taken:
        if taken is None:
            return None
        transaction, page = taken
        events: list[Event] = [event for event in page.events if glob.matches(drainer.glob, event.type)]
        start = await store.hold_drainer(transaction, drainer.name)
        if not events and page.end != page.start:
            await transaction.apply([CursorMoved(drainer.name, page.end.text(), len(page.events))])
        await shielded(transaction.commit())
    read = Acknowledgement(drainer.name, str(start), page.end.text(), len(page.events))
    return Batch(events, token_of(read) if events else None)


async def _chosen(
    store: Store, subscription: str | None, event: str | None, *, end: int
) -> AsyncIterator[Sequence[ParkedView]]:
    """What is parked of what was recorded up to a number, a page at a time."""
    page = await store.views.parked(subscription, event, limit=PARKED_PAGE, end=end)
    if event is not None and not page:
        raise InvalidOption(f"no event {event!r} is parked here; `ostinato drainers parked` shows those that are")
    while page:
        yield page
        page = await store.views.parked(subscription, event, limit=PARKED_PAGE, after=page[-1], end=end)


def _check_replay(name: str) -> None:
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise InvalidOption(f"the name of a replay must have 1 to 100 printable characters, and is {name!r}")
