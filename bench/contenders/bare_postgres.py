"""The PostgreSQL loop that a good engineer writes by hand: fast, durable, and without a single feature."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Self

import asyncpg

from bench.claims import Statement
from bench.contenders import Handler, Target

SCHEMA = """
create table jobs (
    id          bigint generated always as identity primary key,
    state       smallint not null default 0,            -- 0 ready, 1 running, 2 completed
    payload     jsonb not null,
    attempts    smallint not null default 0,
    created_at  timestamptz not null default now(),
    started_at  timestamptz,
    finished_at timestamptz
);
create index jobs_ready on jobs (id) where state = 0;
"""

INSERT = "insert into jobs (payload) values ($1) returning id"
INSERT_AND_NOTIFY = f"with job as ({INSERT}) select id, pg_notify('jobs', '') from job"
INSERT_MANY = "insert into jobs (payload) select unnest($1::jsonb[]) returning id"
INSERT_MANY_JSON = "insert into jobs (payload) select value from jsonb_array_elements($1::jsonb) returning id"

CLAIM = """
update jobs set state = 1, attempts = attempts + 1, started_at = now()
where id = any(array(select id from jobs where state = 0 order by id limit $1 for update skip locked))
returning id, payload
"""
COMPLETE = "update jobs set state = 2, finished_at = now() where id = any($1::bigint[]) and state = 1"


class BarePostgres:
    """Batched claims on one connection, batched completions on another, LISTEN on a third.

    A slot is free again as soon as its handler has returned. The completions that are still to be written are bounded
    too, at as many again as there are slots: without that bound a crash would repeat any number of jobs.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = target.concurrency
        self._finished: list[int] = []
        self._unsettled = 0
        self._settled = 0
        self._something_finished = asyncio.Event()
        self._room = asyncio.Event()
        self._bell = asyncio.Event()
        self._progress = asyncio.Event()

    async def migrate(self) -> None:
        connection = await asyncpg.connect(self.target.url)
        try:
            await connection.execute(SCHEMA)
        finally:
            await connection.close()

    async def __aenter__(self) -> Self:
        self._connection = await self._connect()
        insert = INSERT_AND_NOTIFY if self.target.wake_ups else INSERT
        self._insert = await self._connection.prepare(insert)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def enqueue(self, n: int) -> None:
        await self._insert.fetchval(json.dumps({"n": n}))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._connection.fetch(INSERT_MANY, [json.dumps({"n": n}) for n in numbers])

    async def work(self, handle: Handler) -> None:
        await self._listen()
        completer = asyncio.create_task(self._complete_finished())
        try:
            await self._claim_and_start(handle)
        finally:
            completer.cancel()

    async def settled(self, count: int) -> None:
        while self._settled < count:
            self._progress.clear()
            await self._progress.wait()

    async def waiting(self) -> int:
        return int(await self._connection.fetchval("select count(*) from jobs where state = 0"))

    async def completed(self) -> int:
        return int(await self._connection.fetchval("select count(*) from jobs where state = 2"))

    @property
    def claim_session(self) -> dict[str, str]:
        return {}

    async def next_claims(self, limit: int) -> dict[str, Statement]:
        """See `bench.claims`: the bare loop remembers nothing between claims."""
        return {"bare loop": (CLAIM, (limit,))}

    async def advance(self, count: int) -> None:
        for first in range(0, count, self.target.concurrency):
            jobs = await self._connection.fetch(CLAIM, min(self.target.concurrency, count - first))
            await self._connection.execute(COMPLETE, sorted(job["id"] for job in jobs))

    async def _claim_and_start(self, handle: Handler) -> None:
        claim = await (await self._connect()).prepare(CLAIM)
        while True:
            room = await self._wait_for_room()
            self._bell.clear()
            jobs = await claim.fetch(room)
            self._free -= len(jobs)
            self._unsettled += len(jobs)
            for job in jobs:
                self._start(job["id"], job["payload"], handle)
            if len(jobs) < room:
                await self._wait_for_bell()

    def _start(self, job_id: int, payload: str, handle: Handler) -> None:
        task = asyncio.create_task(self._run(job_id, payload, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job_id: int, payload: str, handle: Handler) -> None:
        await handle(json.loads(payload)["n"])
        self._finish(job_id)

    def _finish(self, job_id: int) -> None:
        self._finished.append(job_id)
        self._free += 1
        self._something_finished.set()
        self._room.set()

    async def _complete_finished(self) -> None:
        complete = await (await self._connect()).prepare(COMPLETE)
        while True:
            await self._something_finished.wait()
            self._something_finished.clear()
            batch, self._finished = sorted(self._finished), []
            await complete.fetch(batch)
            self._unsettled -= len(batch)
            self._settled += len(batch)
            self._room.set()
            self._progress.set()

    async def _wait_for_room(self) -> int:
        while (room := min(self._free, 2 * self.target.concurrency - self._unsettled)) < 1:
            self._room.clear()
            await self._room.wait()
        return room

    async def _wait_for_bell(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.target.poll_seconds):
                await self._bell.wait()

    async def _listen(self) -> None:
        if self.target.wake_ups:
            await (await self._connect()).add_listener("jobs", lambda *_: self._bell.set())

    async def _connect(self) -> "asyncpg.Connection[asyncpg.Record]":
        connection = await asyncpg.connect(self.target.url)
        self._stack.push_async_callback(connection.close)
        return connection


class BarePostgresJson(BarePostgres):
    """The same with all the inputs of a bulk insert in one JSON parameter: one encoding call instead of thousands."""

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self._connection.fetch(INSERT_MANY_JSON, json.dumps([{"n": n} for n in numbers]))
