"""How SQLite's listener learns of commits, and how rarely it looks when there is nothing to see."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from ostinato.store.ports import RESULTS, CancelAsked, Rung, RunsEnded, Signal, queue_topic
from ostinato.store.sqlite.watch import ANYTHING, FAST_FOR, FASTEST, SLOWEST, Watch, pause_after
from tests.store.databases import SqliteDatabase
from tests.store.samples import QUEUE, a_worker, accepted, claim, completed, enqueue


class Ear:
    """A listener that is always armed, and remembers what it heard."""

    armed = True

    def __init__(self) -> None:
        self.heard: list[Signal] = []

    def hear(self, signals: Iterable[Signal]) -> None:
        self.heard += signals


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def watch(ear: Ear) -> Watch:
    watch = Watch()
    watch.add(ear)
    return watch


async def test_claims_and_leases_wake_nobody_here(file: SqliteDatabase):
    """What this store commits is told only if others have something to do because of it."""
    store, signals = file.store, asyncio.Queue[Signal]()
    worker = await a_worker(store)
    await enqueue(store)
    await store.renew(worker, stopping=False)  # once the writer does this, it has told of the enqueue
    listener = store.listener(signals.put_nowait)
    await listener.start()
    for topic in (queue_topic(QUEUE), RESULTS):
        assert await listener.arm(topic)
    await signals.get()  # of the first look
    while not signals.empty():
        signals.get_nowait()

    (run,) = await claim(store, worker=worker)
    await store.renew(worker, stopping=False)
    await accepted(store, completed(run))

    assert await signals.get() == RunsEnded(None)
    await listener.stop()


def test_commits_of_others_are_seen_and_own_ones_are_not(tmp_path: Path, watch: Watch, ear: Ear):
    """The writer's own connection does not count its own commits as changes."""
    path = tmp_path / "radio.db"
    with closing(sqlite3.connect(path)) as mine, closing(sqlite3.connect(path)) as theirs:
        mine.execute("pragma journal_mode = wal")
        watch.look(mine)
        ear.heard.clear()
        for connection, seen in ((mine, False), (theirs, True), (mine, False)):
            connection.execute("create table if not exists tracks (title)")
            connection.execute("insert into tracks values ('Ostinato')")
            connection.commit()
            watch._looked = 0.0
            watch.look(mine)

            assert bool(ear.heard) == seen
            ear.heard.clear()


def test_what_others_commit_does_not_keep_the_watch_awake(tmp_path: Path, watch: Watch, ear: Ear):
    """Leases are renewed all the time; if every renewal counted as activity, nobody would ever look less often."""
    with closing(sqlite3.connect(tmp_path / "radio.db")) as connection:
        watch.look(connection)

    assert list(ANYTHING) == ear.heard
    assert watch.pause() == SLOWEST


def test_own_changes_and_new_sleepers_keep_the_watch_awake(watch: Watch):
    """Where something is done, more is likely to come."""
    watch.committed(changed=False)
    assert watch.pause() == SLOWEST

    watch.committed(changed=True)
    assert watch.pause() == FASTEST

    again = Watch()
    again.add(Ear())
    again.stir()
    assert again.pause() == FASTEST


def test_commits_tell_what_follows_from_them(watch: Watch, ear: Ear):
    """An insertion rings, an end is told to those who wait, a cancelling to the workers; a claim tells nothing."""
    told: dict[str, set[Signal]] = {}
    for block in ("claim", "renew_worker", "insert_runs", "complete_runs", "settle_runs", "cancel_runs"):
        watch.executed.add(block)
        watch.committed(changed=True)
        told[block] = set(ear.heard)
        ear.heard.clear()

    assert told == {
        "claim": set(),
        "renew_worker": set(),
        "insert_runs": {Rung(None)},
        "complete_runs": {RunsEnded(None)},
        "settle_runs": {Rung(None), RunsEnded(None)},
        "cancel_runs": {RunsEnded(None), CancelAsked()},
    }


def test_without_listeners_nobody_looks(watch: Watch, ear: Ear):
    """A store that only enqueues leaves the file alone."""
    watch.remove(ear)

    assert watch.pause() is None
    assert not watch.listened_to


def test_looking_slows_down():
    """Two milliseconds for ten seconds, then less and less often, down to fifty milliseconds."""
    assert [pause_after(0), pause_after(FAST_FOR)] == [FASTEST, FASTEST]
    assert FASTEST < pause_after(2 * FAST_FOR) < pause_after(3 * FAST_FOR) < SLOWEST
    assert pause_after(3600) == SLOWEST
