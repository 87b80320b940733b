"""The demo's application: a radio station that looks up the albums of the tracks it plays.

`ostinato worker ostinato.cli.demo.radio:app` works for it; the demo's own process puts tracks in.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ostinato import App, Retry, Run

from .music_service import ServiceUnavailable, Track, UnknownTrack, album_of

SLOTS = 4
FIRST = 600
"""The highest priority: it sorts as if it had been due ten minutes ago."""

PARENT = "OSTINATO_DEMO_PROCESS"
"""Tells a worker which process started it."""

app = App(
    "sqlite:///radio.db", schema="ostinato", queues={"tracks": SLOTS, "reports": 1}, lease="2s", shutdown_grace="500ms"
)

TABLE = """
create table tracks (
    id integer primary key,
    artist text not null,
    title text not null,
    album text,
    times_enriched integer not null default 0
)
"""


@app.function(queue="tracks", retry=Retry("500ms", "1s", "2s").never(UnknownTrack), timeout="20s")
async def enrich_track(run: Run, track_id: int, artist: str, title: str) -> dict[str, str]:
    """Asks the music service, and writes the answer down together with the run's end: both or neither."""
    album = await album_of(Track(artist, title))
    async with run.transaction() as tx:
        await tx.execute(
            "update tracks set album = $1, times_enriched = times_enriched + 1 where id = $2", album, track_id
        )
    return {"album": album}


@app.function(queue="reports", retry=Retry("1s").on(ServiceUnavailable, "2s"))
async def weekly_chart(run: Run) -> dict[str, int]:
    """Counts what has been enriched."""
    async with run.transaction() as tx:
        found = await tx.fetchval("select count(*) from tracks where album is not null")
    return {"tracks": found}


async def add(tracks: list[Track], *, priority: int = 0) -> None:
    """Rows and the work on them in one transaction, as an application would add them."""
    async with app.transaction() as tx:
        for track in tracks:
            track_id = await tx.fetchval(
                "insert into tracks (artist, title) values ($1, $2) returning id", track.artist, track.title
            )
            enqueuer = enrich_track.options(priority=priority, metadata={"about": f"{track.artist} · {track.title}"})
            await tx.enqueue(enqueuer, track_id=track_id, artist=track.artist, title=track.title)


@app.lifespan
async def go_home_with_the_demo() -> AsyncIterator[Mapping[str, Any]]:
    """Ends the worker when the demo that started it is gone, however it went."""
    watch = asyncio.create_task(_watch(os.environ.get(PARENT)))
    yield {}
    watch.cancel()


async def _watch(parent: str | None) -> None:
    while parent in (None, str(os.getppid())):  # noqa: ASYNC110 (nothing tells that a parent is gone)
        await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
