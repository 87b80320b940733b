"""Insertions that wait at the same time are done as one: a statement costs more than the run it inserts."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence

from ...model.change import Committed, RunInserted
from .desk import Errand

Insert = Callable[[sqlite3.Connection, Sequence[RunInserted]], Committed]


class Insertion(Errand[Committed]):
    """A commit of new runs and nothing else."""

    __slots__ = ("changes", "insert")

    def __init__(self, changes: Sequence[RunInserted], insert: Insert, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lambda connection: insert(connection, changes), loop)
        self.changes, self.insert = changes, insert


class Together(Errand[Committed]):
    """Several insertions as one. When it fails, perhaps because of one of them, each is to be done by itself."""

    __slots__ = ("_members",)

    def __init__(self, members: Sequence[Insertion]) -> None:
        changes = [change for member in members for change in member.changes]
        super().__init__(lambda connection: members[0].insert(connection, changes))
        self._members = members

    def share(self) -> None:
        """Gives each its part of the result."""
        existing = self.result.existing if self.result else {}
        for member in self._members:
            ids = [change.id for change in member.changes if change.id in existing] if existing else ()
            member.result = Committed(existing={run_id: existing[run_id] for run_id in ids})
