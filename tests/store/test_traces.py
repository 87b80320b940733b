"""The trace that a run carries, from whoever enqueued it to whoever claims it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw, json

from ostinato.store.ports import Store
from tests.store.samples import QUEUE, a_claimed_run, a_run, a_worker, accepted, claim, held, runs

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": 'vendor="é"'}
CARRIED = Raw(json.encode(TRACE))


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": QUEUE},
        {},
        {"queue": QUEUE, "key": "k"},
        {"queue": QUEUE, "run_at": datetime(2020, 1, 1, tzinfo=UTC).isoformat()},
    ],
    ids=["alone", "by name", "with a key", "with a moment"],
)
async def test_a_run_carries_its_trace(store: Store, fields: dict[str, Any]):
    """On each way of inserting one."""
    run = await a_claimed_run(store, trace=CARRIED, **fields)

    assert json.decode(run.trace or "") == TRACE


async def test_the_runs_of_a_bulk_carry_their_own(store: Store):
    """Those without one carry none."""
    bulk = runs(3)
    traced = a_run(trace=CARRIED)
    await accepted(store, *bulk, traced)

    claimed = await claim(store, worker=await a_worker(store))

    assert [run.id for run in claimed if run.trace is not None] == [traced.id]


async def test_a_run_without_a_trace_has_none(store: Store):
    assert (await a_claimed_run(store, queue=QUEUE)).trace is None


async def test_a_retry_is_in_the_same_trace(store: Store):
    """Whoever claims the run next gets it again."""
    worker = await a_worker(store)
    first = await a_claimed_run(store, worker=worker, trace=CARRIED)
    await accepted(store, held(first, 0.0))

    (second,) = await claim(store, worker=worker)

    assert second.trace == first.trace
