"""Where the databases differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ...model.change import EventRecorded, RunCompleted, RunInserted, StepSaved
from .calls import Flow


class Dialect(Protocol):
    """What databases do so differently that a block of the same name is not enough."""

    def inserting(self, changes: Sequence[RunInserted]) -> Flow[dict[str, str]]:
        """Inserts runs; answers for those whose key was taken: the id asked for → the run that holds the key."""

    def completing(self, settlements: Sequence[RunCompleted]) -> Flow[Collection[str]]:
        """Completes runs; answers those for which the fence held, each once."""

    def saving(self, steps: Sequence[StepSaved]) -> Flow[Collection[str]]:
        """Saves steps of runs for which the fence holds; answers those runs."""

    def recording(self, events: Sequence[EventRecorded]) -> Flow[dict[str, str]]:
        """Records events; answers for those whose idempotency key was used before: the id asked for → the event that
        has the key."""
