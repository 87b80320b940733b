"""Input mappers: from an event to a function's input."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ostinato import ConfigError
from ostinato.model.event import Event, Unsuitable
from ostinato.model.mapper import compile_mapper

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def an_event(payload: Any) -> Event:
    return Event(
        id="01",
        type="price.changed",
        payload=payload,
        sequence_no=7,
        entity_type="product",
        entity_id="42",
        occurred_at=NOON,
        recorded_at=NOON,
    )


ORDER = {"sku": "a-1", "price": {"old": 3, "new": 5}, "lines": [{"n": 1}, {"n": 2}], "note": None, "a b": 9}


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("$.payload.sku", "a-1"),
        ("$.entity_id", "42"),
        ("$.type", "price.changed"),
        ("$.occurred_at", "2026-11-16T12:00:00Z"),
        ("$.payload", ORDER),
        ("$.payload.price.new", 5),
        ("$.payload['a b']", 9),
        ("$.payload.note", None),
        ("$.payload.lines[0].n", 1),
        ("$.payload.lines[-1]['n']", 2),
        ("$.payload.lines[*].n", [1, 2]),
        ("$..n", [1, 2]),
        ("$.payload.lines[?@.n > 1].n", [2]),
        ("$.payload.lines[?@.n > 5]", []),
        ("$..[?@['a, ..?[b'] == 1 || @.n == 2].n", [2]),
        ("literal:foo", "foo"),
        ("literal:$.payload", "$.payload"),
        ("literal:", ""),
        (5, 5),
        (1.5, 1.5),
        (True, True),
        (None, None),
        (
            {"deep": {"er": ["$.entity_id", "literal:x", {"n": "$.payload.price.old"}]}},
            {"deep": {"er": ["42", "x", {"n": 3}]}},
        ),
        ([], []),
    ],
)
def test_what_a_recipe_makes(recipe: Any, expected: Any):
    """A path that means one value gives it, any other a list; everything may be nested."""
    assert compile_mapper({"made": recipe})(an_event(ORDER)) == {"made": expected}


@pytest.mark.parametrize(
    "path", ["$.payload.colour", "$.payload.sku.x", "$.payload.lines[7]", "$['payload']['colour']"]
)
def test_what_the_event_lacks(path: str):
    """It is said which path found nothing, and what it was for."""
    with pytest.raises(Unsuitable) as missed:
        compile_mapper({"made": [path]})(an_event(ORDER))
    assert missed.value.code == "mapper"
    assert str(missed.value) == f"the event has nothing at {path}, which is wanted for $.made[0]"


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (["$.id"], "must be an object, like {'sku': '$.entity_id'}"),
        ({"a": "sku"}, "at $.a: 'sku' is no path; write literal:sku for the text itself"),
        ({"a": {"b": ["$["]}}, "at $.a.b[0]: '$[' is no JSONPath (RFC 9535)"),
        ({"a": "$.sku"}, "an event has no 'sku', which '$.sku' asks for; it has payload"),
        ({"a": "$.payload | $.id"}, "no JSONPath"),
        ({"a": "$.payload[?match(@.a, '(a+)+')]"}, "function 'match' is not defined"),
        ({"a": "$.payload[?search(@.a, '(a+)+')]"}, "function 'search' is not defined"),
        ({"a": "$..[?@..[?@.a]]"}, "has '..' inside of a filter"),
        ({"a": "$.payload[?@[?@.a]]"}, "has '?' inside of a filter"),
        ({"a": "$.payload[?@['a', 'b']]"}, "has ',' inside of a filter"),
        ({"a": "$." + "a" * 500}, "a path may have 500 characters"),
        ({"a": object()}, "is neither a path, a literal, an object nor a list"),
    ],
)
def test_what_no_recipe_can_be(recipe: Any, said: str):
    """Says where, and what to write."""
    with pytest.raises(ConfigError) as refused:
        compile_mapper(recipe)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_recipe_that_is_nested_too_deeply():
    """Is refused before it is anybody's trouble."""
    recipe: Any = {}
    for _ in range(100):
        recipe = {"a": recipe}
    with pytest.raises(ConfigError, match="nested deeper than 50 levels"):
        compile_mapper(recipe)


@pytest.mark.parametrize("path", ["$..*..*..*", "$.payload" + "[*,*]" * 20])
def test_a_hostile_path_stays_cheap(path: str):
    """A path that looks at everything from everywhere is stopped."""
    payload: Any = 1
    for _ in range(100):
        payload = [payload, 1]
    with pytest.raises(Unsuitable, match="looks at more than 100,000 values"):
        compile_mapper({"a": path})(an_event(payload))


def test_a_path_follows_the_deepest_payload():
    """As deep as the door lets one in."""
    payload: Any = {"n": 1}
    for _ in range(190):
        payload = {"a": payload}
    assert compile_mapper({"n": "$..n"})(an_event(payload)) == {"n": [1]}
