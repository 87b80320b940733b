"""Which runs are cancelled by which events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model.cancelling import Rule
from ...model.change import CancelMet
from ...model.event import Event
from ...model.glob import GlobIndex
from ...store.ports import Store, Transaction


async def met_cancels(
    store: Store, transaction: Transaction, events: Sequence[Event], rules: GlobIndex[Rule]
) -> list[CancelMet]:
    """The runs that these events cancel, each once, and why. A rule is asked once for all events that concern it."""
    wanted: dict[Rule, list[dict[str, Any]]] = {}
    for place, event in enumerate(events):
        for rule in rules.find(event.type):
            if (values := rule.values(event)) is not None:
                asked = {"place": place, "recorded": event.recorded_micros, "values": values}
                wanted.setdefault(rule, []).append(asked)
    reasons: dict[str, str] = {}
    for rule, asked_for in wanted.items():
        found = await store.watched(transaction, rule.function, rule.paths, asked_for)
        for run_id, place in sorted(found, key=lambda each: each[1]):
            reasons.setdefault(run_id, f"cancelled by {events[place].type}, event {events[place].id}")
    return [CancelMet(run_id, reasons[run_id]) for run_id in sorted(reasons)]
