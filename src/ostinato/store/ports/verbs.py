"""What people do to runs and queues, and what tidies up after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...model.run import State
from ..flows import Cancellation
from .values import DeclaredFunction, DeclaredQueue


class Verbs(Protocol):
    async def cancel(self, ids: Sequence[str], reason: str, *, state: State | None = None) -> list[Cancellation]:
        """Ends what waits and asks for what runs to be stopped; with `state`, only what is still in it."""

    async def next_overdue(self) -> float | None:
        """Seconds until a run has not started, or not ended, by its time."""

    async def end_overdue(self, limit: int) -> list[Cancellation]:
        """Cancels at most so many runs that are overdue, and what they wait for."""

    async def retry(self, ids: Sequence[str], *, state: State | None = None) -> dict[str, str]: ...

    async def copy(self, run_id: str, *, copy: str, place: int) -> bool:
        """Makes a run, `copy`, like one that has ended, with the steps that it had completed before a place; False when
        there is none that has ended."""

    async def purge(self, ids: Sequence[str], *, state: State) -> list[str]:
        """Deletes runs that are still in the state, with their attempts; answers those that it deleted."""

    async def pause(self, queue: str) -> bool:
        """Stops claims from a queue, which need not be known yet; False when it was paused already."""

    async def resume(self, queue: str) -> bool:
        """Lets claims go on and wakes who sleeps on the queue; False when it was not paused."""

    async def prune(self, state: str, *, keep: float, limit: int) -> int: ...

    async def prune_events(self, *, keep: float, keep_unread: float | None, passed: int, limit: int) -> Sequence[int]:
        """Removes the oldest events after the number `passed`, up to the first that is younger than `keep` seconds, or
        that a drainer has not read and that is younger than `keep_unread` (None: whatever its age). Those that are
        parked stay. Answers the numbers of those that are gone, in order."""

    async def tidy(self) -> None:
        """Removes what nobody needs: keys past their time, workers long dead."""

    async def declare(self, functions: Sequence[DeclaredFunction], queues: Sequence[DeclaredQueue]) -> None: ...
