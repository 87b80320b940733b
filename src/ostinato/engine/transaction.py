"""The `tx` that users get: their statements, and ours, committed together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import InvalidOption, TransactionMisused, UnknownFunction
from ..model.change import EventRecorded, RunInserted
from ..store.ports import Transaction, Views
from .door import NO_OPTIONS, Door, EnqueueOptions, ids_of, invoked_by
from .ledger import recording
from .ledger.recording import EMPTY
from .tracing import sending, sent


class Tx:
    """Statements with `$1` placeholders on both databases, and `enqueue`, in one transaction."""

    def __init__(self, transaction: Transaction, door: Door, views: Views) -> None:
        self._transaction = transaction
        self._door = door
        self._views = views
        self._closed = False

    async def execute(self, sql: str, *args: Any) -> int:
        """Executes one statement; answers how many rows it concerned."""
        return await self._open().execute(sql, *args)

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        """All rows of a query."""
        return await self._open().fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None:
        """The first row of a query."""
        return await self._open().fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """The first value of the first row of a query."""
        return await self._open().fetchval(sql, *args)

    async def enqueue(self, function: object, given: Any = None, /, **fields: Any) -> str:
        """Enqueues a run of a function (or of `fn.options(...)`, or by name); answers its id, or that of the run with
        its key."""
        name, options = target_of(function)
        with sending(name) as span:
            change = self._door.one(name, () if given is None else (given,), fields, options, invoked_by=invoked_by())
            (run_id,) = await self._insert([change])
            sent(span, change.queue, [run_id])
            return run_id

    async def enqueue_many(self, function: object, inputs: Iterable[Mapping[str, Any]]) -> list[str]:
        """Enqueues many runs of a function; answers their ids."""
        name, options = target_of(function)
        with sending(name) as span:
            changes = self._door.many(name, inputs, options, invoked_by=invoked_by())
            ids = await self._insert(changes)
            sent(span, changes[0].queue if changes else None, ids)
            return ids

    async def record(self, event_type: str, payload: Any = EMPTY, /, **options: Any) -> str:
        """Records an event, with the options of `app.record`; answers its id, or that of the event with its idempotency
        key."""
        change = recording.one(self._door, event_type, payload, recording.NO_OPTIONS.changed(options))
        return (await self._record([change]))[0]

    async def record_many(self, event_type: str, events: Iterable[Mapping[str, Any]], /, **common: Any) -> list[str]:
        """Records many events of a type; answers their ids."""
        return await self._record(recording.many(self._door, event_type, events, recording.common(common)))

    async def _record(self, changes: list[EventRecorded]) -> list[str]:
        committed = await self._open().apply(changes)
        return recording.ids_of(changes, committed.recorded)

    async def _insert(self, changes: list[RunInserted]) -> list[str]:
        try:
            committed = await self._open().apply(changes)
        except UnknownFunction as error:
            raise await self._door.unknown(changes[0].function, self._views) from error
        return [run_id for run_id, _ in ids_of(changes, committed.existing)]

    def _open(self) -> Transaction:
        if self._closed:
            raise TransactionMisused(
                "`tx` is used after its block has ended; move this into the block of run.transaction(), which is "
                "committed when the handler returns"
            )
        return self._transaction

    # --- for the engine

    def close(self) -> None:
        """The block has ended. The transaction goes on, to be committed with the run."""
        self._closed = True


def target_of(function: object) -> tuple[str, EnqueueOptions]:
    if isinstance(function, str):
        return function, NO_OPTIONS
    if not isinstance(name := getattr(function, "name", None), str):
        raise InvalidOption(
            f"{function!r} is no function of an app; decorate it with @app.function, or give the name of one"
        )
    return name, getattr(function, "enqueue_options", NO_OPTIONS)
