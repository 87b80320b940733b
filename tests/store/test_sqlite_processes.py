"""Several processes on one SQLite file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from tests.store.databases import SqliteDatabase


def run_python(script: str, *arguments: str) -> asyncio.Task[Any]:
    async def run() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, *arguments, stderr=asyncio.subprocess.PIPE
        )
        _, complaints = await process.communicate()
        return process.returncode, complaints.decode()

    return asyncio.create_task(run())


PRODUCER = """
import asyncio, sys
from msgspec import Raw
from ostinato.ids import new_id
from ostinato.model.change import RunInserted
from ostinato.store.sqlite import SqliteStore

async def main(url, count):
    store = SqliteStore(url, synchronous="OFF")
    await store.open()
    for _ in range(int(count)):
        await store.commit([RunInserted(new_id(), "mix", Raw(b"{}"), queue="default")])
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""

FORKING = """
import asyncio, os, sys
from msgspec import Raw
from ostinato.ids import new_id
from ostinato.model.change import RunInserted
from ostinato.store.sqlite import SqliteStore

def enqueue(store, count):
    async def some():
        for _ in range(count):
            await store.commit([RunInserted(new_id(), "mix", Raw(b"{}"), queue="default")])
            await store.views.counts()
    asyncio.run(some())

store = SqliteStore(sys.argv[1])
asyncio.run(store.open())
enqueue(store, 3)
(parent_reads, child_writes), (child_reads, parent_writes) = os.pipe(), os.pipe()
if (child := os.fork()) == 0:
    enqueue(store, 5)
    os.write(child_writes, b"x")
    os.read(child_reads, 1)
    enqueue(store, 7)
    os._exit(0)
os.read(parent_reads, 1)
enqueue(store, 11)
asyncio.run(store.close())  # and with it the log, if the parent believed to be the last
os.write(parent_writes, b"x")
assert os.waitpid(child, 0)[1] == 0
"""


async def test_processes_take_turns(file: SqliteDatabase):
    """Several processes that write one file at the same time all succeed, on a file that none of them made before."""
    url = file.url.replace(".db", "-new.db")

    answers = await asyncio.gather(*(run_python(PRODUCER, url, "60") for _ in range(3)))

    assert [(0, "")] * 3 == answers
    assert 180 == await SqliteDatabase(url).count("runs")


async def test_a_store_survives_a_fork(tmp_path: Path):
    """Parent and child go on with the same store, each with connections of its own; nothing is lost when one closes."""
    file = SqliteDatabase(f"sqlite:///{tmp_path}/forked.db")  # which no other process keeps open

    assert await run_python(FORKING, file.url) == (0, "")

    assert await file.count("runs") == 3 + 5 + 7 + 11
    assert await file.query("pragma integrity_check") == [("ok",)]
