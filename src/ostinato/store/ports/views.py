"""Reads for people and for those who wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from ...model.drainer import DrainerView, ParkedView
from ...model.event import LAST_NUMBER, Event, Subscription
from ...model.history import EventCount, EventFilter, EventLink, RunLink
from ...model.run import State
from ...model.view import (
    EndedCount,
    FailureView,
    FunctionView,
    QueueView,
    RunCount,
    RunFilter,
    RunView,
    ScheduleView,
    Selection,
    StepView,
    SubscriptionView,
    WorkerView,
)
from .values import Ended


class Views(Protocol):
    """Reads for people and for those who wait."""

    async def run(self, run_id: str) -> RunView | None: ...

    async def runs(self, where: RunFilter) -> list[RunView]: ...

    async def children(self, run_id: str) -> list[RunView]:
        """The runs that its steps have started."""

    async def steps(self, run_id: str) -> list[StepView]:
        """The steps of a run, in the order of their first calls."""

    async def counts(self) -> list[RunCount]: ...

    async def depths(self) -> dict[str, int]:
        """How many runs of each function could start now: ready, or held and due."""

    async def outcomes(self, ids: Sequence[str]) -> dict[str, Ended]: ...

    async def existing(self, ids: Sequence[str]) -> set[str]: ...

    async def workers(self, *, dead: bool = False) -> list[WorkerView]: ...

    async def schedules(self, name: str | None = None) -> list[ScheduleView]:
        """All schedules, or the one of that name."""

    async def subscriptions(self) -> list[Subscription]: ...

    async def subscription_views(self, name: str | None = None) -> list[SubscriptionView]:
        """All subscriptions, or the one of that name."""

    async def events(self, ids: Sequence[str]) -> list[Event]:
        """Those of these events that are there."""

    async def recent_events(self, where: EventFilter) -> list[Event]:
        """Events that match, the latest first."""

    async def event_counts(self, *, count_to: int) -> list[EventCount]:
        """How many of each type's latest events there are, by source."""

    async def event_links(
        self, *, ids: Sequence[str] = (), causes: Sequence[str] = (), runs: Sequence[str] = ()
    ) -> list[EventLink]:
        """Events by their ids, by what caused them, and by the runs that recorded them."""

    async def run_links(self, *, ids: Sequence[str] = (), reasons: Sequence[str] = ()) -> list[RunLink]:
        """Runs by their ids, and by how they were invoked: by an event, or by a run."""

    async def parked_entities(
        self, subscriptions: Sequence[str], entities: Sequence[tuple[str, str]]
    ) -> set[tuple[str, tuple[str, str]]]:
        """Of these entities, those of which these subscriptions have events parked."""

    async def drainers(self, name: str | None = None, *, count_to: int) -> list[DrainerView]:
        """All drainers, or the one of that name. Counts of what they have not read end at `count_to`."""

    async def parked(
        self,
        subscription: str | None = None,
        event: str | None = None,
        *,
        limit: int,
        after: ParkedView | None = None,
        end: int = LAST_NUMBER,
    ) -> list[ParkedView]:
        """What is parked, in order; for one subscription, or one event; after one of them, up to a number."""

    async def functions(self) -> list[FunctionView]: ...

    async def function_names(self) -> list[str]: ...

    async def queue_names(self) -> list[str]:
        """Queues that a worker, a function, or a run that has not ended names, or that have a row of their own."""

    async def queues(self, names: Sequence[str], *, count_to: int) -> list[QueueView]:
        """These queues by name, whether they are known or not. Counts of what waits end at `count_to`."""

    async def moment(self) -> int:
        """Microseconds since 1970, by the database's clock."""

    async def ended_lately(self, since: int, until: int, *, limit: int) -> list[EndedCount]:
        """Runs that have ended between two moments, at most `limit` of each state."""

    async def latest_failures(self, limit: int) -> list[FailureView]: ...

    def matching(self, state: State, where: Selection, *, limit: int) -> AsyncGenerator[list[str], None]:
        """The ids of runs in a state that match, in pages of those among `limit` runs."""
