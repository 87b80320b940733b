"""Runs, workers and changes that tests begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from ostinato.ids import new_id
from ostinato.model.change import (
    AttemptEnded,
    Change,
    Committed,
    KeyFreed,
    RunCompleted,
    RunInserted,
    RunSettled,
    RunStarted,
)
from ostinato.model.outcome import error_json
from ostinato.model.run import START, Claimed, Mark, State
from ostinato.model.view import RunView
from ostinato.store.ports import DeclaredFunction, Store

FUNCTION = "mix"
QUEUE = "default"
LEASE = 10.0

DECLARED = DeclaredFunction(
    FUNCTION, QUEUE, attempts=3, timeout=60.0, retry=Raw(b"[1.0,2.0]"), input_schema=Raw(b'{"type":"object"}')
)


# --- before ---------------------------------------------------------------------------------------------------------


def a_run(**fields: Any) -> RunInserted:
    """A run that nobody has inserted yet."""
    return RunInserted(**{"id": new_id(), "function": FUNCTION, "input": Raw(b'{"n":1}'), **fields})


def runs(count: int, **fields: Any) -> list[RunInserted]:
    return [a_run(id=run_id, **fields) for run_id in new_id.many(count)]


async def enqueue(store: Store, **fields: Any) -> str:
    """Inserts a run; answers its id, or that of the run which holds its key."""
    run = a_run(**fields)
    committed = await store.commit([run])
    return committed.existing.get(run.id, run.id)


async def a_worker(store: Store, *, lease: float = LEASE) -> str:
    worker = new_id()
    await store.register(worker, name="studio", queues={QUEUE: 10}, lease=lease)
    return worker


async def claim(
    store: Store, limit: int = 100, *, worker: str, queue: str = QUEUE, mark: Mark = START
) -> list[Claimed]:
    return await store.claim(queue, limit, worker=worker, mark=mark)


async def a_claimed_run(store: Store, *, worker: str | None = None, **fields: Any) -> Claimed:
    """A run that has just been claimed alone."""
    await enqueue(store, **fields)
    (run,) = await claim(store, 1, worker=worker or await a_worker(store))
    return run


async def claimed_runs(store: Store, count: int, *, worker: str | None = None, **fields: Any) -> list[Claimed]:
    """Runs that have just been claimed together."""
    await store.commit(runs(count, **fields))
    return await claim(store, count, worker=worker or await a_worker(store))


# --- changes to a claimed run ---------------------------------------------------------------------------------------


def completed(run: Claimed, output: bytes = b'{"ok":true}') -> RunCompleted:
    return RunCompleted(run.id, run.lease_no, Raw(output))


def settled(run: Claimed, state: State, **fields: Any) -> RunSettled:
    return RunSettled(run.id, run.lease_no, state, **fields)


def failed(run: Claimed) -> RunSettled:
    return settled(run, State.FAILED, error=error_json("ValueError", "out of tune"))


def cancelled(run: Claimed) -> RunSettled:
    return settled(run, State.CANCELLED, error=error_json("cancelled", "not wanted"))


def held(run: Claimed, delay: float) -> RunSettled:
    return settled(run, State.HELD, reason="retry", delay=delay, error=error_json("ValueError", "out of tune"))


def given_back(run: Claimed) -> RunSettled:
    return settled(run, State.READY, refund=1)


def started(run: Claimed) -> RunStarted:
    return RunStarted(run.id, run.lease_no)


def an_attempt(run: Claimed) -> AttemptEnded:
    return AttemptEnded(run.id, run.lease_no, run.attempt, "ValueError", "out of tune", "studio", 1.5, "Traceback …")


def key_freed(run: Claimed, state: State = State.COMPLETED) -> KeyFreed:
    return KeyFreed(run.id, run.lease_no, state)


# --- after ----------------------------------------------------------------------------------------------------------


async def view(store: Store, run: Claimed | str) -> RunView:
    """The run as people see it, which must be there."""
    found = await store.views.run(run if isinstance(run, str) else run.id)
    assert found is not None
    return found


async def states(store: Store, ids: Sequence[Claimed | str]) -> list[State]:
    return [(await view(store, run)).state for run in ids]


async def accepted(store: Store, *changes: Change) -> Committed:
    """Commits what nobody must refuse."""
    committed = await store.commit(changes)
    assert frozenset() == committed.refused
    return committed
