"""`app.runs`: enqueuing runs, looking at them, and what people may do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import json

from ..engine.door import NO_OPTIONS, EnqueueOptions, ids_of, invoked_by
from ..errors import IllegalMove, KeyTaken, ResultTimeout, RunCancelled, RunFailed, UnknownFunction, UnknownRun
from ..model.change import Committed, RunInserted
from ..model.outcome import storable
from ..model.run import State
from ..model.view import RunCount, RunError, RunFilter, RunView
from ..store.ports import Ended, Store

if TYPE_CHECKING:
    from ..engine.site import Site


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
        change = self._site.door.one(function, given, fields or {}, options, invoked_by=invoked_by(source))
        return (await self._insert([change], options))[0]

    async def enqueue_many(
        self, function: str, inputs: Iterable[Any], options: EnqueueOptions = NO_OPTIONS, *, source: str = "api"
    ) -> list[Handle]:
        changes = self._site.door.many(function, inputs, options, invoked_by=invoked_by(source))
        return await self._insert(changes, options) if changes else []

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

    async def list(self, where: RunFilter | None = None, **filters: Any) -> Sequence[RunView]:
        """Runs by function, queue and state, newest first; `before=` an id pages on."""
        async with self._site.store() as store:
            return await store.views.runs(where or RunFilter(**filters))

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

    async def cancel(self, ids: Sequence[str], *, reason: str = "cancelled by request") -> Sequence[str]:
        """Cancels runs: waiting ones at once, running ones by asking their worker. Answers those that had not ended
        yet."""
        async with self._site.store() as store:
            return [cancelled.id for cancelled in await store.cancel(list(ids), storable(reason))]

    async def retry(self, run_id: str) -> Handle:
        """A failed or cancelled run again, with a fresh budget of attempts."""
        if not await self.retry_many([run_id]):
            await self._refuse_retry(await self.get(run_id))
        return self.handle(run_id)

    async def retry_many(self, ids: Sequence[str]) -> Sequence[str]:
        """Failed and cancelled runs again; answers those that go again."""
        async with self._site.store() as store:
            return list(await store.retry(list(ids)))

    async def _refuse_retry(self, run: RunView) -> None:
        if run.state in (State.FAILED, State.CANCELLED):
            raise KeyTaken(f"run {run.id} cannot go again: another run of {run.function!r} holds its key {run.key!r}")
        raise IllegalMove(f"run {run.id} is {run.state.value}; only failed and cancelled runs can be retried")


def _value(run_id: str, ended: Ended) -> Any:
    if ended.state == State.COMPLETED:
        return json.decode(ended.output or "null")
    error = json.decode(ended.error, type=RunError) if ended.error else RunError("unknown", "no reason was kept")
    if ended.state == State.CANCELLED:
        raise RunCancelled(f"run {run_id} was cancelled: {error.message}", run_id=run_id, code=error.code)
    raise RunFailed(f"run {run_id} failed: {error.code}: {error.message}", run_id=run_id, code=error.code)
