"""`app.runs`: enqueuing runs, looking at them, and what people may do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from msgspec import json

from ..engine.door import NO_OPTIONS, EnqueueOptions, ids_of, invoked_by
from ..engine.tracing import sending, sent
from ..errors import (
    IllegalMove,
    InvalidOption,
    KeyTaken,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    UnknownFunction,
    UnknownRun,
    UnknownStep,
)
from ..ids import new_id
from ..model.change import Committed, RunInserted
from ..model.outcome import storable
from ..model.run import State
from ..model.view import BulkOutcome, RunCount, RunError, RunFilter, RunView, StepView, labels, step_named
from ..store.ports import Ended, Store
from . import bulk
from .bulk import Filters, States

if TYPE_CHECKING:
    from ..engine.site import Site

T = TypeVar("T")


class Handle:
    """A run that was enqueued."""

    __slots__ = ("_runs", "created", "id")

    def __init__(self, runs: Runs, run_id: str, created: bool) -> None:
        self._runs = runs
        self.id = run_id
        self.created = created
        """False when the key was taken: this is the run that holds it."""

    def __repr__(self) -> str:
        return f"Handle({self.id!r}, created={self.created})"

    async def result(self, timeout: float | None = None) -> Any:
        """The run's result, once it has completed. Raises RunFailed, RunCancelled or ResultTimeout."""
        return await self._runs.result(self.id, timeout=timeout)

    async def status(self) -> str:
        """pending, waiting, running, completed, failed or cancelled."""
        return (await self._runs.get(self.id)).status

    async def cancel(self, reason: str = "cancelled by request") -> bool:
        """Cancels the run; False when it had already ended."""
        return bool(await self._runs.cancel([self.id], reason=reason))


class Runs:
    """Runs, wherever they are."""

    def __init__(self, site: Site) -> None:
        self._site = site

    # --- enqueuing

    async def enqueue(
        self,
        function: str,
        given: tuple[Any, ...] = (),
        fields: Mapping[str, Any] | None = None,
        options: EnqueueOptions = NO_OPTIONS,
        *,
        source: str = "api",
    ) -> Handle:
        with sending(function) as span:
            change = self._site.door.one(function, given, fields or {}, options, invoked_by=invoked_by(source))
            handle = (await self._insert([change], options))[0]
            sent(span, change.queue, [handle.id])
            return handle

    async def enqueue_many(
        self, function: str, inputs: Iterable[Any], options: EnqueueOptions = NO_OPTIONS, *, source: str = "api"
    ) -> list[Handle]:
        with sending(function) as span:
            changes = self._site.door.many(function, inputs, options, invoked_by=invoked_by(source))
            handles = await self._insert(changes, options) if changes else []
            sent(span, changes[0].queue if changes else None, [handle.id for handle in handles])
            return handles

    async def _insert(self, changes: Sequence[RunInserted], options: EnqueueOptions) -> list[Handle]:
        try:
            if (store := self._site.opened()) is not None:
                committed = await self._commit(store, changes, options.conn)
            else:
                async with self._site.store() as store:
                    committed = await self._commit(store, changes, options.conn)
        except UnknownFunction as error:
            raise await self._unknown(changes[0].function) from error
        return [Handle(self, run_id, created) for run_id, created in ids_of(changes, committed.existing)]

    async def _commit(self, store: Store, changes: Sequence[RunInserted], connection: object | None) -> Committed:
        if connection is None:
            return await store.commit(changes)
        return await store.apply_on(self._site.adapt(connection), changes)

    async def _unknown(self, name: str) -> UnknownFunction:
        async with self._site.store() as store:
            return await self._site.door.unknown(name, store.views)

    # --- looking

    def handle(self, run_id: str) -> Handle:
        """A handle to a run by its id."""
        return Handle(self, run_id, created=False)

    async def get(self, run_id: str) -> RunView:
        """One run with everything that is known of it, failed attempts included."""
        async with self._site.store() as store:
            if (view := await store.views.run(run_id)) is None:
                raise UnknownRun(run_id)
            return view

    async def steps(self, run_id: str) -> Sequence[StepView]:
        """The steps of a run, in the order of their first calls."""
        async with self._site.store() as store:
            return await self._known(store, run_id, await store.views.steps(run_id))

    async def children(self, run_id: str) -> Sequence[RunView]:
        """The runs that a run has invoked."""
        async with self._site.store() as store:
            return await self._known(store, run_id, await store.views.children(run_id))

    @staticmethod
    async def _known(store: Store, run_id: str, found: Sequence[T]) -> Sequence[T]:
        """What was found of a run; if that is nothing, the run must at least be there."""
        if not found and not await store.views.existing([run_id]):
            raise UnknownRun(run_id)
        return found

    async def list(self, where: RunFilter | None = None, **filters: Any) -> Sequence[RunView]:
        """Runs by function, queue, state, key, error code and age, newest first; `before=` an id pages on."""
        async with self._site.store() as store:
            return await store.views.runs(where or RunFilter(**bulk.ages(filters)))

    async def counts(self) -> Sequence[RunCount]:
        """How many runs there are, by function, queue and state."""
        async with self._site.store() as store:
            return await store.views.counts()

    # --- waiting

    async def result(self, run_id: str, *, timeout: float | None = None) -> Any:
        """The run's result, once it has completed."""
        async with self._site.store() as store:
            ended = (await store.views.outcomes([run_id])).get(run_id)
            if ended is None:
                if not await store.views.existing([run_id]):
                    raise UnknownRun(run_id)
                ended = await self._wait(run_id, timeout)
        return _value(run_id, ended)

    async def _wait(self, run_id: str, timeout: float | None) -> Ended:
        try:
            async with asyncio.timeout(timeout):
                return await self._site.results().wait(run_id)
        except TimeoutError:
            raise ResultTimeout(f"run {run_id} has not ended within {timeout:g} s; it goes on") from None

    # --- steering

    async def cancel(self, ids: str | Sequence[str], *, reason: str = "cancelled by request") -> Sequence[str]:
        """Cancels a run, or several: waiting ones at once, running ones by asking their worker. Answers those that had
        not ended yet."""
        chosen = [ids] if isinstance(ids, str) else list(ids)
        async with self._site.store() as store:
            return [cancelled.id for cancelled in await store.cancel(chosen, storable(reason))]

    async def retry(self, run_id: str, *, from_step: str | None = None) -> Handle:
        """A failed or cancelled run again, with a fresh budget of attempts.

        With `from_step`, a new run of the same function and input, which remembers what the ended one had completed
        before that step and does the rest again. The step is named as in the code, with `#2` for the second of its
        name, or by its id. The new run has no key.
        """
        if from_step is not None:
            return await self._retry_from(run_id, from_step)
        if not await self.retry_many([run_id]):
            await self._refuse_retry(await self.get(run_id))
        return self.handle(run_id)

    async def _retry_from(self, run_id: str, wanted: str) -> Handle:
        async with self._site.store() as store:
            run = await self.get(run_id)
            if not run.state.ended:
                raise IllegalMove(f"run {run_id} is {run.state.value}; only ended runs can be done again from a step")
            steps = await store.views.steps(run_id)
            if (step := step_named(wanted, steps)) is None:
                raise UnknownStep(run_id, wanted, labels(steps))
            copy = new_id()
            if not await store.copy(run_id, copy=copy, place=step.index):
                raise IllegalMove(f"run {run_id} goes again; only ended runs can be done again from a step")
        return Handle(self, copy, created=True)

    async def retry_many(self, ids: Sequence[str]) -> Sequence[str]:
        """Failed and cancelled runs again; answers those that go again."""
        async with self._site.store() as store:
            return list(await store.retry(list(ids)))

    async def _refuse_retry(self, run: RunView) -> None:
        if run.state in (State.FAILED, State.CANCELLED):
            raise KeyTaken(f"run {run.id} cannot go again: another run of {run.function!r} holds its key {run.key!r}")
        raise IllegalMove(f"run {run.id} is {run.state.value}; only failed and cancelled runs can be retried")

    # --- many at once

    async def cancel_where(
        self,
        *,
        state: States = None,
        reason: str = "cancelled by request",
        limit: int | None = None,
        dry_run: bool = False,
        everything: bool = False,
        **filters: Unpack[Filters],
    ) -> BulkOutcome:
        """Cancels the runs that match and have not ended, in small commits: `function=`, `queue=`, `state=` (one or
        several of held, ready, running), `key=`, `code=` of the last error, `older_than=`, `newer_than=`."""
        if not everything:
            bulk.refuse_everything("cancel", filters, state)
        unended = (*bulk.WAITING, State.RUNNING)
        states = bulk.chosen("cancel", state, unended, unended)
        async with self._site.store() as store:

            async def cancel(state: State, ids: Sequence[str]) -> Sequence[str]:
                return [cancelled.id for cancelled in await store.cancel(ids, storable(reason), state=state)]

            return await _in_bulk(store, states, filters, cancel, limit=limit, dry_run=dry_run, patience=bulk.PATIENCE)

    async def retry_where(
        self,
        *,
        state: States = None,
        limit: int | None = None,
        dry_run: bool = False,
        everything: bool = False,
        **filters: Unpack[Filters],
    ) -> BulkOutcome:
        """Lets the failed runs that match go again, or with `state="cancelled"` the cancelled ones. Those whose key
        another run holds are left as they are."""
        if not everything:
            bulk.refuse_everything("retry", filters, state)
        states = bulk.chosen("retry", state, (State.FAILED, State.CANCELLED), (State.FAILED,))
        async with self._site.store() as store:

            async def retry(state: State, ids: Sequence[str]) -> Sequence[str]:
                return list(await store.retry(ids, state=state))

            return await _in_bulk(store, states, filters, retry, limit=limit, dry_run=dry_run)

    async def purge(
        self,
        *,
        state: States = None,
        limit: int | None = None,
        dry_run: bool = False,
        everything: bool = False,
        **filters: Unpack[Filters],
    ) -> BulkOutcome:
        """Deletes the runs that match and have ended, with their attempts. Waiting ones are deleted only if `state=`
        names them (held, ready), running ones never. Keys for a period or for ever stay taken."""
        if not everything:
            bulk.refuse_everything("purge", filters, state)
        states = bulk.chosen("purge", state, (*bulk.ENDED, *bulk.WAITING), bulk.ENDED)
        async with self._site.store() as store:

            async def purge(state: State, ids: Sequence[str]) -> Sequence[str]:
                return await store.purge(ids, state=state)

            return await _in_bulk(store, states, filters, purge, limit=limit, dry_run=dry_run, patience=bulk.PATIENCE)


async def _in_bulk(
    store: Store,
    states: Sequence[State],
    filters: Filters,
    verb: bulk.Change,
    *,
    limit: int | None,
    dry_run: bool,
    patience: int = 0,
) -> BulkOutcome:
    if limit is not None and limit < 1:
        raise InvalidOption(f"limit={limit!r} must be at least 1, or None")
    where = await bulk.selection(store, filters)
    if dry_run:
        return await bulk.count(store, states, where, limit=limit)
    return await bulk.change(store, states, where, verb, limit=limit, patience=patience)


def _value(run_id: str, ended: Ended) -> Any:
    if ended.state == State.COMPLETED:
        return json.decode(ended.output or "null")
    error = json.decode(ended.error, type=RunError) if ended.error else RunError("unknown", "no reason was kept")
    if ended.state == State.CANCELLED:
        raise RunCancelled(f"run {run_id} was cancelled: {error.message}", run_id=run_id, code=error.code)
    raise RunFailed(f"run {run_id} failed: {error.code}: {error.message}", run_id=run_id, code=error.code)
