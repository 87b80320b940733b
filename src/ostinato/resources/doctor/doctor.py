"""The doctor: asks the database, has the checks look at the answers, and goes on when one cannot be had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from ...errors import NotMigrated, OstinatoError, StoreUnavailable
from ...model.diagnosis import FileFacts, ServerFacts
from ...store.ports import ListenerChanged, Signal, Store
from . import file, server, work
from .findings import Finding, Level, error, warning
from .self_test import SelfTest, run_self_test

if TYPE_CHECKING:
    from ...engine.site import Site

LONG_TRANSACTION = 300.0
LISTENER_PATIENCE = 8.0

Answer = Awaitable[Iterable[Finding]]


class Ear(NamedTuple):
    """Whether signals arrive, and if not, why."""

    hears: bool
    why: str
    at_once: bool
    """Whether that was known without waiting for an answer."""


class Doctor:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def examine(self, *, long_transaction: float = LONG_TRANSACTION) -> Sequence[Finding]:
        """Everything that was looked at, in the order in which to read it."""
        async with self._unopened() as store:
            try:
                facts = await store.diagnosis().database(long_transaction=long_transaction)
            except StoreUnavailable as trouble:
                return [error("database", str(trouble), "see whether it runs, and whether the URL is right")]
            found = [*_of_database(facts)]
            for check, look in self._looks(store, facts):
                found += await _patiently(check, look)
                if check == "schema" and any(each.level is Level.ERROR for each in found if each.check == check):
                    break  # without the tables there is nothing more to see
            return found

    async def self_test(self) -> SelfTest:
        """Sends a run through, by a small worker in this process, and says how long each stage took."""
        async with self._site.store() as store:
            ear = await listen(store) if self._site.settings.notify else Ear(False, "", True)
            return await run_self_test(self._site, store, announces_listening=not ear.at_once)

    # --- looking

    def _looks(self, store: Store, facts: ServerFacts | FileFacts) -> Iterable[tuple[str, Callable[[], Answer]]]:
        return (
            ("schema", lambda: self._schema(store)),
            ("grants", lambda: self._grants(store)),
            ("wake-ups", lambda: self._wakeups(store, pooled=isinstance(facts, ServerFacts) and facts.pooled)),
            ("clock", lambda: self._clock(store)),
            ("queues", lambda: self._queues(store)),
            ("workers", lambda: self._workers(store)),
            ("functions", lambda: self._functions(store)),
        )

    async def _schema(self, store: Store) -> Iterable[Finding]:
        migrations = store.migrations()
        return work.migrations(await migrations.status(), automatic=migrations.automatic)

    async def _grants(self, store: Store) -> Iterable[Finding]:
        return work.grants(await store.diagnosis().missing_grants())

    async def _wakeups(self, store: Store, *, pooled: bool) -> Iterable[Finding]:
        settings = self._site.settings
        ear = await listen(store) if settings.notify else Ear(False, "", True)
        return work.wakeups(
            hears=ear.hears, why=ear.why, pooled=pooled, notify=settings.notify, apart=settings.listen_url is not None
        )

    async def _clock(self, store: Store) -> Iterable[Finding]:
        diagnosis = store.diagnosis()
        await diagnosis.now()  # the first answer may include connecting
        before = time.time()
        there = await diagnosis.now()
        after = time.time()
        return work.clock(there - (before + after) / 2, (after - before) / 2)

    async def _queues(self, store: Store) -> Iterable[Finding]:
        return work.queues(await store.diagnosis().queues())

    async def _workers(self, store: Store) -> Iterable[Finding]:
        alive = sum(worker.alive for worker in await store.views.workers())
        return work.stranded(await store.diagnosis().stranded(), alive=alive)

    async def _functions(self, store: Store) -> Iterable[Finding]:
        return work.functions(await store.diagnosis().undeclared())

    @asynccontextmanager
    async def _unopened(self) -> AsyncIterator[Store]:
        """A store that was not opened, since opening refuses a database with something wrong."""
        store = self._site.new_store()
        try:
            yield store
        finally:
            await store.close()


def _of_database(facts: ServerFacts | FileFacts) -> Iterable[Finding]:
    if isinstance(facts, ServerFacts):
        return [finding for check in server.CHECKS for finding in check(facts)]
    return [finding for look in file.CHECKS for finding in look(facts)]


async def _patiently(check: str, look: Callable[[], Answer]) -> Sequence[Finding]:
    """The answer of one check; that it could not be had is a finding too."""
    try:
        return [*await look()]
    except NotMigrated as trouble:
        return [error(check, str(trouble), "ostinato migrate up")]
    except OstinatoError as trouble:
        return [warning(check, f"could not be looked at: {trouble}", "run the doctor as a role that may read")]


async def listen(store: Store, *, patience: float = LISTENER_PATIENCE) -> Ear:
    """Whether a listener of this process hears anything."""
    heard: asyncio.Queue[Signal] = asyncio.Queue()
    listener = store.listener(heard.put_nowait)
    await listener.start()
    try:
        if listener.working:
            return Ear(True, "", at_once=True)
        async with asyncio.timeout(patience):
            while not isinstance(signal := await heard.get(), ListenerChanged):
                pass
        return Ear(signal.working, signal.why, at_once=False)
    except TimeoutError:
        return Ear(False, f"no answer within {patience:g} s", at_once=False)
    finally:
        await listener.stop()
