"""What the tests of clients do besides: a worker in a thread, a user's own connection, waiting."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from ostinato import App
from ostinato.sync.background import LoopThread
from tests.engine.databases import Database

LOOP = "ostinato client"


@contextmanager
def working(app: App) -> Iterator[None]:
    """A worker in an event loop of its own, in another thread."""
    started, stop = threading.Event(), threading.Event()

    async def work() -> None:
        async with app.worker():
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        assert started.wait(10)
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def own_connection(database: Database) -> Iterator[Any]:
    """A connection of the user's own, of a sync driver, with an open transaction."""
    if database.dialect == "sqlite":
        path = database.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
            connection.execute("begin immediate")
            yield connection
    else:
        with psycopg.connect(database.url) as postgres:
            yield postgres


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == LOOP]


def connections(database: Database) -> int:
    """How many connections of ours the server has."""
    query = "select count(*) from pg_stat_activity where application_name like 'ostinato%'"
    with psycopg.connect(database.url, autocommit=True) as connection:
        row = connection.execute(f"{query} and datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])


def until(condition: Callable[[], object], *, timeout: float = 10.0) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.005)


def waits(thread: threading.Thread) -> bool:
    """Whether the thread is inside a blocking call of a client, and has nothing to do but wait."""
    frame = sys._current_frames().get(thread.ident or 0)
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return bool(codes) and codes[0] is threading.Condition.wait.__code__ and LoopThread.wait.__code__ in codes
