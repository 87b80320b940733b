"""The store on SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...errors import ConfigError, QueueFull, UnknownFunction
from ...model.change import Change, Committed, EventRecorded, RunCompleted, RunInserted, StepSaved, Terms
from ...model.event import Page, Place, Position
from ...model.run import Claimed, Mark
from ...shield import shielded
from .. import flows, migration, sql
from ..base import FlowStore
from ..flows import Call, Flow
from ..ports import Caller, Leases, Listener, Signal, Transaction, refuse_other_dialect
from . import claiming, counting, reading
from .connecting import PATIENCE, SYNCHRONOUS, Clock, check_version, connect, know_the_clock, wall_clock
from .desk import Reader
from .diagnosis import SqliteDiagnosis
from .driving import drive
from .errors import translated
from .insertion import Insertion
from .listener import SqliteListener
from .loan import Loan
from .migrating import SqliteMigrations
from .naming import adapt, check_schema, path_of
from .transaction import LONGEST, SqliteTransaction, refuse_inside_transaction
from .watch import Watch
from .writer import Writer

T = TypeVar("T")

_READERS = 3
_READ_CACHE_KIB = 2_000
_READ_PATIENCE_MS = 5000


class SqliteStore(FlowStore):
    """Runs in the user's own file. One instance serves any number of event loops and threads, and survives a fork.

    `clock` gives microseconds since 1970; tests replace it. `notify` means nothing here: a file is watched in any case.
    """

    works_aside = False
    """The writer's thread gets hold of the interpreter when the event loop lets go of it, which is when it has nothing
    to do."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "ostinato",
        notify: bool = True,
        synchronous: str = "FULL",
        patience: float = PATIENCE,
        clock: Clock = wall_clock,
    ) -> None:
        super().__init__()
        check_version()
        if synchronous.upper() not in SYNCHRONOUS:
            raise ConfigError(f"synchronous={synchronous!r} must be one of {', '.join(SYNCHRONOUS)}")
        self.url, self.path, self.schema, self.notify = url, path_of(url), check_schema(schema), notify
        self.clock = clock
        self.blocks = load_blocks(schema)
        self._synchronous, self._patience = synchronous, patience
        self._watch = Watch()
        self._writer = Writer(self._connect, path=self.path, patience=patience, watch=self._watch)
        self._reader = Reader(self._connect_to_read, name="ostinato reader", threads=_READERS)

    # --- life

    async def open(self) -> None:
        """Makes the file and its tables, or brings them up to date."""
        migrations = self.migrations()
        with self.translated():
            applied = await self._reader.ask(migrations.applied)
        if migration.missing(migrations.steps, applied):
            await migrations.up()

    async def warm_up(self) -> None:
        """The writer's connection is opened once, by whoever comes first."""

    async def close(self) -> None:
        await self._reader.close()
        await self._writer.close()

    def migrations(self) -> SqliteMigrations:
        return SqliteMigrations(self._connect, schema=self.schema, translated=self.translated)

    def diagnosis(self) -> SqliteDiagnosis:
        return SqliteDiagnosis(self)

    def listener(self, on_signal: Callable[[Signal], None]) -> Listener:
        return SqliteListener(self._writer, self._watch, on_signal)

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[Leases]:
        """A writer of its own: it takes turns with the other, and waits for none of what is queued there."""
        keeper = SqliteStore(
            self.path,
            schema=self.schema,
            synchronous=self._synchronous,
            patience=self._patience,
            clock=self._now,
        )
        try:
            yield keeper
        finally:
            await keeper.close()

    # --- connections

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, clock=self._now, synchronous=self._synchronous, patience=self._patience)

    def _now(self) -> int:
        return self.clock()

    def _connect_to_read(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("pragma query_only = on")
        connection.execute(f"pragma cache_size = -{_READ_CACHE_KIB}")
        connection.execute(f"pragma busy_timeout = {_READ_PATIENCE_MS}")
        return connection

    def translated(self) -> AbstractContextManager[None]:
        return translated(self.path, tables=f"{self.schema}_")

    # --- flows

    async def read(self, flow: Flow[T]) -> T:
        with self.translated():
            return await self._reader.ask(lambda connection: drive(connection, flow, self.blocks, set()))

    async def write(self, flow: Flow[T], *, single: bool = False) -> T:
        refuse_inside_transaction(self)
        with self.translated():
            return await shielded(self._writer.ask(lambda connection: self.drive(connection, flow)))

    def drive(self, connection: sqlite3.Connection, flow: Flow[T]) -> T:
        """Drives a flow on the writer's thread."""
        return drive(connection, flow, self.blocks, self._watch.executed)

    # --- commits

    async def commit(self, changes: Sequence[Change]) -> Committed:
        inserted = [change for change in changes if isinstance(change, RunInserted)]
        if len(inserted) < len(changes) or not changes:
            return await super().commit(changes)
        refuse_inside_transaction(self)
        insertion = Insertion(inserted, self._insert, asyncio.get_running_loop())
        self._writer.put(insertion)
        with self.translated():
            return await shielded(insertion.future)

    def _insert(self, connection: sqlite3.Connection, changes: Sequence[RunInserted]) -> Committed:
        return self.drive(connection, self.committing(changes))

    def saving(self, steps: Sequence[StepSaved]) -> Flow[Collection[str]]:
        return claiming.saving(steps)

    def completing(self, settlements: Sequence[RunCompleted]) -> Flow[Collection[str]]:
        return claiming.completing(settlements)

    def claiming(
        self, queue: str, limit: int, *, worker: str, mark: Mark, suspect: bool, versions: str | None = None
    ) -> Flow[list[Claimed]]:
        return claiming.claiming(queue, limit, worker=worker, mark=mark, suspect=suspect, versions=versions)

    def recording(self, events: Sequence[EventRecorded]) -> Flow[dict[str, str]]:
        plain = all(_is_plain(event) for event in events)
        given = [_said(event) if plain else _all_said(event) for event in events]
        yield Call("insert_events", {"events": flows.encoded(given), "plain": plain})
        keys = {event.id: event.idempotency_key for event in events if event.idempotency_key is not None}
        used = (yield Call("used_event_keys", {"keys": flows.encoded(keys)})) if keys else ()
        return {row[0]: row[1] for row in used}

    def inserting(self, changes: Sequence[RunInserted]) -> Flow[dict[str, str]]:
        keyed = [change for change in changes if change.key is not None and not change.force]
        forced = [change for change in changes if change.key is not None and change.force]
        held = (yield from _looking_for_keys(keyed)) if keyed else {}
        declared = yield from _checking([change for change in changes if change.id not in held])
        if forced:
            yield Call("force_keys", _key_requests(forced))
        existing = (yield from _taking_keys(keyed)) if keyed else {}
        changes = [change for change in changes if change.id not in existing]
        if changes:
            yield Call("insert_runs", {"requests": flows.encoded([_request(change, declared) for change in changes])})
        if terms := list(_terms(changes, declared)):
            yield Call("set_terms", {"terms": flows.encoded(terms)})
        return existing

    @asynccontextmanager
    async def begin(self, *, limit: float | None = None) -> AsyncIterator[Transaction]:
        refuse_inside_transaction(self)
        loan = Loan(LONGEST if limit is None else limit, asyncio.get_running_loop())
        self._writer.put(loan)
        transaction = SqliteTransaction(self, loan)
        await transaction.start()
        try:
            yield transaction
        finally:
            await transaction.rollback()

    def taking(self, name: str, limit: int) -> Flow[Page | None]:
        return reading.taking(name, limit)

    def peeking(self, name: str) -> Flow[bool]:
        return reading.peeking(name)

    def counting(self, position: Position, limit: int) -> Flow[int]:
        return counting.counting(position, limit)

    def finding(self, since: int) -> Flow[Position]:
        return counting.finding(since)

    def locating(self) -> Flow[Place]:
        return reading.locating()

    def reading_on(self, position: Position, limit: int) -> Flow[Page]:
        return reading.paging(position, limit)

    async def apply_on(self, caller: Caller, changes: Sequence[Change]) -> Committed:
        refuse_other_dialect(caller, "sqlite")
        with translated(self.path, tables=f"{self.schema}_", underlying=caller.underlying):
            await self._acquaint(caller)
            return await caller.drive(self.committing(changes), self.blocks)

    async def _acquaint(self, caller: Caller) -> None:
        """Makes sure that a caller's connection is to our file, and teaches it our clock."""
        try:
            file = await self._file_of(caller)
        except Exception as error:
            if "no such function: ostinato_now" not in str(caller.underlying(error)):
                raise
            if (taught := know_the_clock(await caller.driver(), self._now)) is not None:
                await taught
            file = await self._file_of(caller)
        self._refuse_other_file(file)

    async def _file_of(self, caller: Caller) -> str:
        ((file,),) = await caller.drive(flows.reading("identity"), self.blocks)
        return str(file)

    def _refuse_other_file(self, file: str) -> None:
        if not file or not Path(file).samefile(self.path):
            raise ConfigError(
                f"conn= is a connection to {file or 'a database in memory'}, but the app's database is {self.path}"
            )

    # --- wake-ups

    async def ring(self, queue: str) -> None:
        """Whoever made something ready has committed it, and everybody sees commits."""


# --- inserting ------------------------------------------------------------------------------------------------------


class Declared(NamedTuple):
    """What a function declares about its runs, as the database knows."""

    priority: int
    terms: Terms | None


def _checking(changes: Sequence[RunInserted]) -> Flow[dict[str, Declared]]:
    """Refuses unknown functions and queues without room, before anything is written; answers what the others declare
    about their runs."""
    asked = Counter((change.function, change.queue) for change in changes if not change.uncapped)
    pairs = [
        {"function": function, "queue": queue, "asked": asked[function, queue]}
        for function, queue in dict.fromkeys((change.function, change.queue) for change in changes)
    ]
    wanted: Counter[tuple[str, int]] = Counter()
    declared: dict[str, Declared] = {}
    for function, queue, cap, count, priority, *terms in (yield Call("targets", {"pairs": flows.encoded(pairs)})):
        if queue is None:
            raise UnknownFunction(
                f'no function is named "{function}"; '
                "start a worker that declares it once, so that the database knows it"
            )
        known = None if terms == _NO_TERMS else Terms(terms[0], terms[1], watched=bool(terms[2]))
        declared[function] = Declared(priority or 0, known)
        if cap is not None and count:
            wanted[queue, cap] += count
    for (queue, cap), count in wanted.items():
        waiting = (yield Call("count_waiting", {"queue": queue, "limit": cap}))[0][0]
        if waiting + count > cap:
            raise QueueFull(
                f'queue "{queue}" may hold {cap} waiting runs, has {min(waiting, cap)} and was given {count} more; '
                "try again later, or raise max_waiting of the queue"
            )
    return declared


_NO_TERMS = [None, None, 0]


def _terms(changes: Sequence[RunInserted], declared: Mapping[str, Declared]) -> Iterator[dict[str, Any]]:
    """What is written to these runs besides: what their functions declare, as who inserts them knows, or the
    database."""
    for change in changes:
        terms = change.terms
        if terms is None and change.queue is not None:
            continue
        if terms is None or terms.declared:
            terms = declared[change.function].terms
        if terms is not None:
            yield {"id": change.id, **msgspec.structs.asdict(terms)}


def _looking_for_keys(keyed: Sequence[RunInserted]) -> Flow[dict[str, str]]:
    """The runs that would not be added, since another holds the key: they need no room."""
    yield Call("drop_old_keys", _key_requests(keyed))
    held = {row[0]: row[1] for row in (yield Call("key_holders", _key_requests(keyed)))}
    seen: set[tuple[str, str | None]] = set()
    for change in keyed:
        if (change.function, change.key) in seen:
            held.setdefault(change.id, "")
        seen.add((change.function, change.key))
    return held


def _taking_keys(keyed: Sequence[RunInserted]) -> Flow[dict[str, str]]:
    """Takes the keys that are free; answers for the others who holds them."""
    yield Call("take_keys", _key_requests(keyed))
    return {row[0]: row[1] for row in (yield Call("key_holders", _key_requests(keyed)))}


def _key_requests(keyed: Sequence[RunInserted]) -> dict[str, object]:
    fields = ("id", "function", "key", "unique", "unique_for")
    return {"requests": flows.encoded([{name: getattr(run, name) for name in fields} for run in keyed])}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _request(change: RunInserted, declared: Mapping[str, Declared]) -> Any:
    """The run with its priority, and with its moment in microseconds, which SQLite's own functions would cut to
    milliseconds."""
    if change.run_at is None and change.priority is not None:
        return change
    fields = msgspec.structs.asdict(change)
    if change.run_at is not None:
        fields["run_at"] = max(0, (datetime.fromisoformat(change.run_at) - _EPOCH) // timedelta(microseconds=1))
    if change.priority is None:
        fields["priority"] = declared[change.function].priority
    return fields


def _is_plain(event: EventRecorded) -> bool:
    """Whether it has nothing but a payload and an entity."""
    return (
        event.idempotency_key is None
        and event.caused_by is None
        and event.run_id is None
        and event.source is None
        and event.occurred_at is None
    )


def _said(event: EventRecorded) -> tuple[Any, ...]:
    return event.id, event.type, event.payload, event.entity_type, event.entity_id


def _all_said(event: EventRecorded) -> tuple[Any, ...]:
    """With its moment in microseconds."""
    occurred_at = None
    if event.occurred_at is not None:
        occurred_at = (datetime.fromisoformat(event.occurred_at) - _EPOCH) // timedelta(microseconds=1)
    return *_said(event), event.caused_by, event.run_id, event.source, occurred_at, event.idempotency_key


@lru_cache(maxsize=16)
def load_blocks(schema: str) -> Mapping[str, sql.Block]:
    """The SQL for a schema: read once, since an app may have a store for each event loop that it meets."""
    return sql.load("ostinato.store.sqlite", adapt=lambda text: adapt(text, schema))
