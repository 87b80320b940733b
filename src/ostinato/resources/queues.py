"""`app.queues`: what waits where, and stopping and clearing it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from ..clock import Duration
from ..config import queue_name
from ..errors import UnknownQueue
from ..model.view import BulkOutcome, Overview, QueueView
from ..store.ports import Store
from .bulk import States
from .runs import Runs

if TYPE_CHECKING:
    from ..engine.site import Site

ALL = 2**62
ENOUGH = 100_000
LATELY = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Queues:
    """Queues are named by functions, workers and runs; only what people decide about them is kept."""

    def __init__(self, site: Site, runs: Runs) -> None:
        self._site, self._runs = site, runs

    # --- looking

    async def list(self, *, count_to: int = ALL) -> Sequence[QueueView]:
        """Every queue that a worker, a function, a run that has not ended, or an operator has named. Counting what
        waits ends at `count_to`."""
        async with self._site.store() as store:
            return await store.views.queues(await store.views.queue_names(), count_to=count_to)

    async def get(self, name: str) -> QueueView:
        """One queue; UnknownQueue if nobody has named it."""
        async with self._site.store() as store:
            await self._refuse_unknown(store, name)
            return (await store.views.queues([name], count_to=ALL))[0]

    async def overview(
        self, *, since: datetime | None = None, settled_for: float = 0.0, failures: int = 10
    ) -> Overview:
        """Queues, workers, the latest failures, and what has ended since a moment (ten seconds ago), for views that
        are refreshed again and again: it costs no more when millions of runs have ended. Counts end at 100,000.

        A run's end is dated a moment before it is committed. Who adds up one overview after the other leaves
        `settled_for` seconds for that, and gives `until` of the last as `since` of the next.
        """
        async with self._site.store() as store:
            views = store.views
            until = await views.moment() - round(1_000_000 * settled_for)
            begin = until - round(1_000_000 * LATELY) if since is None else min(_micros(since), until)
            return Overview(
                since=_moment(begin),
                until=_moment(until),
                queues=await views.queues(await views.queue_names(), count_to=ENOUGH),
                ended=await views.ended_lately(begin, until, limit=ENOUGH),
                workers=await views.workers(),
                failures=await views.latest_failures(failures),
                counted_to=ENOUGH,
            )

    # --- stopping

    async def pause(self, name: str, *, create: bool = False) -> bool:
        """From the next claim on, no run of the queue starts; what runs goes on, and what is enqueued waits. It lasts
        until somebody resumes it, whatever is restarted meanwhile. False when it was paused already.

        `create`: also if nobody has named the queue yet.
        """
        async with self._site.store() as store:
            await self._refuse_unknown(store, name, unless=create)
            return await store.pause(name)

    async def resume(self, name: str) -> bool:
        """Lets the runs of a paused queue start, at once. False when it was not paused."""
        async with self._site.store() as store:
            await self._refuse_unknown(store, name)
            return await store.resume(name)

    # --- clearing

    async def purge(
        self,
        name: str,
        *,
        state: States = None,
        function: str | None = None,
        older_than: Duration | None = None,
        newer_than: Duration | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> BulkOutcome:
        """Deletes the runs of a queue that have ended, or those in the states that are named; see `app.runs.purge`."""
        async with self._site.store() as store:
            await self._refuse_unknown(store, name)
            return await self._runs.purge(
                state=state,
                limit=limit,
                dry_run=dry_run,
                queue=name,
                function=function,
                older_than=older_than,
                newer_than=newer_than,
            )

    # --- names

    async def _refuse_unknown(self, store: Store, name: str, *, unless: bool = False) -> None:
        """A name that nobody uses is probably mistyped. What the app itself declares is known before a worker says
        so."""
        queue_name(name)
        declared = {*self._site.settings.queues, *(spec.queue for spec in self._site.registry)}
        if not unless and name not in declared and name not in (known := await store.views.queue_names()):
            raise UnknownQueue.named(name, {*known, *declared})


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
