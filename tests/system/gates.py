"""Gates: files by which a test lets handlers in other processes go on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

VARIABLE = "SYSTEM_GATES"


async def passed(name: str) -> None:
    """Waits until the test has opened the gate."""
    while not is_open(name):  # noqa: ASYNC110 - it is opened by another process
        await asyncio.sleep(0.005)


def passed_blocking(name: str) -> None:
    """The same, holding the thread."""
    while not is_open(name):
        time.sleep(0.005)


def is_open(name: str) -> bool:
    return Path(os.environ[VARIABLE], name).exists()


class Gates:
    """The test's side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, name: str) -> None:
        (self.folder / name).touch()
