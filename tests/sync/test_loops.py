"""One app in many event loops: each has connections of its own, and none are left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ostinato import App, OstinatoError
from ostinato.errors import NotMigrated
from tests.engine.databases import Database
from tests.sync.helpers import connections, until

ROOT = Path(__file__).parents[2]


async def enqueue(app: App, count: int = 1) -> None:
    for _ in range(count):
        assert "pending" == await (await app.enqueue("greet")).status()


async def enqueue_inside(app: App) -> None:
    async with app:
        await enqueue(app, 2)


def runs(database: Database) -> int:
    return int(database.query("select count(*) from ostinato_runs")[0][0])


@pytest.fixture(autouse=True)
def threads_before() -> None:
    """Those of earlier tests, of which some end only after a while."""
    _BEFORE.clear()
    _BEFORE.update(threading.enumerate())


_BEFORE: set[threading.Thread] = set()


def ours() -> list[threading.Thread]:
    """The library's threads that have come with the test."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("ostinato") and thread not in _BEFORE]


def assert_nothing_is_open(database: Database) -> None:
    """On the server; and whatever is collected now would complain if it were open."""
    gc.collect()
    if database.dialect == "postgresql":
        until(lambda: connections(database) == 0)
    until(lambda: not ours())


def test_one_event_loop_after_another(app: App, database: Database):
    """`asyncio.run` again and again, with the app open or not."""
    for _ in range(3):
        asyncio.run(enqueue_inside(app))
        asyncio.run(enqueue(app))
    assert 9 == runs(database)
    assert_nothing_is_open(database)


def test_an_app_that_is_open_here_is_used_in_the_loop_of_another_thread(app: App, database: Database):
    """And the other way round, all at once."""

    async def main() -> None:
        async with app:
            await enqueue(app)
            await asyncio.gather(*(asyncio.to_thread(asyncio.run, enqueue_inside(app)) for _ in range(8)))
            await enqueue(app)

    asyncio.run(main())
    assert 18 == runs(database)
    assert_nothing_is_open(database)


def test_an_app_that_is_left_open_ends_with_its_loop(app: App, database: Database):
    """Whoever forgot to leave the block leaves no connection behind, and no warning."""

    async def careless() -> None:
        await app.__aenter__()
        await enqueue(app)

    asyncio.run(careless())
    assert_nothing_is_open(database)
    asyncio.run(enqueue_inside(app))
    assert 3 == runs(database)


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.2])
def test_a_wait_for_a_result_that_is_cut_short_leaves_nothing_open(app: App, database: Database, seconds: float):
    """A task that is cancelled, and once more when its loop ends, while it lets go of the app."""

    async def careless() -> None:
        async with app:
            handle = await app.enqueue("greet")
            waiting = asyncio.create_task(handle.result())
            await asyncio.sleep(seconds)
            waiting.cancel()

    asyncio.run(careless())
    assert_nothing_is_open(database)


def test_an_app_is_closed_once_for_each_time_it_was_opened(app: App):
    """And in the same loop; anything else is a mistake that is named."""

    async def main() -> None:
        async with app, app:
            await enqueue(app)
        with pytest.raises(OstinatoError, match="not open in this event loop"):
            await app.__aexit__(None, None, None)
        await enqueue(app)

    asyncio.run(main())


def test_an_app_that_could_not_be_opened_can_be_opened_later(postgres_database: Database):
    """Those who tried together are all told why."""
    app = App(postgres_database.url, schema="elsewhere")

    async def main() -> None:
        outcomes = await asyncio.gather(*(app.runs.counts() for _ in range(3)), return_exceptions=True)
        assert [NotMigrated] * 3 == [type(outcome) for outcome in outcomes]
        await app.migrations().up()
        assert [] == await app.runs.counts()

    asyncio.run(main())
    assert_nothing_is_open(postgres_database)


TESTS = """
import pytest
from ostinato import App
from ostinato.sync import Client

app = App()
client = Client(app)


@app.function
async def greet(): ...


@pytest.mark.parametrize("time", range(3))
async def test_alone(time):
    assert await (await greet.enqueue()).status() == "pending"


@pytest.mark.parametrize("time", range(3))
async def test_inside(time):
    async with app:
        await greet.enqueue()
    await app.__aenter__()
    await greet.enqueue()


@pytest.mark.parametrize("time", range(3))
def test_client(time):
    assert client.enqueue(greet).status() == "pending"
"""


def test_a_loop_for_each_test(database: Database, tmp_path: Path):
    """A module's app under pytest, where each test has a loop of its own and every warning is an error."""
    (tmp_path / "test_greeting.py").write_text(TESTS)
    settings = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", *settings, "--rootdir", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "OSTINATO_DATABASE_URL": database.url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "9 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "" == ended.stderr
    assert 12 == runs(database)
