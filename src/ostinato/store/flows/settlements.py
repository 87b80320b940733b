"""Settling runs under their fences, and what follows at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from ...model.change import AttemptEnded, Change, Fenced, KeyFreed, RunCompleted, RunSettled, RunStarted
from .calls import Call, Flow, encoded
from .dialect import Dialect

by_run = attrgetter("run_id")
"""The order in which rows of runs are locked."""


def areas_of(changes: Iterable[Change]) -> dict[type, list[Any]]:
    """Changes of a kind, in the order in which they were given."""
    areas: dict[type, list[Any]] = {}
    for change in changes:
        kind = type(change)
        if kind in areas:
            areas[kind].append(change)
        else:
            areas[kind] = [change]
    return areas


def completing(completed: list[RunCompleted], dialect: Dialect) -> Flow[frozenset[str]]:
    completed.sort(key=by_run)
    held = yield from dialect.completing(completed)
    if len(held) == len(completed):
        return frozenset()
    return frozenset(change.run_id for change in completed).difference(held)


def settling(areas: Mapping[type, list[Any]], refused: frozenset[str] = frozenset()) -> Flow[frozenset[str]]:
    """Settles what has ended otherwise, and does what follows for all whose fence held."""
    for kind, block, parameter in _FENCED_AREAS:
        if batch := areas.get(kind):
            batch.sort(key=by_run)
            accepted = yield Call(block, {parameter: encoded(batch)})
            if len(accepted) < len(batch):
                refused |= {change.run_id for change in batch} - {row[0] for row in accepted}
    for kind, block, parameter in _FOLLOWING_AREAS:
        if batch := [change for change in areas.get(kind, ()) if change.run_id not in refused]:
            batch.sort(key=by_run)
            yield Call(block, {parameter: encoded(batch)})
    return refused


_FENCED_AREAS: tuple[tuple[type[Fenced], str, str], ...] = (
    (RunStarted, "start_runs", "starts"),
    (RunSettled, "settle_runs", "settlements"),
)
"""Blocks that hold the fence: they return the runs for which it held."""

_FOLLOWING_AREAS: tuple[tuple[type[Fenced], str, str], ...] = (
    (KeyFreed, "free_keys", "freed"),
    (AttemptEnded, "add_attempts", "attempts"),
)
"""Blocks for what follows from a settlement, executed for the runs whose fence held."""
