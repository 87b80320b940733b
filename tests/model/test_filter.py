"""Filters: conditions on events, in CEL."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from ostinato import ConfigError
from ostinato.model import filter as filters
from ostinato.model.event import Event, Unsuitable
from ostinato.model.filter import compile_filter

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)

PAYLOAD: dict[str, Any] = {
    "delta": 7,
    "rate": 1.5,
    "nothing": None,
    "tags": ["gold", "new"],
    "lines": [{"price": 3}, {"discount": 1}],
    "name": "Moon Pix",
    "a-b": 4,
    "huge": 2**70,
    "note": "null_type",
}


def an_event(**payload: Any) -> Event:
    return Event(
        id="01",
        type="price.changed",
        payload={**PAYLOAD, **payload},
        sequence_no=7,
        entity_id="42",
        occurred_at=NOON,
        recorded_at=NOON,
    )


@pytest.mark.parametrize(
    "text",
    [
        "event.payload.delta > 5",
        "event.payload.delta > 5.5 && event.payload.rate < 2",
        "event.type == 'price.changed' && event.entity_id == '42'",
        "event.type.startsWith('price.')",
        "event.payload.name.matches('^Moon')",
        "'gold' in event.payload.tags && event.payload.delta in [6, 7]",
        "event.payload.tags.exists(tag, tag == 'gold')",
        "event.payload.tags[0] == 'gold' && event.payload['delta'] == 7",
        "event.payload.`a-b` == 4",
        "event.payload.huge > 5",
        "timestamp(event.occurred_at) > timestamp('2026-01-01T00:00:00Z')",
        "size(event.payload.tags) == 2 ? true : false",
        "event . payload\n  . delta == 7 // event.nothing.of.this",
        "event.payload.name == 'event.wrong' || event.payload.name == r\"event.wrong\" || event.payload.delta == 7",
        "{'a': event.payload.delta}.a == 7",
        "-event.payload.delta < 0.5",
        "has(event.payload.delta)",
    ],
)
def test_what_is_accepted(text: str):
    """CEL, over everything that an event has."""
    assert compile_filter(text)(an_event())


@pytest.mark.parametrize(
    "text",
    [
        "event.payload.missing == null",
        "event.payload.missing.at.any.depth == null",
        "(event.payload.missing).at.any == null && ((event.payload.missing)) == null && (event.payload.delta) == 7",
        "(event.payload.missing == null ? event.payload.delta : event.payload.missing) == 7",
        "event.payload['missing'].deeper == null",
        "event.payload.tags[9] == null",
        "event.payload.nothing == null && event.payload.nothing.more == null",
        "event.source == null",
        "event.payload.missing == null || event.payload.missing > 5",
        "event.payload.lines.exists(line, line.discount == 1)",
        "event.payload.lines.all(line, line.price == null || line.price > 2)",
        "!has(event.payload.missing) && !has(event.payload.missing.deeper) && !has(event.payload.nothing)",
        "event.payload.tags[event.payload.missing == null ? 0 : 1] == 'gold'",
    ],
)
def test_what_is_missing_is_null(text: str):
    """At any depth, inside of macros too, and what is null counts as missing."""
    assert compile_filter(text)(an_event())


@pytest.mark.parametrize(
    "text",
    [
        "event.payload.delta > 50",
        "event.payload.missing > 5",
        "event.payload.nothing > 5",
        "!(event.payload.missing > 5)",
        "event.payload.missing",
        "!event.payload.missing",
        "event.payload.missing && true",
        "event.payload.missing ? true : true",
        "event.payload.missing.startsWith('a')",
        "event.payload.missing.exists(tag, true)",
        "'gold' in event.payload.missing",
        "size(event.payload.missing) == 0",
        "event.payload.missing + 1 > 0",
        "event.payload.lines.exists(line, line.price > 20)",
        "event.payload.lines.all(line, line.tags.exists(tag, true))",
        "has(event.payload.missing)",
    ],
)
def test_what_is_not_accepted(text: str):
    """What is false, and what is neither true nor false since something is missing."""
    assert not compile_filter(text)(an_event())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("event.payload.delta", "does not give true or false but INT: 7"),
        ("event.payload.note", "does not give true or false but STRING: null_type"),
        ("event.payload.delta / 0 > 1", "divide by zero"),
        ("event.payload.name.matches(event.payload.note + '(')", "invalid regular expression: missing ): null_type("),
        ("event.payload.name > 5", "No matching overloads"),
        ("event.payload.name.exists(x, true)", "No matching overloads"),
        ("event.payload.delta.deeper == 1", "No matching overloads"),
        ("timestamp(event.payload.name) == timestamp('2026-01-01T00:00:00Z')", "timestamp"),
    ],
)
def test_an_event_that_a_filter_cannot_judge(text: str, said: str):
    """Errors are the event's, with what went wrong."""
    with pytest.raises(Unsuitable) as refused:
        compile_filter(text)(an_event())
    assert refused.value.code == "filter"
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("event.payload.", "is no CEL: ERROR: <input>:1:15: Syntax error"),
        ("evnt.payload.x > 5", "undeclared reference to 'evnt"),
        ("event.paylod.x > 5", "an event has no 'paylod'; did you mean event.payload?"),
        ("event.zzz > 5", "an event has no 'zzz'; write event.payload.zzz for what was recorded"),
        ("'gold'", "gives STRING, and must be true or false: compare it with something"),
        ("", "must be text of 1 to 2000 characters"),
        ("true" + " " * 2000, "must be text of 1 to 2000 characters"),
        ("event.type == 'a\x00'", "has a NUL or half of a character"),
        ("event.type == '\ud800'", "has a NUL or half of a character"),
        (5, "must be text"),
        ("(" * 100 + "true" + ")" * 100, "recursion limit"),
    ],
)
def test_what_no_filter_can_be(text: object, said: str):
    """It is refused when it is declared, and speaks of what was written."""
    with pytest.raises(ConfigError) as refused:
        compile_filter(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_hostile_filter_stays_cheap():
    """Loops have a budget, and that it is spent is an error like others."""
    numbers = f"[{','.join('1' * 50)}]"
    loops = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, {numbers}.all(d, true))))"
    with pytest.raises(Unsuitable, match="budget exceeded"):
        compile_filter(loops)(an_event())


def test_a_hostile_pattern_stays_cheap():
    """Regular expressions are RE2's: a thousand letters take as long as they are many."""
    assert not compile_filter("event.payload.name.matches('^(a+)+$')")(an_event(name="a" * 10_000 + "b"))


def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    """Who has no filters does not need CEL."""
    for name in [name for name in sys.modules if name.startswith("cel_expr_python")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    monkeypatch.setattr(filters, "_environment", filters._environment.__wrapped__)  # which is made once
    with pytest.raises(ConfigError) as refused:
        compile_filter("true")
    assert str(refused.value) == "filters need CEL: pip install 'ostinato[cel]'"
