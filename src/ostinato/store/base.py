"""The verbs of a store, as flows. A database adds how flows are executed, how it listens and how it migrates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from msgspec import json

from ..model.change import Change, Committed, EventRecorded, RunCompleted, RunInserted, StepSaved
from ..model.drainer import DrainerView, ParkedView, drainer_in, parked_in
from ..model.event import (
    LAST_NUMBER,
    Event,
    Page,
    Place,
    Position,
    Subscription,
    event_in,
    position_in,
    subscription_in,
)
from ..model.history import EventCount, EventFilter, EventLink, RunLink, count_in, event_link_in, run_link_in
from ..model.run import START, Claimed, Mark, Orphan, State
from ..model.schedule import Planned, Schedule
from ..model.step import Memo, Wait, Waiting, memo_in
from ..model.view import (
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
from . import flows, recalling, walking
from .flows import Cancellation, Flow, Row
from .ports import Bearings, DeclaredDrainer, DeclaredFunction, DeclaredQueue, Ended, Fence, Pass, Transaction

T = TypeVar("T")


class FlowViews:
    """The reads of a store."""

    def __init__(self, store: FlowStore) -> None:
        self._store = store

    async def run(self, run_id: str) -> RunView | None:
        rows = await self._read("run", id=run_id)
        return json.decode(rows[0][0], type=RunView) if rows else None

    async def runs(self, where: RunFilter) -> list[RunView]:
        rows = await self._read(
            "runs",
            function=where.function,
            queue=where.queue,
            state=where.state,
            key=where.key,
            code=where.code,
            older_than=where.older_than,
            newer_than=where.newer_than,
            before=where.before,
            limit=where.limit,
        )
        return [json.decode(row[0], type=RunView) for row in rows]

    async def children(self, run_id: str) -> list[RunView]:
        return [json.decode(row[0], type=RunView) for row in await self._read("children", id=run_id)]

    async def steps(self, run_id: str) -> list[StepView]:
        return [json.decode(row[0], type=StepView) for row in await self._read("steps", id=run_id)]

    async def counts(self) -> list[RunCount]:
        return [json.decode(row[0], type=RunCount) for row in await self._read("counts")]

    async def depths(self) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._read("depths")}

    async def outcomes(self, ids: Sequence[str]) -> dict[str, Ended]:
        return {row[0]: Ended(*row[1:]) for row in await self._read("outcomes", ids=flows.encoded(ids))}

    async def existing(self, ids: Sequence[str]) -> set[str]:
        return {row[0] for row in await self._read("existing_runs", ids=flows.encoded(ids))}

    async def workers(self, *, dead: bool = False) -> list[WorkerView]:
        return [json.decode(row[0], type=WorkerView) for row in await self._read("workers", dead=dead)]

    async def schedules(self, name: str | None = None) -> list[ScheduleView]:
        return [json.decode(row[0], type=ScheduleView) for row in await self._read("schedules", name=name)]

    async def functions(self) -> list[FunctionView]:
        return [json.decode(row[0], type=FunctionView) for row in await self._read("functions")]

    async def function_names(self) -> list[str]:
        return [row[0] for row in await self._read("function_names")]

    async def queue_names(self) -> list[str]:
        return [row[0] for row in await self._read("queue_names")]

    async def queues(self, names: Sequence[str], *, count_to: int) -> list[QueueView]:
        rows = await self._read("queues", names=flows.encoded(names), limit=count_to)
        return [json.decode(row[0], type=QueueView) for row in rows]

    async def moment(self) -> int:
        return int((await self._read("moment"))[0][0])

    async def ended_lately(self, since: int, until: int, *, limit: int) -> list[EndedCount]:
        rows = await self._read("ended_lately", since=since, until=until, limit=limit)
        return [EndedCount(row[0], State(row[1]), row[2]) for row in rows]

    async def latest_failures(self, limit: int) -> list[FailureView]:
        return [json.decode(row[0], type=FailureView) for row in await self._read("latest_failures", limit=limit)]

    def matching(self, state: State, where: Selection, *, limit: int) -> AsyncGenerator[list[str], None]:
        return walking.pages(self._read, state, where, limit=limit)

    async def subscriptions(self) -> list[Subscription]:
        return [subscription_in(row) for row in await self._read("subscriptions")]

    async def subscription_views(self, name: str | None = None) -> list[SubscriptionView]:
        return [json.decode(row[0], type=SubscriptionView) for row in await self._read("subscription_views", name=name)]

    async def events(self, ids: Sequence[str]) -> list[Event]:
        return [event_in(row) for row in await self._read("events_by_id", ids=flows.encoded(ids))]

    async def recent_events(self, where: EventFilter) -> list[Event]:
        return await self._store.read(recalling.recent(where))

    async def event_counts(self, *, count_to: int) -> list[EventCount]:
        return [count_in(row) for row in await self._read("event_counts", limit=count_to)]

    async def event_links(
        self, *, ids: Sequence[str] = (), causes: Sequence[str] = (), runs: Sequence[str] = ()
    ) -> list[EventLink]:
        asked = {"ids": flows.encoded(ids), "causes": flows.encoded(causes), "runs": flows.encoded(runs)}
        found = {row[0]: event_link_in(row) for row in await self._read("event_links", **asked)}
        return [found[event_id] for event_id in sorted(found)]

    async def run_links(self, *, ids: Sequence[str] = (), reasons: Sequence[str] = ()) -> list[RunLink]:
        rows = await self._read("run_links", ids=flows.encoded(ids), reasons=flows.encoded(reasons))
        found = {row[0]: run_link_in(row) for row in rows}
        return [found[run_id] for run_id in sorted(found)]

    async def parked_entities(
        self, subscriptions: Sequence[str], entities: Sequence[tuple[str, str]]
    ) -> set[tuple[str, tuple[str, str]]]:
        asked = {"names": flows.encoded(subscriptions), "entities": flows.encoded(entities)}
        return {(name, (kind, entity)) for name, kind, entity in await self._read("parked_entities", **asked)}

    async def drainers(self, name: str | None = None, *, count_to: int) -> list[DrainerView]:
        return [await self._drainer(row, count_to) for row in await self._read("drainers", name=name)]

    async def _drainer(self, row: Row, count_to: int) -> DrainerView:
        position = position_in(row[3])
        lag = await self._store.lag(position, count_to) if row[12] == row[13] else None
        return drainer_in(row, position, lag)

    async def parked(
        self,
        subscription: str | None = None,
        event: str | None = None,
        *,
        limit: int,
        after: ParkedView | None = None,
        end: int = LAST_NUMBER,
    ) -> list[ParkedView]:
        last, behind = (after.sequence_no, after.subscription) if after is not None else (0, "")
        chosen = {"subscription": subscription, "event": event, "last": last, "last_subscription": behind, "end": end}
        return [parked_in(row) for row in await self._read("parked", **chosen, limit=limit)]

    async def _read(self, block: str, **arguments: object) -> Sequence[Row]:
        return await self._store.read(flows.reading(block, **arguments))


class FlowStore(ABC):
    """Everything a store does that is the same on every database."""

    def __init__(self) -> None:
        self.views = FlowViews(self)

    # --- what a database adds

    @abstractmethod
    async def write(self, flow: Flow[T], *, single: bool = False) -> T:
        """Executes a flow in one transaction. `single`: it is one statement, which is a transaction by itself."""

    @abstractmethod
    async def read(self, flow: Flow[T]) -> T:
        """Executes a flow that only reads."""

    @abstractmethod
    def inserting(self, changes: Sequence[RunInserted]) -> Flow[dict[str, str]]:
        """Inserts runs; answers for those whose key was taken: the id asked for → the run that holds the key."""

    @abstractmethod
    def completing(self, settlements: Sequence[RunCompleted]) -> Flow[Collection[str]]:
        """Completes runs; answers those for which the fence held."""

    @abstractmethod
    def saving(self, steps: Sequence[StepSaved]) -> Flow[Collection[str]]:
        """Saves steps of runs for which the fence holds; answers those runs."""

    @abstractmethod
    def claiming(
        self, queue: str, limit: int, *, worker: str, mark: Mark, suspect: bool, versions: str | None = None
    ) -> Flow[list[Claimed]]:
        """Claims runs in their order; suspects, one at a time. `versions`: of functions that have one, as JSON."""

    @abstractmethod
    def recording(self, events: Sequence[EventRecorded]) -> Flow[dict[str, str]]:
        """Records events; answers for those whose idempotency key was used before: the id asked for → the event that
        has the key."""

    @abstractmethod
    def taking(self, name: str, limit: int) -> Flow[Page | None]:
        """The next page of a drainer, which is ours until the transaction ends; None if another process holds it."""

    @abstractmethod
    def peeking(self, name: str) -> Flow[bool]:
        """Whether there is something to read for a drainer, without taking it."""

    @abstractmethod
    def locating(self) -> Flow[Place]:
        """Where the ledger is now."""

    @abstractmethod
    def reading_on(self, position: Position, limit: int) -> Flow[Page]:
        """The next page for one who keeps the position himself."""

    @abstractmethod
    def counting(self, position: Position, limit: int) -> Flow[int]:
        """How many events come after a position, counted to a limit."""

    @abstractmethod
    def finding(self, since: int) -> Flow[Position]:
        """The position before the first event that was recorded from a moment on."""

    @abstractmethod
    def begin(self, *, limit: float | None = None) -> AbstractAsyncContextManager[Transaction]: ...

    async def rewrite(self, make: Callable[[], Flow[T]]) -> T:
        """Writes what may meet others on its way, and is then made again."""
        return await self.write(make())

    # --- commits

    async def commit(self, changes: Sequence[Change]) -> Committed:
        return await self.write(self.committing(changes), single=flows.single_statement(changes))

    def committing(self, changes: Sequence[Change]) -> Flow[Committed]:
        return flows.committing(changes, self)

    async def fences(self, ids: Sequence[str]) -> dict[str, Fence]:
        rows = await self.read(flows.reading("fences", ids=flows.encoded(ids)))
        return {row[0]: Fence(row[1], row[2], bool(row[3]), row[4]) for row in rows}

    # --- claims

    async def claim(
        self, queue: str, limit: int, *, worker: str, mark: Mark, versions: str | None = None
    ) -> list[Claimed]:
        claiming = self.claiming(queue, limit, worker=worker, mark=mark, suspect=False, versions=versions)
        return await self.write(claiming, single=True)

    async def claim_suspect(self, queue: str, *, worker: str, versions: str | None = None) -> Claimed | None:
        claiming = self.claiming(queue, 1, worker=worker, mark=START, suspect=True, versions=versions)
        claimed = await self.write(claiming, single=True)
        return claimed[0] if claimed else None

    async def owned(self, queue: str, *, worker: str) -> list[tuple[str, int]]:
        return await self.read(flows.owned(queue, worker))

    async def release_due(self, queue: str, limit: int) -> int:
        return await self.write(flows.releasing(queue, limit), single=True)

    async def next_due(self, queue: str) -> float | None:
        return await self.read(flows.looking_ahead(queue))

    # --- leases

    async def register(self, worker: str, *, name: str, queues: Mapping[str, int], lease: float) -> None:
        await self.write(flows.registering(worker, name=name, queues=queues, lease=lease), single=True)

    async def renew(self, worker: str, *, stopping: bool) -> bool:
        return await self.write(flows.renewing(worker, stopping=stopping), single=True)

    async def retire(self, worker: str) -> None:
        await self.write(flows.retiring(worker), single=True)

    async def expired(self) -> dict[str, str]:
        return await self.read(flows.expired())

    async def bury(self, worker: str, renewed: str) -> bool:
        return await self.write(flows.burying(worker, renewed), single=True)

    async def rescue(self, limit: int) -> list[Orphan]:
        return await self.rewrite(lambda: flows.rescuing(limit, self))

    async def cancelled_of(self, worker: str) -> dict[str, str]:
        return await self.read(flows.cancelled_of(worker))

    # --- verbs

    async def cancel(self, ids: Sequence[str], reason: str, *, state: State | None = None) -> list[Cancellation]:
        return await self.rewrite(lambda: flows.cancelling(ids, reason, self, state=state))

    async def next_overdue(self) -> float | None:
        return await self.read(flows.looking_for_overdue())

    async def end_overdue(self, limit: int) -> list[Cancellation]:
        return await self.rewrite(lambda: flows.ending_overdue(limit, self))

    async def retry(self, ids: Sequence[str], *, state: State | None = None) -> dict[str, str]:
        return await self.rewrite(lambda: flows.retrying(ids, state=state))

    async def copy(self, run_id: str, *, copy: str, place: int) -> bool:
        return await self.write(flows.copying(run_id, copy=copy, place=place))

    async def purge(self, ids: Sequence[str], *, state: State) -> list[str]:
        return await self.rewrite(lambda: flows.purging(ids, self, state=state))

    async def pause(self, queue: str) -> bool:
        return await self.write(flows.pausing(queue), single=True)

    async def resume(self, queue: str) -> bool:
        return await self.write(flows.resuming(queue), single=True)

    async def prune(self, state: str, *, keep: float, limit: int) -> int:
        return await self.write(flows.pruning(state, keep=keep, limit=limit))

    async def prune_events(self, *, keep: float, keep_unread: float | None, passed: int, limit: int) -> Sequence[int]:
        return await self.write(recalling.pruning(keep, keep_unread, passed, limit))

    async def tidy(self) -> None:
        await self.write(flows.tidying(), single=False)

    async def declare(self, functions: Sequence[DeclaredFunction], queues: Sequence[DeclaredQueue]) -> None:
        await self.write(flows.declaring(functions, queues))

    # --- steps

    async def memos(self, runs: Sequence[str]) -> list[Memo]:
        return [memo_in(row) for row in await self.read(flows.reading("step_memos", ids=flows.encoded(runs)))]

    async def waits(self, transaction: Transaction, types: Sequence[str]) -> list[Wait]:
        rows = await transaction.ask(flows.reading("waits", types=flows.encoded(types)))
        return [Wait(*row) for row in rows]

    async def watched(
        self, transaction: Transaction, function: str, paths: Sequence[str], wanted: Sequence[Mapping[str, Any]]
    ) -> list[tuple[str, int]]:
        asked = {"function": function, "paths": flows.encoded(paths), "wanted": flows.encoded(wanted)}
        return [(row[0], row[1]) for row in await transaction.ask(flows.reading("watched_runs", **asked))]

    async def hold_waiting(self, transaction: Transaction, runs: Sequence[str]) -> Waiting:
        return await transaction.ask(flows.holding_waiting(runs))

    async def earlier(self, glob: str, *, since: int, after: int, limit: int) -> list[Event]:
        return await self.read(recalling.earlier(glob, since, after, limit))

    # --- the ledger

    @asynccontextmanager
    async def draining(self, name: str, limit: int) -> AsyncIterator[Pass | None]:
        async with self.begin() as transaction:
            page = await transaction.ask(self.taking(name, limit))
            yield None if page is None else Pass(transaction, page)

    async def undrained(self, name: str) -> bool:
        return await self.read(self.peeking(name))

    async def halt(self, name: str, *, event: str | None, error: str, delay: float) -> None:
        halted = flows.reading("halt_drainer", name=name, event=event, error=error, delay=delay)
        await self.write(halted, single=True)

    async def declare_drainers(self, drainers: Sequence[DeclaredDrainer]) -> None:
        place = await self.place()
        declared = flows.reading("declare_drainers", drainers=flows.encoded(drainers), lineage=place.lineage)
        await self.write(declared, single=True)

    async def declare_subscriptions(self, subscriptions: Sequence[Subscription], modules: Sequence[str] = ()) -> None:
        await self.write(flows.declaring_subscriptions(subscriptions, modules))

    async def add_subscription(self, subscription: Subscription) -> bool:
        return await self.write(flows.adding_subscription(subscription))

    async def switch_subscription(self, name: str, *, enabled: bool) -> bool:
        return await self.write(flows.switching_subscription(name, enabled=enabled))

    async def remove_subscription(self, name: str) -> bool:
        return await self.write(flows.removing_subscription(name))

    async def caught_up(self, subscription: str, transaction: Transaction | None = None) -> None:
        noted = flows.having_caught_up(subscription)
        await (self.write(noted) if transaction is None else transaction.ask(noted))

    async def knows_drainer(self, name: str) -> bool:
        return bool(await self.read(flows.reading("find_drainer", name=name)))

    async def hold_drainer(self, transaction: Transaction, name: str) -> str | None:
        return await transaction.ask(flows.holding_drainer(name))

    async def reset_drainer(self, name: str, position: Position) -> bool:
        return await self.write(flows.resetting_drainer(name, position.text()))

    async def acknowledge(self, name: str, *, start: str, end: str, count: int) -> bool:
        return await self.write(flows.acknowledging(name, start, end, count))

    async def remove_drainer(self, name: str) -> bool:
        return bool(await self.write(flows.reading("remove_drainer", name=name), single=True))

    async def bearings(self, transaction: Transaction | None = None) -> Bearings:
        asked = flows.reading("bearings")
        ((count, latest, functions),) = await (self.read(asked) if transaction is None else transaction.ask(asked))
        return Bearings((count, latest), json.decode(functions))

    async def blocked(
        self, transaction: Transaction, subscriptions: Sequence[str], entities: Sequence[tuple[str, str]]
    ) -> set[tuple[str, tuple[str, str]]]:
        asked = {"names": flows.encoded(subscriptions), "entities": flows.encoded(entities)}
        rows = await transaction.ask(flows.reading("parked_entities", **asked))
        return {(name, (kind, entity)) for name, kind, entity in rows}

    async def parked_chain(
        self, transaction: Transaction, subscription: str, sequence_no: int, entity: tuple[str, str] | None
    ) -> list[Event]:
        kind, entity_id = entity or (None, None)
        chain = {"subscription": subscription, "sequence_no": sequence_no, "entity_type": kind, "entity_id": entity_id}
        return [event_in(row) for row in await transaction.ask(flows.reading("parked_chain", **chain))]

    async def lag(self, position: Position, limit: int) -> int:
        return await self.read(self.counting(position, limit))

    async def position_at(self, since: int) -> Position:
        return await self.read(self.finding(since))

    async def number_before(self, since: int) -> int:
        return await self.read(recalling.before(since))

    async def recorded(self, last: int, end: int, *, since: int, until: int, limit: int) -> list[Event]:
        wanted = flows.reading("events_recorded", last=last, end=end, since=since, until=until, limit=limit)
        return [event_in(row) for row in await self.read(wanted)]

    async def place(self) -> Place:
        return await self.read(self.locating())

    async def read_on(self, position: Position, limit: int) -> Page:
        return await self.read(self.reading_on(position, limit))

    # --- schedules

    async def declare_schedules(self, schedules: Sequence[Schedule]) -> None:
        await self.write(flows.declaring_schedules(schedules))

    async def keep_schedules(self, names: Sequence[str]) -> None:
        await self.write(flows.keeping_schedules(names), single=True)

    async def planned(self, names: Sequence[str], limit: int) -> list[Planned]:
        return await self.read(flows.planning(names, limit))

    async def pause_schedule(self, name: str) -> bool:
        return await self.write(flows.pausing_schedule(name), single=True)

    async def resume_schedule(self, name: str) -> bool:
        return await self.write(flows.resuming_schedule(name))
