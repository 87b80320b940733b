"""What is remembered of runs. That it is saved, and that what is waited for has come, are changes of commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...model.event import Event
from ...model.step import Memo, Wait, Waiting
from .commits import Transaction


class Steps(Protocol):
    async def memos(self, runs: Sequence[str]) -> list[Memo]:
        """The steps of these runs."""

    async def waits(self, transaction: Transaction, types: Sequence[str]) -> list[Wait]:
        """Who waits for events of these types, as the transaction sees it."""

    async def hold_waiting(self, transaction: Transaction, runs: Sequence[str]) -> Waiting:
        """Keeps others from giving events to these runs until the transaction ends; answers what they wait for."""

    async def watched(
        self, transaction: Transaction, function: str, paths: Sequence[str], wanted: Sequence[Mapping[str, Any]]
    ) -> list[tuple[str, int]]:
        """The runs of a function that these events cancel, and the place of the one that does: each event has its
        `place`, when it was `recorded`, and the `values` that a run's input must have at the paths."""

    async def earlier(self, glob: str, *, since: int, after: int, limit: int) -> list[Event]:
        """Events recorded from a moment on, in microseconds since 1970, and after a number, the earliest first."""
