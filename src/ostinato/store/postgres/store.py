"""The store on PostgreSQL."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakSet

import asyncpg
from msgspec import json

from ...errors import ConfigError, NotMigrated, StoreUnavailable
from ...model.change import Change, Committed, EventRecorded, RunCompleted, RunInserted, StepSaved
from ...model.event import Page, Place, Position
from ...model.run import START, Claimed, Mark
from ...shield import shielded
from .. import flows, recalling, sql
from ..base import FlowStore
from ..flows import Call, Flow, Row
from ..ports import Caller, Leases, Listener, Signal, Transaction, refuse_other_dialect
from . import claiming, counting, reading
from .diagnosis import PostgresDiagnosis
from .errors import RETRIABLE, translated, translated_from
from .listener import PostgresListener
from .migrating import PostgresMigrations
from .naming import adapt, check_schema
from .pool import Connection, Pool
from .transaction import PostgresTransaction

T = TypeVar("T")

_SESSION = {"application_name": "ostinato"}
_USER_SESSION = {**_SESSION, "jit": "off"}
_ENGINE_SESSION = {
    **_USER_SESSION,
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""Our own statements are index walks at any size. Plans are made when tables are small and kept when they are large,
so the planner is left no other choice; connections for users' statements and for views have it all."""
_TRIES = 5
_WORKERS_CONNECTIONS = 3
"""For claims, settlements and everything else."""
_INSERTED = Committed()


class PostgresStore(FlowStore):
    """Runs in a PostgreSQL schema. One instance belongs to one event loop."""

    works_aside = True

    def __init__(
        self,
        url: str,
        *,
        schema: str = "ostinato",
        listen_url: str | None = None,
        notify: bool = True,
        connections: int = 10,
        statement_cache: int = 200,
    ) -> None:
        super().__init__()
        self.url, self.schema, self.notify = url, check_schema(schema), notify
        self._listen_url = listen_url or url
        self._statement_cache = statement_cache
        self._pooled: set[str] = set()
        self._direct: set[str] = set()
        self._capped: set[str | None] = set()
        """Queues that were seen to have a cap: their runs are counted as they are inserted."""
        self.blocks = load_blocks(schema)
        self._identity: tuple[str, str] | None = None
        """The database's name and its server's own identifier, once it has been opened."""
        self._acquainted: WeakSet[Any] = WeakSet()
        """Callers' connections that are known to be to this database."""
        self._engine_pool = Pool(lambda: self._connect(session=_ENGINE_SESSION), size=max(1, connections // 2))
        self._pool = Pool(self._connect, size=max(1, connections // 2))
        self._lent = Pool(self._connect_for_users, size=connections)
        """For users' transactions alone: however long they last, our own reads do not wait for them."""

    # --- life

    async def open(self) -> None:
        """Connects once and refuses a database whose schema is missing or older than this code."""
        steps = await PostgresMigrations(self._pool.connection, schema=self.schema).status()
        if missing := [step.name for step in steps if step.applied_at is None]:
            raise NotMigrated(
                f"the database's schema {self.schema!r} lacks {', '.join(missing)}; run `ostinato migrate up`"
            )
        try:
            self._identity = _identity_in(await self.read(flows.reading("identity")))
        except asyncpg.InsufficientPrivilegeError:
            self._identity = None  # a server that does not tell: then nobody's connection is asked

    async def warm_up(self) -> None:
        with translated():
            await self._engine_pool.fill(min(_WORKERS_CONNECTIONS, self._engine_pool.size), self._plan)

    async def _plan(self, connection: Connection) -> None:
        """Has the server plan what every run waits for, by asking for nothing."""
        await self.execute(connection, self.claiming("", 0, worker="", mark=START, suspect=False))
        await self.execute(connection, flows.reading("complete_runs", settlements="[]"))

    async def close(self) -> None:
        await self._engine_pool.close()
        await self._pool.close()
        await self._lent.close()

    def migrations(self) -> PostgresMigrations:
        return PostgresMigrations(self._own_connection, schema=self.schema)

    def diagnosis(self) -> PostgresDiagnosis:
        return PostgresDiagnosis(self)

    def listener(self, on_signal: Callable[[Signal], None]) -> Listener:
        return PostgresListener(
            lambda: self._connect(self._listen_url),
            on_signal,
            channel=self.schema,
            blocks=self.blocks,
            probe=self._probe,
        )

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[Leases]:
        keeper = PostgresStore(self.url, schema=self.schema, connections=1, statement_cache=self._statement_cache)
        try:
            yield keeper
        finally:
            await keeper.close()

    # --- connections

    async def _connect(self, url: str | None = None, *, session: dict[str, str] = _USER_SESSION) -> Connection:
        with translated():
            connection = await self._dial(url or self.url, session)
        notice_dead_peers(connection)
        return connection

    async def _connect_for_users(self) -> Connection:
        connection = await self._connect()
        try:
            with translated():
                await _speak_json(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _dial(self, url: str, session: dict[str, str]) -> Connection:
        """Connects; through a pooler, which refuses settings of ours and mixes sessions up, without settings and
        statements of its own."""
        if url not in self._pooled:
            try:
                connection = await asyncpg.connect(
                    url, server_settings=session, statement_cache_size=self._statement_cache, timeout=10
                )
                if url in self._direct or await _is_direct(connection):
                    self._direct.add(url)
                    return connection
                await connection.close(timeout=2)
            except asyncpg.ProtocolViolationError as error:
                if "unsupported startup parameter" not in str(error):
                    raise
            self._pooled.add(url)
        return await asyncpg.connect(url, server_settings=_SESSION, statement_cache_size=0, timeout=10)

    @property
    def pooled(self) -> bool:
        """Whether a pooler was found between us and the server."""
        return self.url in self._pooled

    @asynccontextmanager
    async def _own_connection(self) -> AsyncIterator[Connection]:
        connection = await self._connect()
        try:
            yield connection
        finally:
            await connection.close(timeout=2)

    # --- flows

    async def read(self, flow: Flow[T]) -> T:
        async with self._pool.connection() as connection:
            with translated():
                return await self.execute(connection, flow)

    async def write(self, flow: Flow[T], *, single: bool = False) -> T:
        connection = await self._engine_pool.acquire()
        try:
            with translated():
                if single:
                    return await self.execute(connection, flow)
                return await shielded(self._transact(connection, flow))
        finally:
            self._engine_pool.release(connection)

    async def rewrite(self, make: Callable[[], Flow[T]]) -> T:
        for _ in range(_TRIES - 1):
            with suppress(*RETRIABLE):
                return await self.write(make())
        return await self.write(make())

    async def _transact(self, connection: Connection, flow: Flow[T]) -> T:
        async with connection.transaction():
            return await self.execute(connection, flow)

    async def execute(self, connection: Connection, flow: Flow[T]) -> T:
        """Drives a flow on a connection, in whatever transaction is open there."""
        blocks = self.blocks
        try:
            call = next(flow)
            while True:
                block = blocks[call.block]
                rows: Sequence[Row] = await connection.fetch(block.text, *block.arguments(call.arguments))
                call = flow.send(rows)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    # --- commits

    async def commit(self, changes: Sequence[Change]) -> Committed:
        for again in range(_TRIES):
            try:
                return await self._insert_alone(changes) or await super().commit(changes)
            except RETRIABLE:
                if again == _TRIES - 1:
                    raise
            except StoreUnavailable:
                # A failed commit may have committed. Settlements are fenced, so they can be given again; new runs
                # and events keep their ids, so it can be seen whether they are there.
                if again or (committed := await self._found(changes)) is None:
                    raise
                return committed
        raise AssertionError("unreachable")

    async def _insert_alone(self, changes: Sequence[Change]) -> Committed | None:
        """The commit that is a lone plain run, as most enqueues are: without the cost of a flow."""
        if len(changes) != 1 or not isinstance(run := changes[0], RunInserted) or not self._is_plain(run):
            return None
        call = self._insert_one(run)
        block = self.blocks[call.block]
        connection = await self._engine_pool.acquire()
        try:
            with translated():
                inserted = await connection.fetch(block.text, *block.arguments(call.arguments))
        finally:
            self._engine_pool.release(connection)
        if not inserted:
            self._capped.add(run.queue)
        return _INSERTED if inserted else None

    async def _found(self, changes: Sequence[Change]) -> Committed | None:
        """What became of new runs and events, if all of them are there. An event whose key was used before is, too."""
        runs = [change.id for change in changes if isinstance(change, RunInserted)]
        events = [change for change in changes if isinstance(change, EventRecorded)]
        if not changes or len(runs) + len(events) < len(changes):
            return None
        if runs and await self.views.existing(runs) != set(runs):
            return None
        known = await self.read(recalling.knowing(events)) if events else {}
        if len(known) < len(events):
            return None
        return Committed(recorded={asked: event_id for asked, event_id in known.items() if asked != event_id})

    def saving(self, steps: Sequence[StepSaved]) -> Flow[Collection[str]]:
        return claiming.saving(steps)

    def completing(self, settlements: Sequence[RunCompleted]) -> Flow[Collection[str]]:
        return claiming.completing(settlements)

    def claiming(
        self, queue: str, limit: int, *, worker: str, mark: Mark, suspect: bool, versions: str | None = None
    ) -> Flow[list[Claimed]]:
        return claiming.claiming(queue, limit, worker=worker, mark=mark, suspect=suspect, versions=versions)

    def recording(self, events: Sequence[EventRecorded]) -> Flow[dict[str, str]]:
        rows = yield Call("insert_events", {"events": flows.encoded(events), "ring": self.notify})
        return {row[0]: row[1] for row in rows}

    def inserting(self, changes: Sequence[RunInserted]) -> Flow[dict[str, str]]:
        if len(changes) == 1 and self._is_plain(changes[0]) and (yield self._insert_one(changes[0])):
            return {}
        rows = yield Call("insert_runs", {"requests": flows.encoded(changes), "ring": self.notify})
        return {row[0]: row[1] for row in rows}

    def _is_plain(self, run: RunInserted) -> bool:
        plain = run.key is None and run.run_at is None and run.parent_run is None and run.terms is None
        return plain and run.queue is not None and run.queue not in self._capped

    def _insert_one(self, run: RunInserted) -> Call:
        return Call(
            "insert_run",
            {
                "id": run.id,
                "function": run.function,
                "queue": run.queue,
                "delay": run.delay or 0.0,
                "priority": run.priority,
                "timeout": run.timeout,
                "invoked_by": run.invoked_by,
                "input": bytes(run.input).decode(),
                "metadata": None if run.metadata is None else bytes(run.metadata).decode(),
                "trace": None if run.trace is None else bytes(run.trace).decode(),
                "ring": self.notify,
            },
        )

    @asynccontextmanager
    async def begin(self, *, limit: float | None = None) -> AsyncIterator[Transaction]:
        async with self._lent.connection() as connection:
            transaction = PostgresTransaction(self, connection)
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
        return reading.reading_on(position, limit)

    async def apply_on(self, caller: Caller, changes: Sequence[Change]) -> Committed:
        refuse_other_dialect(caller, "postgresql")
        with translated_from(caller):
            await self._acquaint(caller)
            return await caller.drive(self.committing(changes), self.blocks)

    async def _acquaint(self, caller: Caller) -> None:
        """Makes sure that a caller's connection is to our database, once for each that we meet."""
        if self._identity is None or (driver := await caller.driver()) in self._acquainted:
            return
        theirs = _identity_in(await caller.drive(flows.reading("identity"), self.blocks))
        if theirs != self._identity:
            raise ConfigError(
                f"conn= is a connection to the database {theirs[0]!r}, but the app's is {self._identity[0]!r}"
                + (" on another server" if theirs[0] == self._identity[0] else "")
            )
        self._acquainted.add(driver)

    # --- wake-ups

    async def ring(self, queue: str) -> None:
        if self.notify:
            await self.write(flows.reading("ring", queue=queue), single=True)

    async def _probe(self, token: str) -> None:
        await self.write(flows.reading("probe", token=token), single=True)


async def _is_direct(connection: Connection) -> bool:
    """Whether the process that answers is the one we were connected to; a pooler that was told to let our settings
    pass makes up a number of its own. The statement has no name, so that it stays behind in nobody's session."""
    statement = await connection.prepare("select pg_backend_pid()", name="")
    return bool(connection.get_server_pid() == await statement.fetchval())


def notice_dead_peers(connection: Connection) -> None:
    """A peer that vanished without a word is noticed in seconds; on the system's defaults it takes many minutes."""
    peer = connection._transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, option):  # not on every system
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


@lru_cache(maxsize=16)
def load_blocks(schema: str) -> Mapping[str, sql.Block]:
    """The SQL for a schema: read once, since an app may have a store for each event loop that it meets."""
    blocks = sql.load("ostinato.store.postgres", adapt=lambda text: adapt(text, schema))
    return {name: sql.numbered(block) for name, block in blocks.items()}


def _identity_in(rows: Sequence[Row]) -> tuple[str, str]:
    ((name, server),) = rows
    return name, server


async def _speak_json(connection: Connection) -> None:
    """Users' statements take and give Python values for json and jsonb. Ours pass JSON as text."""
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, schema="pg_catalog", encoder=_encode, decoder=json.decode, format="text")


def _encode(value: Any) -> str:
    return json.encode(value).decode()
