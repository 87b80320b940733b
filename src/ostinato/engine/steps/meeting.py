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
    """The waits that these events end: each gets the first that it wants, and a run gets each once.

    A run that looks back may give events to its steps at the same time. So the runs are locked before it is decided:
    an event that a step cannot have any more must not keep it from the next one, which nobody would give it later.
    """
    waits = await store.waits(transaction, sorted({event.type for event in events}))
    offered = Offered(events)
    wanted = {wait: found for wait in waits if (found := offered.to(wait))}
    if not wanted:
        return []
    held = await store.hold_waiting(transaction, sorted({wait.run_id for wait in wanted}))
    met: list[WaitMet] = []
    encoded: dict[str, str] = {}
    for wait, found in wanted.items():
        event = next((event for event in found if (wait.run_id, event.id) not in held.used), None)
        if event is not None and (wait.run_id, wait.step_id) in held.waiting:
            held.used.add((wait.run_id, event.id))
            if event.id not in encoded:
                encoded[event.id] = json.encode(event).decode()
            met.append(WaitMet(wait.run_id, wait.step_id, event.id, encoded[event.id]))
    return met


class Offered:
    """Events, found by what waits ask of them: a thousand waits for a thousand events are not a million questions."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._of_type: dict[str, list[Event]] = {}
        self._with_values: dict[tuple[str, matching.Paths], dict[matching.Values, list[Event]]] = {}

    def to(self, wait: Wait) -> list[Event]:
        """Those that a wait accepts, in their order."""
        accepts = None
        found = []
        for event in self._likely(wait):
            if event.recorded_micros >= wait.since:
                accepts = accepts or matching.compiled(wait.matches)
                if accepts(event):
                    found.append(event)
        return found

    def _likely(self, wait: Wait) -> Sequence[Event]:
        if wait.glob not in self._of_type:
            self._of_type[wait.glob] = [event for event in self._events if matches(wait.glob, event.type)]
        of_type = self._of_type[wait.glob]
        if (asked := matching.asked_by(wait.matches)) is None:
            return of_type
        paths, values = asked
        if (wait.glob, paths) not in self._with_values:
            self._with_values[wait.glob, paths] = _by_values(of_type, paths)
        return self._with_values[wait.glob, paths].get(values, ())


def _by_values(events: Sequence[Event], paths: matching.Paths) -> dict[matching.Values, list[Event]]:
    found: dict[matching.Values, list[Event]] = {}
    for event in events:
        if (values := matching.values_at(paths, event)) is not None:
            found.setdefault(values, []).append(event)
    return found
