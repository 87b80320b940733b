"""What a waiting run asks of an event."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from ostinato.errors import InvalidOption
from ostinato.model import matching
from ostinato.model.event import Event

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def accepts(match: Any, payload: Any) -> bool:
    event = Event(id="e1", type="order.paid", payload=payload, sequence_no=1, occurred_at=NOON, recorded_at=NOON)
    return matching.compiled(matching.text_of(match))(event)


@pytest.mark.parametrize(
    ("match", "payload", "expected"),
    [
        (None, {}, True),
        ({"$.payload.order": 42}, {"order": 42}, True),
        ({"$.payload.order": 42}, {"order": 42.0}, True),
        ({"$.payload.order": 42}, {"order": "42"}, False),
        ({"$.payload.order": 42}, {}, False),
        ({"$.payload.order": 42}, {"order": {"id": 42}}, False),
        ({"$.payload.ok": True}, {"ok": True}, True),
        ({"$.payload.ok": True}, {"ok": 1}, False),
        ({"$.payload.n": 1}, {"n": True}, False),
        ({"$.payload.n": [1]}, {"n": [True]}, False),
        ({"$.payload.n": {"a": [1, 2]}}, {"n": {"a": [1, 2]}}, True),
        ({"$.payload.n": {"a": 1}}, {"n": {"a": 1, "b": 2}}, False),
        ({"$.payload.a": 1, "$.payload.b": 2}, {"a": 1, "b": 3}, False),
        (MappingProxyType({"$.payload.a": 1}), {"a": 1}, True),
        ("event.payload.total > 5", {"total": 6}, True),
        ("event.payload.total > 5", {"total": 5}, False),
        ("event.payload.total > 5", {}, False),
        ("event.payload.total > 5", {"total": "six"}, False),
        ("event.payload.total / event.payload.count > 5", {"total": 6, "count": 0}, False),
        ("({'a': 1}) == event.payload", {"a": 1}, True),
    ],
)
def test_events_are_accepted_or_not(match: Any, payload: Any, expected: bool):
    """What lacks what is asked of it, or makes the condition fail, is not the one that is waited for."""
    assert accepts(match, payload) is expected


@pytest.mark.parametrize(
    ("match", "complaint"),
    [
        (3, "match=3 must be like"),
        ("", "match='' must be like"),
        ({}, "match={} must be like"),
        ({"order": 42}, "match: "),
        ({"$.payload.order": object()}, "match: "),
        ({"$.payload.order": "\ud800"}, "match: "),
        ("event.payload.", "match: filter 'event.payload.' is no CEL"),
        ("event.payload.n + 1", "match: "),
        ("{'a': 1} == event.payload", "put a condition that begins with { into parentheses"),
    ],
)
def test_conditions_that_mean_nothing_are_refused(match: Any, complaint: str):
    """With what is wrong with them."""
    with pytest.raises(InvalidOption, match=complaint):
        matching.text_of(match)


def test_a_condition_is_stored_the_same_whatever_its_order():
    """It tells steps apart."""
    assert matching.text_of({"$.payload.a": 1, "$.payload.b": 2}) == matching.text_of(
        {"$.payload.b": 2, "$.payload.a": 1}
    )
    assert matching.shown(MappingProxyType({"$.payload.a": 1})) == {"$.payload.a": 1}
