"""The demo itself: who does what, and when."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from ...errors import StoreUnavailable
from ...model.run import State
from . import radio
from .crew import Crew
from .music_service import ALBUMS, CURSED, UNHEARD_OF, Track
from .story import Story

WORKERS = 2
FIRST_KILL, NEXT_KILL = 5.0, 20.0
VACANCY = 3.0
LOOK_EVERY = 0.2
SHOWN = 200


class View(Protocol):
    """Whoever shows the story."""

    async def show(self, story: Story, crew: Crew) -> None:
        """Until it is cancelled."""


async def play(view: View, story: Story, *, duration: float | None) -> None:
    """Plays until Ctrl-C, SIGTERM, or the end of the time given."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with TemporaryDirectory(prefix="ostinato-") as folder:
        url = f"sqlite:///{Path(folder) / 'radio.db'}"
        radio.app.configure(url=url)
        story.url = url
        async with radio.app:
            await _play(view, story, Crew(url, story), stop, duration)


async def _play(view: View, story: Story, crew: Crew, stop: asyncio.Event, duration: float | None) -> None:
    parts = (_broadcast(story), _make_charts(story), _kill(crew, story), _watch(story), crew.fail_if_one_fails())
    try:
        async with radio.app.transaction() as tx:
            await tx.execute(radio.TABLE)
        for _ in range(WORKERS):
            await crew.hire()
        await _until(stop, duration, *parts, view.show(story, crew))
    finally:
        await crew.dismiss()
        await _look(story)
        await _count(story)


async def _until(stop: asyncio.Event, duration: float | None, *parts: Coroutine[Any, Any, None]) -> None:
    """Plays all parts at once until told to stop; an error in any of them ends it."""
    tasks = [asyncio.create_task(part) for part in parts]
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopped, *tasks], timeout=duration, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)


async def _broadcast(story: Story) -> None:
    """Tracks come in: a playlist to begin with, then some every now and then, and a listener's wish."""
    chance = random.Random(4)
    known = list(ALBUMS)
    await radio.add([UNHEARD_OF, *known[:23]])
    story.happened("24 tracks come in, rows and runs in one transaction")
    for turn in range(1, 1_000_000):
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        if turn % 6 == 0:
            await _wish(story, chance.choice(known))
        elif turn % 17 == 0:
            await radio.add(chance.sample(known, 12))
            story.happened("12 tracks come in at once")
        else:
            await radio.add(chance.sample([track for track in known if track != CURSED], chance.randint(2, 5)))


async def _wish(story: Story, track: Track) -> None:
    await radio.add([track], priority=radio.FIRST)
    story.happened(f"a listener wants {track.artist} · {track.title}: it goes first", colour="magenta")


async def _make_charts(story: Story) -> None:
    """A run that is due later, again and again."""
    while True:
        delay = 8
        handle = await radio.weekly_chart.options(delay=delay, metadata={"about": "the weekly chart"}).enqueue()
        story.happened(f"the weekly chart is scheduled, due in {delay} s")
        await handle.result()
        await asyncio.sleep(delay)


async def _kill(crew: Crew, story: Story) -> None:
    """Kills the busiest worker now and then, and hires another after a while, as a supervisor would."""
    await asyncio.sleep(FIRST_KILL - story.elapsed)
    while True:
        busy = [member for member in crew.members if member.working and len(story.running_of(member.worker)) > 1]
        if len(busy) < WORKERS:
            await asyncio.sleep(LOOK_EVERY)
            continue
        victim = max(busy, key=lambda member: len(story.running_of(member.worker)))
        await crew.kill(victim)
        await _look(story)
        story.kills += 1
        hands = len(story.running_of(victim.worker))
        story.happened(f"kill -9 of worker {victim.number}, with {hands} runs in its hands", colour="red")
        await asyncio.sleep(VACANCY)
        await crew.hire()
        await asyncio.sleep(NEXT_KILL - VACANCY)


async def _watch(story: Story) -> None:
    while True:
        await _look(story)
        await asyncio.sleep(LOOK_EVERY)


async def _look(story: Story) -> None:
    with suppress(StoreUnavailable):
        counts = await radio.app.runs.counts()
        runs = await radio.app.runs.list(limit=SHOWN)
        story.seen(counts, runs, await radio.app.workers.list())


async def _count(story: Story) -> None:
    """What the station's own table says, beside what the runs say."""
    async with radio.app.transaction() as tx:
        row = await tx.fetchrow("select count(album) as enriched, coalesce(max(times_enriched), 0) as most from tracks")
    assert row is not None
    story.enriched, story.most_times_enriched = row["enriched"], row["most"]
    story.looked_up = sum(
        count.count
        for count in await radio.app.runs.counts()
        if count.function == radio.enrich_track.name and count.state is State.COMPLETED
    )
