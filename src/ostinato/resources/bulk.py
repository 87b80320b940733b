"""Verbs for many runs at once: those that match are walked through in pages and changed in small commits, so that
nobody waits long for a lock of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypedDict

from ..clock import Duration, seconds
from ..errors import InvalidOption
from ..model.run import State
from ..model.view import BulkOutcome, Selection
from ..store.ports import Store

PAGE = 5000
BATCH = 500
SAMPLE = 5
PATIENCE = 10
BETWEEN_PASSES = 0.02

WAITING = (State.HELD, State.READY)
ENDED = (State.COMPLETED, State.FAILED, State.CANCELLED)

States = str | State | Iterable[str | State] | None
Change = Callable[[State, Sequence[str]], Awaitable[Sequence[str]]]
"""Changes those of the runs that are still in the state, in one commit; answers which."""


class Filters(TypedDict, total=False):
    """What narrows a verb for many runs. Ages count from when a run ended, or from when it was created if it has
    not ended."""

    function: str | None
    queue: str | None
    key: str | None
    code: str | None
    older_than: Duration | None
    newer_than: Duration | None


def ages(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters with their ages in seconds."""
    given = {name: value for name, value in filters.items() if name.endswith("_than") and value is not None}
    return {**filters, **{name: seconds(value, what=name) for name, value in given.items()}}


def chosen(verb: str, given: States, possible: Sequence[State], default: Sequence[State]) -> list[State]:
    """The states that a verb is for, of those that it is possible for."""
    if given is None:
        return list(default)
    states = [str(state) for state in ([given] if isinstance(given, str) else given)]
    if unfit := [state for state in states if state not in possible]:
        raise InvalidOption(f"{verb}: state {unfit[0]!r} must be one of {', '.join(possible)}")
    return [State(state) for state in dict.fromkeys(states)]


def refuse_everything(verb: str, filters: Filters, state: States) -> None:
    if state is None and all(value is None for value in filters.values()):
        names = ", ".join(f"{name}=" for name in ("state", *Filters.__annotations__))
        raise InvalidOption(f"say which runs to {verb}: {names}; or everything=True")


async def selection(store: Store, filters: Filters) -> Selection:
    """What the filters mean at this moment, which is the database's."""
    if unknown := set(filters) - set(Filters.__annotations__):
        raise TypeError(f"{min(unknown)!r} is no filter; there are {', '.join(Filters.__annotations__)}")
    now, aged = await store.views.moment(), ages(filters)
    return Selection(
        function=aged.get("function"),
        queue=aged.get("queue"),
        key=aged.get("key"),
        code=aged.get("code"),
        since=0 if aged.get("newer_than") is None else max(0, _before(now, aged["newer_than"])),
        until=now if aged.get("older_than") is None else _before(now, aged["older_than"]),
    )


def _before(now: int, age: float) -> int:
    return now - round(1_000_000 * age)


async def count(store: Store, states: Sequence[State], where: Selection, *, limit: int | None) -> BulkOutcome:
    """How many there are, without a lock on any."""
    found, sample = 0, list[str]()
    async with aclosing(_batches(store, states, where)) as batches:
        async for _, ids in batches:
            found += len(ids)
            sample += ids[: SAMPLE - len(sample)]
            if limit is not None and found >= limit:
                return BulkOutcome(count=limit, sample=sample[:limit], dry_run=True)
    return BulkOutcome(count=found, sample=sample, dry_run=True)


async def change(
    store: Store, states: Sequence[State], where: Selection, verb: Change, *, limit: int | None, patience: int = 0
) -> BulkOutcome:
    """Changes all, or at most `limit`. Runs move while they are walked through, and may be locked when it is their
    turn: so there is another pass until one has changed nothing, and until none is left, or `patience` passes in a row
    have changed none of them."""
    changed, vain, sample = 0, 0, list[str]()
    while True:
        met = done = 0
        async with aclosing(_batches(store, states, where)) as batches:
            async for state, ids in batches:
                room = len(ids) if limit is None else limit - changed - done
                met += len(ids[:room])
                made = await verb(state, ids[:room])
                done += len(made)
                sample += list(made)[: SAMPLE - len(sample)]
                if limit is not None and changed + done >= limit:
                    break
        changed, vain = changed + done, 0 if done else vain + 1
        if changed == limit or (vain and (met == 0 or vain > patience)):
            return BulkOutcome(count=changed, left=met - done, sample=sample)
        if vain:
            await asyncio.sleep(BETWEEN_PASSES)


async def _batches(
    store: Store, states: Sequence[State], where: Selection
) -> AsyncGenerator[tuple[State, list[str]], None]:
    for state in states:
        async with aclosing(store.views.matching(state, where, limit=PAGE)) as pages:
            async for page in pages:
                for start in range(0, len(page), BATCH):
                    yield state, page[start : start + BATCH]
