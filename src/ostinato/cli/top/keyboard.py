"""Keys as they are pressed."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def keyboard(on_key: Callable[[str], None]) -> Iterator[None]:
    """Tells what is pressed, without waiting for Enter; nothing, when there is no terminal to press it on. The terminal
    is given back as it was. A terminal that goes away presses q."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: on_key(_pressed(descriptor)))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pressed(descriptor: int) -> str:
    try:
        return os.read(descriptor, 64).decode(errors="replace") or "q"
    except OSError:
        return "q"
