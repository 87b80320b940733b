"""Looking again and again, and drawing what was seen."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

from ...errors import StoreError
from .keyboard import keyboard
from .screen import Scene, draw

if TYPE_CHECKING:
    from ...app import App

SETTLED_FOR = 0.1
"""Seconds within which a run that has ended is committed, nearly always."""
SHARE = 4
"""At least so many times as long as a look took, nobody looks: a database in trouble is not asked all the time."""


async def watch(app: App, interval: float) -> None:
    """Until q, Ctrl-C, SIGTERM or SIGHUP."""
    from rich.console import Console
    from rich.live import Live

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    console = Console(highlight=False, emoji=False, markup=False)
    async with app:
        scene = Scene(app.settings.url, interval)
        await _look(app, scene)
        if scene.trouble is not None:
            raise scene.trouble
        with (
            keyboard(lambda pressed: stop.set() if "q" in pressed.lower() else None),
            Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            while not stop.is_set():
                live.update(draw(scene, width=console.width, height=console.height), refresh=True)
                await _pause(stop, max(interval - scene.took, SHARE * scene.took))
                await _look(app, scene)


async def _look(app: App, scene: Scene) -> None:
    """What there is to see now. If the database cannot be asked, that is shown, and what was seen before."""
    began = time.monotonic()
    since = scene.overview.until if scene.overview is not None else None
    try:
        scene.seen(await app.queues.overview(since=since, settled_for=SETTLED_FOR))
    except StoreError as error:
        scene.trouble = error
    scene.took = time.monotonic() - began


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
