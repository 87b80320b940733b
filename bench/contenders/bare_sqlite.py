"""The SQLite loop that a good engineer writes by hand: WAL, synchronous=FULL, batches, and not a single feature."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Self

from bench.contenders import Handler, Target

SCHEMA = """
create table jobs (
    id          integer primary key,
    state       integer not null default 0,             -- 0 ready, 1 running, 2 completed
    payload     text not null,
    attempts    integer not null default 0,
    created_at  text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
    started_at  text,
    finished_at text
);
create index jobs_ready on jobs (id) where state = 0;
"""

INSERT = "insert into jobs (payload) values (?) returning id"
INSERT_MANY = "insert into jobs (payload) values (?)"
INSERT_MANY_JSON = "insert into jobs (payload) select value from json_each(?)"

CLAIM = """
update jobs set state = 1, attempts = attempts + 1, started_at = strftime('%Y-%m-%dT%H:%M:%fZ')
where id in (select id from jobs where state = 0 order by id limit ?)
returning id, payload
"""
COMPLETE = """
update jobs set state = 2, finished_at = strftime('%Y-%m-%dT%H:%M:%fZ')
where id in (select value from json_each(?)) and state = 1
"""

PATH_PREFIX = "sqlite:///"
DATA_VERSION_EVERY = 0.002


class BareSqlite:
    """One connection, used inline: a thread was tried and gave nothing, since the statements are short.

    One transaction both completes the batch that has finished and claims the next: one fsync instead of two.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = target.concurrency
        self._finished: list[int] = []
        self._settled = 0
        self._progress = asyncio.Event()

    async def migrate(self) -> None:
        with closing(self._connect()) as connection:
            connection.executescript(SCHEMA)

    async def __aenter__(self) -> Self:
        self._connection = self._connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._connection.close()

    async def enqueue(self, n: int) -> None:
        self._connection.execute(INSERT, (json.dumps({"n": n}),)).fetchall()

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        with self._transaction():
            self._connection.executemany(INSERT_MANY, [(json.dumps({"n": n}),) for n in numbers])

    async def work(self, handle: Handler) -> None:
        while True:
            seen = self._data_version()
            for job_id, payload in self._settle_and_claim():
                self._start(job_id, payload, handle)
            await asyncio.sleep(0)
            await self._wait_for_work(seen)

    async def settled(self, count: int) -> None:
        while self._settled < count:
            self._progress.clear()
            await self._progress.wait()

    async def waiting(self) -> int:
        return self._count("select count(*) from jobs where state = 0")

    async def completed(self) -> int:
        return self._count("select count(*) from jobs where state = 2")

    def _count(self, query: str) -> int:
        (count,) = self._connection.execute(query).fetchone()
        return int(count)

    def _settle_and_claim(self) -> list[tuple[int, str]]:
        batch, self._finished = self._finished, []
        with self._transaction():
            if batch:
                self._connection.execute(COMPLETE, (json.dumps(batch),))
            jobs = self._connection.execute(CLAIM, (self._free,)).fetchall()
        self._free -= len(jobs)
        self._settled += len(batch)
        self._progress.set()
        return jobs

    def _start(self, job_id: int, payload: str, handle: Handler) -> None:
        task = asyncio.create_task(self._run(job_id, payload, handle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job_id: int, payload: str, handle: Handler) -> None:
        await handle(json.loads(payload)["n"])
        self._finished.append(job_id)
        self._free += 1

    async def _wait_for_work(self, seen: int) -> None:
        """Wait for a handler to finish or for another connection's commit, which changes the data version."""
        while not self._finished and self._data_version() == seen:  # noqa: ASYNC110  (nobody sets an event)
            await asyncio.sleep(DATA_VERSION_EVERY)

    def _data_version(self) -> int:
        (version,) = self._connection.execute("pragma data_version").fetchone()
        return int(version)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._connection.execute("rollback")
            raise
        self._connection.execute("commit")

    def _connect(self) -> sqlite3.Connection:
        path = self.target.url.removeprefix(PATH_PREFIX)
        connection = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        return connection


class BareSqliteJson(BareSqlite):
    """The same with all the inputs of a bulk insert in one JSON parameter: one statement instead of thousands."""

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        with self._transaction():
            self._connection.execute(INSERT_MANY_JSON, (json.dumps([{"n": n} for n in numbers]),))
