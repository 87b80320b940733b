"""The file that SQLite's store keeps: durable, shared with others, and sometimes in trouble."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from ostinato.errors import ConfigError, StoreError, StoreUnavailable
from ostinato.model.change import Committed
from ostinato.store.sqlite import SqliteStore
from ostinato.store.sqlite.naming import path_of
from tests.store.batches import together
from tests.store.databases import SqliteDatabase
from tests.store.samples import (
    DECLARED,
    QUEUE,
    a_run,
    a_worker,
    accepted,
    claim,
    runs,
)


async def test_commits_are_durable_by_default(tmp_path: Path):
    """A write-ahead log, flushed at every commit: what was acknowledged survives a power loss."""
    store = SqliteStore(f"sqlite:///{tmp_path}/radio.db")
    await store.open()
    async with store.begin() as tx:
        settings = [await tx.fetchval(f"pragma {name}") for name in ("journal_mode", "synchronous")]
    await store.close()

    assert ["wal", 2] == settings


async def test_reading_leaves_no_transaction_open(file: SqliteDatabase):
    """An open reader would starve the checkpoint: after any read the whole log can be written back."""
    await accepted(file.store, *runs(50))
    await file.store.views.counts()
    await file.store.next_due(QUEUE)

    async with file.connection() as connection:
        busy, pages, written = connection.execute("pragma wal_checkpoint(truncate)").fetchone()

    assert (0, 0, 0) == (busy, pages, written)


async def test_a_claim_of_nothing_writes_nothing(file: SqliteDatabase):
    """Idle workers do not wake each other: looking in vain is not a commit that others see."""
    worker = await a_worker(file.store)
    async with file.connection() as connection:
        (before,) = connection.execute("pragma data_version").fetchone()
        assert [] == await claim(file.store, worker=worker)
        assert 0 == await file.store.release_due(QUEUE, 10)
        (after,) = connection.execute("pragma data_version").fetchone()

    assert before == after


async def test_a_lock_that_is_held_too_long_is_an_error(file: SqliteDatabase):
    """After the limit of its patience the store says who is in the way; later it goes on as if nothing had been."""
    store = SqliteStore(file.url, synchronous="OFF", patience=0.05)
    async with file.connection() as connection:
        connection.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match="locked by another writer"):
            await store.commit([a_run()])
        with pytest.raises(StoreUnavailable, match="locked by another writer"):
            await store.begin().__aenter__()
        connection.execute("rollback")

    await accepted(store, a_run())
    await store.close()


async def test_a_lock_that_is_held_shortly_is_waited_for(file: SqliteDatabase):
    """A writer elsewhere only delays ours."""
    async with file.connection() as connection:
        connection.execute("begin immediate")
        task = asyncio.create_task(file.store.commit([a_run()]))
        await file.store.views.counts()
        assert not task.done()
        connection.execute("commit")

        assert Committed() == await task


async def test_a_full_disk_is_an_error(file: SqliteDatabase):
    """When there is no room, the batch fails as a whole; once there is room again, work goes on."""
    store = file.store
    async with store.begin() as tx:
        pages = await tx.fetchval("pragma page_count")
        await tx.fetchval(f"pragma max_page_count = {pages}")

    answers = await together(store, store.commit(runs(500)), store.commit(runs(500)))

    assert [True, True] == [isinstance(answer, StoreUnavailable) for answer in answers]
    assert 0 == await file.count("runs")
    async with store.begin() as tx:
        await tx.fetchval("pragma max_page_count = 1000000")
    await accepted(store, *runs(500))


async def test_a_missing_folder_is_an_error(tmp_path: Path):
    """The error names the file, and comes for reads, writes and migrations alike."""
    store = SqliteStore(f"sqlite:///{tmp_path}/missing/radio.db")

    for use in (store.open(), store.commit([a_run()]), store.views.counts(), store.migrations().up()):
        with pytest.raises(StoreUnavailable, match=r"missing/radio\.db cannot be used"):
            await use
    await store.close()


async def test_a_file_of_another_kind_is_an_error(tmp_path: Path):
    """A text file is not overwritten."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a rather long text " * 100)
    store = SqliteStore(str(path))

    with pytest.raises(StoreError, match="not an SQLite database"):
        await store.open()
    await store.close()
    assert path.read_text().startswith("not a database")


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/radio.db", "/var/lib/radio.db"),
        ("sqlite:///radio.db", str(Path.cwd() / "radio.db")),
        ("sqlite+aiosqlite:///radio.db", str(Path.cwd() / "radio.db")),
        ("radio.db", str(Path.cwd() / "radio.db")),
    ],
)
def test_a_url_names_a_file(url: str, path: str):
    """Three slashes are relative to where the process started, four are absolute."""
    assert path == path_of(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://radio.db", "mysql:///x"])
def test_a_url_must_name_a_file(url: str):
    """Memory is not durable, and two slashes name a host."""
    with pytest.raises(ConfigError):
        path_of(url)


@pytest.mark.parametrize("schema", ["", "a-b", "1a", 'x"y', "sqlite_", "a b"])
def test_a_schema_is_a_plain_name(schema: str, tmp_path: Path):
    """It begins the names of tables."""
    with pytest.raises(ConfigError, match="plain name"):
        SqliteStore(f"sqlite:///{tmp_path}/radio.db", schema=schema)


async def test_two_schemas_live_in_one_file(file: SqliteDatabase):
    """Each has its own tables and indexes."""
    other = SqliteStore(file.url, schema="night", synchronous="OFF")
    await other.open()
    await other.declare([DECLARED], [])
    await accepted(other, *runs(2))
    await accepted(file.store, a_run())

    assert [2] == [count.count for count in await other.views.counts()]
    assert [(2,)] == await file.query("select count(*) from night_runs")
    assert 1 == await file.count("runs")
    await other.close()


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """RETURNING came with 3.35."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))

    with pytest.raises(ConfigError, match=r"needs 3\.35\.0 or newer"):
        SqliteStore(f"sqlite:///{tmp_path}/radio.db")


def test_a_wrong_durability_is_refused(tmp_path: Path):
    """Only what SQLite knows."""
    with pytest.raises(ConfigError, match="synchronous='sometimes' must be one of OFF, NORMAL, FULL, EXTRA"):
        SqliteStore(f"sqlite:///{tmp_path}/radio.db", synchronous="sometimes")
