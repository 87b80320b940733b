"""JSON at the door: what both databases can keep, and how handlers take their input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, TypedDict, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Raw, Struct, json

from ostinato import ConfigError, InvalidInput, Run
from ostinato.codec import DEEPEST, InputType, encode_input, input_type, to_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="ascii")), inner, max_size=4)
    ),
    max_leaves=20,
).filter(lambda value: "\\u0000" not in str(json.encode(value)))

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None, categories=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def refusal(value: object, **options: Any) -> InvalidInput:
    """The error with which a value is refused."""
    with pytest.raises(InvalidInput) as caught:
        to_json(value, what="input of 'enrich'", **options)
    assert "input of 'enrich'" in str(caught.value)
    return caught.value


# --- what can be kept


@given(JSON)
def test_json_is_kept_as_it_is(value: Any):
    """What can be kept is encoded once and means the same."""
    assert value == json.decode(to_json(value, what="x"))


@given(ANYTHING)
def test_anything_is_kept_or_refused_with_its_path(value: Any):
    """There is no third way, and nothing is changed silently."""
    encoded, refused = b"", None
    try:
        encoded = to_json(value, what="x")
    except InvalidInput as error:
        refused = error
    if refused is None:
        assert value == json.decode(encoded)
        assert b"\\u0000" not in encoded
    else:
        assert refused.path.startswith("$")
        assert "\x00" not in str(refused)


class Mood(Enum):
    GLAD = "glad"


class Note(Struct):
    text: str
    when: datetime | None = None


@dataclass
class Point:
    x: float
    y: float = 0.0


class Order(pydantic.BaseModel):
    sku: str
    amount: int = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Note("hi"), {"text": "hi", "when": None}),
        (Point(1), {"x": 1, "y": 0.0}),
        (Order(sku="a"), {"sku": "a", "amount": 1}),
        ([Order(sku="a")], [{"sku": "a", "amount": 1}]),
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00Z"),
        (date(2030, 1, 2), "2030-01-02"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Mood.GLAD, "glad"),
        (b"\x00\x01", "AAE="),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        (-0.0, 0.0),
        (10**400, 10**400),
        ("𝄞 ostinato", "𝄞 ostinato"),
        ("null and \\u0000 as text", "null and \\u0000 as text"),
    ],
)
def test_values_with_a_plain_meaning_are_encoded(value: object, expected: object):
    """Structs, dataclasses, pydantic models, dates, decimals, enums, bytes."""
    assert expected == json.decode(to_json(value, what="x"))


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ({"a": [{"b": "x\x00y"}]}, "$.a[0].b", "contains NUL"),
        ({"a": {"b": float("nan")}}, "$.a.b", "is nan"),
        ([1, float("inf")], "$[1]", "is inf"),
        ({"a": -float("inf")}, "$.a", "is -inf"),
        ({"a": ["ok", "\ud800"]}, "$.a[1]", "lone surrogate"),
        ({"a": {"b": object()}}, "$.a.b", "object is not a JSON type"),
        ({"a": {"b": 1j}}, "$.a.b", "complex is not a JSON type"),
        ({"a": [Note("x\x00")]}, "$.a[0].text", "contains NUL"),
        ({"a": [Point(float("nan"))]}, "$.a[0].x", "is nan"),
        ({"a": {"b": 10**5000}}, "$.a.b", "4300 digits"),
        ({"a": {(1, 2): 3}}, "$.a", "tuple"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_path(value: object, path: str, problem: str):
    """The error says where it is and what is wrong with it."""
    error = refusal(value)
    assert path == error.path
    assert path in str(error)
    assert json.encode(str(error))  # it can itself be stored and logged
    assert problem in str(error)


@pytest.mark.parametrize("key", ["a\x00b", "a\ud800b"])
def test_a_key_that_cannot_be_kept_is_refused_in_words_that_can(key: str):
    """The path is made of the key, and must be fit to be shown and stored all the same."""
    error = refusal({"outer": {key: 1}})
    assert "\x00" not in str(error)
    assert "\x00" not in error.path
    assert str(error).encode()


def test_nesting_has_a_limit():
    """As deep as the limit is fine, deeper is refused before anything can choke on it."""
    assert to_json(nested(DEEPEST), what="x")
    assert f"is nested deeper than {DEEPEST} levels" in str(refusal(nested(DEEPEST + 1)))


def test_even_very_deep_nesting_is_refused_in_order():
    """Deeper than Python's own recursion goes."""
    assert "nested deeper" in str(refusal(nested(sys.getrecursionlimit() * 5)))


def test_a_value_that_contains_itself_is_refused():
    """It has no end."""
    circle: list[Any] = []
    circle.append(circle)
    assert "nested deeper" in str(refusal({"a": circle}))


def test_wide_values_are_not_deep():
    """Many lists beside each other are no nesting."""
    assert to_json([[] for _ in range(10 * DEEPEST)], what="x")


def test_size_has_a_limit():
    """The error gives both sizes and the remedy."""
    assert to_json("a" * 8, what="x", limit=10) == b'"aaaaaaaa"'
    error = refusal("a" * 2000, limit=1024)
    assert "has 2,002 bytes as JSON and may have 1,024; store it elsewhere and pass a reference" in str(error)


def test_json_that_claims_to_be_encoded_is_checked_too():
    """`msgspec.Raw` is passed through as it is, so it must be JSON: a database would refuse a whole commit for it."""
    assert to_json(Raw(b'{"a":1}'), what="x") == b'{"a":1}'
    refusal({"a": Raw(b"not json")})
    refusal({"a": Raw(b'"\\u0000"')})


class Explosive:
    @property
    def model_dump(self) -> Any:
        raise RuntimeError("not now")


def test_an_object_that_fails_while_it_is_encoded_is_refused():
    """Whatever its hooks raise."""
    assert refusal({"a": Explosive()}).path == "$.a"


# --- how handlers take their input


def taken(handler: Any, value: Any, run: object = "the run") -> Any:
    """What a handler makes of an input, called as the executor does."""
    return kind_of(handler).call(handler, run, json.encode(value).decode())


def kind_of(handler: Any) -> InputType:
    return input_type(handler, name="enrich")


def encoded(handler: Any, *given: Any, **fields: Any) -> Any:
    """What is stored when a handler's function is enqueued."""
    return json.decode(encode_input(kind_of(handler), given, fields, name="enrich", limit=10_000))


def mismatch(handler: Any, *given: Any, **fields: Any) -> InvalidInput:
    with pytest.raises(InvalidInput, match=r"^input of 'enrich': ") as caught:
        encoded(handler, *given, **fields)
    return caught.value


class Requested(Struct, rename="camel"):
    track_id: str
    force: bool = False


class Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    many: int = 1
    name: str


class Movie(TypedDict, total=False):
    title: str
    year: int


T = TypeVar("T")


class Page(Struct, Generic[T]):
    items: list[T]


def nothing(): ...


def keywords(artist: str, title: str = "untitled", *, year: int | None = None) -> Any:
    return artist, title, year


def with_run(run: Run, artist: str) -> Any:
    return run, artist


def with_unannotated_run(run, artist: str) -> Any:
    return run, artist


def only_run(run: Run) -> Any:
    return run


def run_as_text(run: str) -> Any:
    return run


def whole_struct(request: Requested) -> Any:
    return request


def struct_and_run(run: Run, request: Requested) -> Any:
    return run, request


def whole_dataclass(point: Point) -> Any:
    return point


def whole_movie(movie: Movie) -> Any:
    return movie


def whole_dict(row: dict) -> Any:  # type: ignore[type-arg]
    return row


def whole_typed_dict(row: dict[str, int]) -> Any:
    return row


def whole_model(order: Order) -> Any:
    return order


def whole_page(page: Page[int]) -> Any:
    return page


def open_keywords(**fields: Any) -> Any:
    return fields


def some_open_keywords(run: Run, artist: str, **fields: Any) -> Any:
    return run, artist, fields


def unannotated(artist, year=1):
    return artist, year


def annotated(amount: Annotated[int, Meta(gt=0)]) -> Any:
    return amount


def mutable_defaults(tags: list[str] = [], options: dict[str, int] = {}) -> Any:  # noqa: B006
    return tags, options


@pytest.mark.parametrize(
    ("handler", "value", "expected"),
    [
        (nothing, {}, None),
        (keywords, {"artist": "Ravel"}, ("Ravel", "untitled", None)),
        (keywords, {"artist": "Ravel", "title": "Boléro", "year": 1928}, ("Ravel", "Boléro", 1928)),
        (with_run, {"artist": "Ravel"}, ("the run", "Ravel")),
        (with_unannotated_run, {"artist": "Ravel"}, ("the run", "Ravel")),
        (only_run, {}, "the run"),
        (run_as_text, {"run": "5 km"}, "5 km"),
        (whole_struct, {"trackId": "t", "force": True}, Requested("t", True)),
        (struct_and_run, {"trackId": "t"}, ("the run", Requested("t"))),
        (whole_dataclass, {"x": 1}, Point(1.0)),
        (whole_movie, {"title": "Amadeus"}, {"title": "Amadeus"}),
        (whole_dict, {"any": ["thing"]}, {"any": ["thing"]}),
        (whole_typed_dict, {"a": 1}, {"a": 1}),
        (whole_model, {"sku": "a"}, Order(sku="a")),
        (whole_page, {"items": [1, 2]}, Page([1, 2])),
        (open_keywords, {"a": 1, "b": 2}, {"a": 1, "b": 2}),
        (some_open_keywords, {"artist": "Ravel", "a": 1}, ("the run", "Ravel", {"a": 1})),
        (unannotated, {"artist": ["any"]}, (["any"], 1)),
        (annotated, {"amount": 1}, 1),
        (mutable_defaults, {}, ([], {})),
    ],
)
def test_a_handler_takes_its_input_as_its_parameters_say(handler: Any, value: Any, expected: Any):
    """Nothing, keywords, or the whole object in one parameter; `run` first, if it wants it."""
    assert expected == taken(handler, value)


def test_values_are_converted_by_their_annotations():
    """A handler that asks for a datetime gets one."""

    def handler(when: datetime, price: Decimal, mood: Mood, note: Note) -> Any:
        return when, price, mood, note

    value = {"when": "2030-01-02T00:00:00Z", "price": "1.50", "mood": "glad", "note": {"text": "hi"}}
    assert (datetime(2030, 1, 2, tzinfo=UTC), Decimal("1.50"), Mood.GLAD, Note("hi")) == taken(handler, value)


def test_mutable_defaults_are_not_shared_between_runs():
    """One run's list is not the next one's."""
    kind = kind_of(mutable_defaults)
    kind.call(mutable_defaults, None, "{}")[0].append("mine")
    assert kind.call(mutable_defaults, None, "{}") == ([], {})


def test_nested_defaults_are_not_shared_between_runs():
    """Nor is what is inside them."""

    def handler(options: list[dict[str, int]] = [{"a": 1}]) -> Any:  # noqa: B006
        return options

    kind = kind_of(handler)
    kind.call(handler, None, "{}")[0]["a"] = 2
    assert kind.call(handler, None, "{}") == [{"a": 1}]


def test_a_default_may_be_any_object():
    """A struct, a dataclass or bytes that can change are defaults as good as any."""

    def handler(note: Note = Note("none"), point: Point = Point(0)) -> Any:  # noqa: B008
        return note, point

    assert (Note("none"), Point(0)) == taken(handler, {})


@pytest.mark.parametrize(
    ("handler", "takes_run"),
    [(with_run, True), (with_unannotated_run, True), (only_run, True), (run_as_text, False), (nothing, False)],
)
def test_run_is_known_by_its_annotation_or_its_name(handler: Any, takes_run: bool):
    """A parameter `run` of another type is input like any other."""
    assert takes_run is kind_of(handler).takes_run


# --- enqueuing


@pytest.mark.parametrize(
    ("handler", "given", "fields", "expected"),
    [
        (nothing, (), {}, {}),
        (keywords, (), {"artist": "Ravel"}, {"artist": "Ravel"}),
        (keywords, ({"artist": "Ravel"},), {}, {"artist": "Ravel"}),
        (whole_struct, (Requested("t"),), {}, {"trackId": "t", "force": False}),
        (whole_struct, ({"trackId": "t"},), {}, {"trackId": "t"}),
        (whole_struct, (), {"track_id": "t"}, {"trackId": "t", "force": False}),
        (whole_struct, (), {"trackId": "t"}, {"trackId": "t"}),
        (lambda strict: strict, (), {"strict": 1}, {"strict": 1}),
        (whole_dataclass, (Point(1),), {}, {"x": 1, "y": 0.0}),
        (whole_dataclass, (), {"x": 1}, {"x": 1}),
        (whole_movie, (), {"year": 1984}, {"year": 1984}),
        (whole_dict, (), {"a": 1}, {"a": 1}),
        (whole_dict, ({"a": 1},), {}, {"a": 1}),
        (whole_model, (Order(sku="a"),), {}, {"sku": "a", "amount": 1}),
        (whole_model, (), {"sku": "a"}, {"sku": "a"}),
        (open_keywords, (), {"anything": [1]}, {"anything": [1]}),
    ],
)
def test_input_is_given_as_keywords_or_as_one_object(handler: Any, given: Any, fields: Any, expected: Any):
    """Both mean the same, and a struct's own names are translated."""
    assert expected == encoded(handler, *given, **fields)


def test_a_keyword_only_struct_is_built_from_its_attributes():
    """Whatever order its required fields come in."""

    def handler(request: Strict) -> None: ...

    assert encoded(handler, name="a") == {"many": 1, "name": "a"}
    assert mismatch(handler, many=2).path == "$.name"


class Aliased(pydantic.BaseModel):
    track_id: str = pydantic.Field(alias="trackId")


def test_a_pydantic_model_with_aliases_goes_the_whole_way():
    """It is stored under the names under which it is read."""

    def handler(request: Aliased) -> Any:
        return request.track_id

    stored = encoded(handler, Aliased(trackId="t"))
    assert stored == {"trackId": "t"}
    assert taken(handler, stored) == "t"


@pytest.mark.parametrize(
    ("handler", "fields", "path", "problem"),
    [
        (keywords, {}, "$.artist", "missing required field `artist`"),
        (keywords, {"artist": 5}, "$.artist", "Expected `str`, got `int`"),
        (keywords, {"artist": "a", "ear": 1}, "$", "unknown field `ear`"),
        (nothing, {"a": 1}, "$", "unknown field `a`"),
        (annotated, {"amount": 0}, "$.amount", ">= 1"),
        (whole_struct, {"force": True}, "$.trackId", "missing required field `trackId`"),
        (whole_struct, {"track_id": 5}, "$.trackId", "Expected `str`, got `int`"),
        (whole_dataclass, {"x": "far"}, "$.x", "Expected `float`, got `str`"),
        (whole_movie, {"year": "old"}, "$.year", "Expected `int`, got `str`"),
        (whole_model, {"sku": "a", "amount": "many"}, "$.amount", "valid integer"),
        (whole_model, {}, "$.sku", "Field required"),
        (whole_page, {"items": [1, "2"]}, "$.items[1]", "Expected `int`, got `str`"),
        (some_open_keywords, {"a": 1}, "$.artist", "missing required field `artist`"),
    ],
)
def test_bad_input_is_refused_with_the_function_and_the_field(
    handler: Any, fields: dict[str, Any], path: str, problem: str
):
    """The error names the function, the place and what was expected."""
    error = mismatch(handler, **fields)
    assert path == error.path
    assert problem in str(error)
    assert path in str(error)


@pytest.mark.parametrize("given", [[], 5, "text", None, [1, 2]])
@pytest.mark.parametrize("handler", [nothing, keywords, whole_struct, whole_dict, whole_model, open_keywords])
def test_input_is_an_object(handler: Any, given: Any):
    """A list or a number is no input, whatever the handler."""
    assert mismatch(handler, given).path == "$"


def test_one_object_or_keywords_but_not_both():
    """It would not be clear which counts."""
    assert "give one object or keywords, not both" in str(mismatch(keywords, {"artist": "a"}, title="b"))
    assert "give one object or keywords, not both" in str(mismatch(keywords, {"artist": "a"}, {"title": "b"}))


def test_unportable_input_is_refused_with_the_function():
    """The path is the input's own."""
    error = mismatch(whole_dict, a={"b": "\x00"})
    assert error.path == "$.a.b"


def test_input_that_no_longer_fits_is_refused_at_the_claim():
    """With the same words as at the door."""
    with pytest.raises(InvalidInput, match=r"^input of 'enrich': \$\.artist: Expected `str`, got `int`"):
        taken(keywords, {"artist": 1})


@pytest.mark.parametrize("raw", ["", "{", "nul", '{"artist": "a"} x'])
def test_what_is_not_even_json_is_refused(raw: str):
    """Somebody wrote to the table by hand."""
    with pytest.raises(InvalidInput, match=r"^input of 'enrich': "):
        kind_of(keywords).check(raw.encode())


# --- schemas


def test_the_input_has_a_json_schema():
    """Other processes, SQL and people see what a function takes."""
    schema = kind_of(keywords).schema
    assert schema is not None
    assert "artist" in str(json.decode(schema))


@pytest.mark.parametrize("handler", [whole_struct, whole_dataclass, whole_movie, whole_model, whole_page, nothing])
def test_every_kind_of_input_has_a_schema(handler: Any):
    """A struct under its outside names."""
    schema = kind_of(handler).schema
    assert schema is not None
    assert json.decode(schema)


# --- declarations that cannot work


def test_a_handler_cannot_take_positional_arguments():
    """Its input is an object, which has names."""

    def handler(*tracks: str) -> None: ...

    with pytest.raises(ConfigError, match=r"^function 'enrich': a handler cannot take \*args"):
        kind_of(handler)


def test_a_positional_only_parameter_works_or_is_refused():
    """Each attempt would fail otherwise, with a TypeError that nobody expects."""

    def handler(artist: str, /) -> Any:
        return artist

    try:
        kind = kind_of(handler)
    except ConfigError:
        return
    assert kind.call(handler, None, '{"artist": "Ravel"}') == "Ravel"


def test_run_comes_first_or_the_declaration_is_refused():
    """Otherwise every enqueue would be asked for a field `run`."""

    def handler(artist: str, run: Run) -> None: ...

    with pytest.raises(ConfigError, match="first"):
        kind_of(handler)


def test_an_annotation_that_cannot_be_resolved_is_refused_with_the_remedy():
    """Types are needed at run time."""

    def handler(artist: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(
        ConfigError, match=r"^function 'enrich': name 'Missing' is not defined; annotations are needed at"
    ):
        kind_of(handler)


def test_an_annotation_that_json_cannot_express_is_refused():
    """When it is declared, and not when the first run starts."""

    def handler(pair: dict[str, int] | Note | Point) -> None: ...

    with pytest.raises(ConfigError, match=r"^function 'enrich': its input cannot be read from JSON"):
        kind_of(handler)
