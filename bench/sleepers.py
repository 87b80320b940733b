"""Runs that sleep, all at once, on one worker: how late they wake, and what they cost while they sleep."""

from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Protocol

from bench.contenders import Contender


class SleepingContender(Contender, Protocol):
    """One whose jobs can sleep until a moment, in seconds since 1970, and hold nothing meanwhile."""

    async def put_to_sleep(self, due: Mapping[int, float]) -> None:
        """Enqueue jobs that sleep until their moment, and then call the handler."""

    async def asleep(self) -> int:
        """Count the jobs that sleep."""


def lateness(late_ms: Sequence[float]) -> dict[str, float]:
    """From the moment that was asked for to the first line after the sleep."""
    return {"p50_ms": median(late_ms), "p99_ms": quantiles(late_ms, n=100)[98], "max_ms": max(late_ms)}
