"""Durable workflows as a good engineer writes them by hand: each step's result is committed before the next one starts.

What makes it fast is group commit: the steps that many workflows have finished meanwhile are one INSERT and one commit.
What it lacks are leases, fences, retries, and a look at what is remembered: a crash loses no result, but nobody would
find it.
"""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from bench.contenders import Handler, Target
from bench.contenders.bare_postgres import SCHEMA as POSTGRES_JOBS
from bench.contenders.bare_postgres import BarePostgres
from bench.contenders.bare_sqlite import CLAIM, COMPLETE, BareSqlite
from bench.contenders.bare_sqlite import SCHEMA as SQLITE_JOBS
from bench.workflows import STEPS

POSTGRES_SCHEMA = f"""
{POSTGRES_JOBS}
create table steps (
    job_id      bigint not null,
    name        text not null,
    output      jsonb not null,
    finished_at timestamptz not null default now(),
    primary key (job_id, name)
);
"""
SQLITE_SCHEMA = f"""
{SQLITE_JOBS}
create table steps (
    job_id      integer not null,
    name        text not null,
    output      text not null,
    finished_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
    primary key (job_id, name)
) without rowid;
"""
POSTGRES_SAVE = """
insert into steps (job_id, name, output) select * from unnest($1::bigint[], $2::text[], $3::jsonb[])
"""
SQLITE_SAVE = "insert into steps (job_id, name, output) values (?, ?, ?)"
COUNT = "select count(*) from steps"


Row = tuple[int, str, str]


class Save(NamedTuple):
    """A step that has run, and the workflow that waits for its commit."""

    row: Row
    committed: asyncio.Future[None]


class BarePostgresWorkflows(BarePostgres):
    """The bare loop with a connection more, which saves steps: whatever has come in since the commit before."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._saves: list[Save] = []
        self._something_to_save = asyncio.Event()

    async def migrate(self) -> None:
        connection = await self._connect()
        await connection.execute(POSTGRES_SCHEMA)
        await self._stack.aclose()

    async def work(self, handle: Handler) -> None:
        saver = asyncio.create_task(self._save_steps())
        try:
            await super().work(handle)
        finally:
            saver.cancel()

    async def steps_completed(self) -> int:
        return int(await self._connection.fetchval(COUNT))

    async def _run(self, job_id: int, payload: str, handle: Handler) -> None:
        n = json.loads(payload)["n"]
        for step in STEPS:
            await handle(n)
            await self._saved(job_id, step, json.dumps(None))
        self._finish(job_id)

    def _saved(self, job_id: int, step: str, output: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._saves.append(Save((job_id, step, output), future))
        self._something_to_save.set()
        return future

    async def _save_steps(self) -> None:
        save = await (await self._connect()).prepare(POSTGRES_SAVE)
        while True:
            await self._something_to_save.wait()
            self._something_to_save.clear()
            batch, self._saves = self._saves, []
            await save.fetch(*map(list, zip(*(save.row for save in batch), strict=True)))
            for saved in batch:
                saved.committed.set_result(None)


class BareSqliteWorkflows(BareSqlite):
    """One writer thread: a transaction saves steps, completes what has finished, and claims what there is room for."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._saves: list[Save] = []
        self._writer = ThreadPoolExecutor(1)
        self._something_to_write = asyncio.Event()

    async def migrate(self) -> None:
        connection = self._connect()
        connection.executescript(SQLITE_SCHEMA)
        connection.close()

    async def __aexit__(self, *exc_info: object) -> None:
        self._writer.shutdown()
        await super().__aexit__(*exc_info)

    async def work(self, handle: Handler) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._something_to_write.clear()
            saves, self._saves = self._saves, []
            finished, self._finished = self._finished, []
            room = self._free
            jobs = await loop.run_in_executor(self._writer, self._write, [save.row for save in saves], finished, room)
            self._free -= len(jobs)
            for saved in saves:
                saved.committed.set_result(None)
            for job_id, payload in jobs:
                self._start(job_id, payload, handle)
            self._settled += len(finished)
            self._progress.set()
            await self._something_to_write.wait()

    async def steps_completed(self) -> int:
        return self._count(COUNT)

    async def _run(self, job_id: int, payload: str, handle: Handler) -> None:
        n = json.loads(payload)["n"]
        for step in STEPS:
            await handle(n)
            await self._saved(job_id, step, json.dumps(None))
        self._finished.append(job_id)
        self._free += 1
        self._something_to_write.set()

    def _saved(self, job_id: int, step: str, output: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._saves.append(Save((job_id, step, output), future))
        self._something_to_write.set()
        return future

    def _write(self, steps: Sequence[Row], finished: Sequence[int], room: int) -> list[tuple[int, str]]:
        with self._transaction():
            self._connection.executemany(SQLITE_SAVE, steps)
            if finished:
                self._connection.execute(COMPLETE, (json.dumps(finished),))
            return self._connection.execute(CLAIM, (room,)).fetchall() if room else []
