"""Bugs planted in a worker process, to prove that a test would notice them; and impatience, to save time."""

from __future__ import annotations

from ostinato.engine import intake, worker


def impatient() -> None:
    """Handlers that do not stop are given up on after half a second."""
    worker.UNRESPONSIVE_GRACE = 0.5


def never_brisk() -> None:
    """Falls asleep after every run, however fast they come."""
    intake.BRISK_SLEEP = 0.0
