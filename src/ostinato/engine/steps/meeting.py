"""Which of the steps that wait for events get which of these."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from ...model import matching
from ...model.change import WaitMet
from ...model.event import Event
from ...model.glob import matches
from ...model.step import Wait
from ...store.ports import Store, Transaction


async def met_waits(store: Store, transaction: Transaction, events: Sequence[Event]) -> list[WaitMet]:
    """The waits that these events end: each gets the first that it wants, and a run gets each once."""
    waits = await store.waits(transaction, sorted({event.type for event in events}))
    met: list[WaitMet] = []
    used: set[tuple[str, str]] = set()
    encoded: dict[str, str] = {}
    for wait in waits:
        if (event := _first(wait, events, used)) is not None:
            used.add((wait.run_id, event.id))
            if event.id not in encoded:
                encoded[event.id] = json.encode(event).decode()
            met.append(WaitMet(wait.run_id, wait.step_id, event.id, encoded[event.id]))
    return met


def _first(wait: Wait, events: Sequence[Event], used: set[tuple[str, str]]) -> Event | None:
    accepts = matching.compiled(wait.matches)
    for event in events:
        if (
            matches(wait.glob, event.type)
            and event.recorded_micros >= wait.since
            and (wait.run_id, event.id) not in used
            and accepts(event)
        ):
            return event
    return None
