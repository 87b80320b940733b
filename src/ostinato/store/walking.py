"""Ways through the runs of a state, page by page: each follows an index, so that pages cost the same from the first to
the last, however few runs match and whatever is changed behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from ..model.run import START, Mark, State
from ..model.view import Selection
from .flows import Row

Read = Callable[..., Awaitable[Sequence[Row]]]


class Way(NamedTuple):
    """One index, from a place in it to its end."""

    block: str
    arguments: dict[str, Any]
    start: Mark


async def pages(read: Read, state: State, where: Selection, *, limit: int) -> AsyncGenerator[list[str], None]:
    """The ids of runs in a state that match, those among `limit` runs at a time."""
    if state is State.RUNNING:
        if running := await read("running_runs", queue=where.queue, **_filters(where), since=where.since):
            yield [row[0] for row in running]
        return
    for way in await _ways(read, state, where):
        after = way.start
        while rows := await read(way.block, **way.arguments, after=after.due, after_id=after.id, limit=limit):
            if ids := [run_id for run_id, _, fits in rows if fits]:
                yield ids
            after = next(Mark(at, run_id) for run_id, at, fits in rows if not fits)


async def _ways(read: Read, state: State, where: Selection) -> list[Way]:
    filters = _filters(where)
    if state.ended:
        filters |= {"state": state, "queue": where.queue}
        return [Way("ended_runs", filters, Mark(where.since, ""))]
    filters |= {"since": where.since}
    queues = [where.queue] if where.queue is not None else [row[0] for row in await read("queue_names")]
    if state is State.HELD:
        return [Way("held_runs", filters | {"queue": queue}, Mark(0, "")) for queue in queues]
    return [
        Way("ready_runs", filters | {"queue": queue, "suspect": suspect}, START)
        for queue in queues
        for suspect in (False, True)
    ]


def _filters(where: Selection) -> dict[str, Any]:
    return {"function": where.function, "key": where.key, "code": where.code, "until": where.until}
