"""What is remembered of runs. That it is saved, and that what is waited for has come, are changes of commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...model.event import Event
from ...model.step import Memo, Wait
from .commits import Transaction


class Steps(Protocol):
    async def memos(self, runs: Sequence[str]) -> list[Memo]:
        """The steps of these runs."""

    async def waits(self, transaction: Transaction, types: Sequence[str]) -> list[Wait]:
        """Who waits for events of these types, as the transaction sees it."""

    async def earlier(self, glob: str, *, since: int, after: int, limit: int) -> list[Event]:
        """Events recorded from a moment on, in microseconds since 1970, and after a number, the earliest first."""
