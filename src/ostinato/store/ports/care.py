"""What looks after a database: its schema, and whether it is well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...model.diagnosis import FileFacts, MissingGrant, QueueHealth, ServerFacts, StrandedRuns
from .values import MigrationView


class Diagnosis(Protocol):
    """What a doctor may ask. The first two need none of our tables, so they answer before there are any."""

    async def database(self, *, long_transaction: float) -> ServerFacts | FileFacts:
        """What the database says of itself; transactions of others are told that last longer than so many seconds."""

    async def missing_grants(self) -> list[MissingGrant] | None:
        """What roles lack; None where there are none."""

    async def now(self) -> float:
        """The database's clock, in seconds since 1970."""

    async def queues(self) -> list[QueueHealth]: ...

    async def stranded(self) -> list[StrandedRuns]: ...

    async def undeclared(self) -> dict[str, int]:
        """Functions that waiting runs name and nobody has declared → how many runs."""

    async def forget(self, *, runs: Sequence[str], function: str, queue: str, worker: str | None) -> None:
        """Removes every trace of a self-test."""


class Migrations(Protocol):
    """The schema's numbered steps."""

    @property
    def automatic(self) -> bool:
        """Whether opening the database applies what is missing."""

    def grants(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> str:
        """The SQL that gives roles what they need, where there are roles."""

    async def grant(self, *, producers: Sequence[str], workers: Sequence[str], readers: Sequence[str]) -> None:
        """Gives roles what they need; again after a migration that adds something."""

    async def up(self) -> list[str]:
        """Applies what is missing; answers the names of what it applied."""

    async def status(self) -> list[MigrationView]: ...

    async def verify(self) -> list[str]:
        """Differences between what was applied and what this version ships, in words."""

    def sql(self) -> str:
        """Everything as one script, for people who apply it with their own tools."""
