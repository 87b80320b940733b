"""The door: where options are checked, and become changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from ostinato import InvalidInput, InvalidOption
from ostinato.engine.door import LONGEST_KEY, NO_OPTIONS, Door, checked_options, current_run, ids_of, invoked_by
from ostinato.engine.registry import FunctionSpec, Registry, specify
from ostinato.model.change import RunInserted
from ostinato.model.run import Claimed


def greet(name: str) -> None: ...


SPEC = specify(greet, name="greet", queue="mail", priority=5)


def a_door() -> Door:
    """A door that knows `greet`."""
    registry = Registry()
    registry.add(SPEC)
    return Door(registry, input_limit=1000)


def checked(spec: FunctionSpec | None = SPEC, **options: Any) -> dict[str, Any]:
    """Options as they become fields of the change."""
    return checked_options(NO_OPTIONS.changed(**options), spec, "api")


def refused(**options: Any) -> str:
    """What is said to options that cannot work."""
    with pytest.raises(InvalidOption) as caught:
        checked(**options)
    return str(caught.value)


# --- one run


def test_a_run_gets_an_id_and_its_functions_queue_and_priority():
    """What the declaration says, when nothing else is said."""
    change = a_door().one("greet", (), {"name": "Ada"}, NO_OPTIONS, invoked_by="api")
    assert len(change.id) == 26
    assert ("greet", "mail", 5, Raw(b'{"name":"Ada"}')) == (
        change.function,
        change.queue,
        change.priority,
        change.input,
    )


def test_options_win_over_the_declaration():
    """Queue and priority of this run alone."""
    assert (checked(queue="slow", priority=-3)["queue"], checked(priority=-3)["priority"]) == ("slow", -3)
    assert checked(priority=0)["priority"] == 0


def test_a_function_declared_elsewhere_takes_any_object():
    """Its type is not known here; it is checked at the claim."""
    change = a_door().one("elsewhere", ({"any": "thing"},), {}, NO_OPTIONS, invoked_by="api")
    assert ("elsewhere", None, Raw(b'{"any":"thing"}')) == (change.function, change.queue, change.input)


@pytest.mark.parametrize("value", [[1], 5, "text"])
def test_a_function_declared_elsewhere_takes_nothing_but_an_object(value: object):
    """The error names the function and what was given."""
    with pytest.raises(InvalidInput, match=rf"^input of 'elsewhere' must be an object, .* is {type(value).__name__}$"):
        a_door().one("elsewhere", (value,), {}, NO_OPTIONS, invoked_by="api")


def test_input_larger_than_the_limit_is_refused():
    """With or without a known type."""
    for name in ("greet", "elsewhere"):
        with pytest.raises(InvalidInput, match="may have 1,000"):
            a_door().one(name, ({"name": "x" * 2000},), {}, NO_OPTIONS, invoked_by="api")


# --- many


def test_many_runs_get_ascending_ids_and_the_same_options():
    """In the order of their inputs."""
    options = NO_OPTIONS.changed(priority=7)
    changes = a_door().many("greet", ({"name": str(n)} for n in range(3)), options, invoked_by="api")
    assert changes == sorted(changes, key=lambda change: change.id)
    assert [change.priority for change in changes] == [7, 7, 7]
    assert [json.decode(change.input)["name"] for change in changes] == ["0", "1", "2"]


def test_one_bad_input_of_many_is_named_by_its_place():
    """Nothing comes out for the good ones."""
    with pytest.raises(InvalidInput, match=r"^\[2\]: input of 'greet': \$\.name: Expected `str`") as caught:
        a_door().many("greet", [{"name": "a"}, {"name": "b"}, {"name": 3}, {}], NO_OPTIONS, invoked_by="api")
    assert caught.value.path == "[2].name"


# --- options


def test_an_unknown_option_is_refused_with_those_there_are():
    """A misspelt option would be ignored otherwise."""
    with pytest.raises(
        InvalidOption, match=r"^unknown option 'dealy'; options are conn, delay, force, key, metadata, priority"
    ):
        NO_OPTIONS.changed(dealy="5s")


@pytest.mark.parametrize("priority", [-600, -1, 0, 600])
def test_priorities_go_from_minus_600_to_600(priority: int):
    """Ten minutes earlier or later."""
    assert priority == checked(priority=priority)["priority"]


@pytest.mark.parametrize("priority", [-601, 601, "high", 0.5, 10**30])
def test_other_priorities_are_refused(priority: Any):
    """The error says what they mean and how far they go."""
    expected = f"priority={priority!r} must be a whole number of seconds from -600 to 600"
    assert expected == refused(priority=priority)


@pytest.mark.parametrize("priority", [True, 1.0])
def test_a_priority_that_only_equals_a_whole_number_becomes_one_or_is_refused(priority: Any):
    """`true` and `1.0` are not numbers that a database takes for a smallint."""
    try:
        kept = checked(priority=priority)["priority"]
    except InvalidOption:
        return
    assert type(kept) is int


def test_a_delay_is_kept_in_seconds():
    """The database adds it to its own now."""
    assert checked(delay="1h 30m")["delay"] == 5400.0
    assert checked(delay=0)["delay"] == 0.0


def test_an_instant_is_kept_in_utc():
    """ISO 8601, which both databases read."""
    moment = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert checked(run_at=moment)["run_at"] == "2030-01-01T10:00:00+00:00"


def test_a_delay_and_an_instant_exclude_each_other():
    """It would not be clear which counts."""
    assert refused(delay="1s", run_at=datetime.now(UTC)) == "give delay= or run_at=, not both"


def test_a_naive_instant_is_refused():
    """As everywhere."""
    assert "has no time zone" in refused(run_at=datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("run_at", ["2030-01-01T00:00:00Z", 1893456000, datetime(2030, 1, 1, tzinfo=UTC).date()])
def test_an_instant_is_a_datetime(run_at: Any):
    """Anything else is refused by name."""
    assert "run_at" in refused(run_at=run_at)


@pytest.mark.parametrize("delay", ["soon", -1, float("nan"), timedelta(days=-1)])
def test_a_bad_delay_is_refused(delay: Any):
    """As an option, with its name."""
    assert refused(delay=delay).startswith("delay: ")


@pytest.mark.parametrize("option", ["delay", "unique"])
def test_a_time_beyond_the_calendar_is_refused(option: str):
    """After the year 9999 neither Python nor the views can say when."""
    given: dict[str, Any] = {option: timedelta(days=365 * 9000), "key": "k"}
    assert option in refused(**given)


@pytest.mark.parametrize("key", ["", "x" * (LONGEST_KEY + 1), "a\x00b"])
def test_a_key_is_text_of_some_length_without_nul(key: str):
    """The error shows it and says what it may be."""
    assert f"must be text of 1 to {LONGEST_KEY} characters without NUL" in refused(key=key)


@pytest.mark.parametrize("key", [5, b"k", ("a", "b"), "a\ud800b"])
def test_a_key_is_text_that_can_be_stored(key: Any):
    """A number or a lone surrogate is refused here and not by the driver."""
    assert "key=" in refused(key=key)


@pytest.mark.parametrize(
    ("unique", "expected"),
    [
        ("active", {"key": "k", "unique": "active"}),
        ("failed", {"key": "k", "unique": "failed"}),
        ("forever", {"key": "k", "unique": "until"}),
        ("1d", {"key": "k", "unique": "until", "unique_for": 86400.0}),
        (60, {"key": "k", "unique": "until", "unique_for": 60.0}),
        (timedelta(minutes=1), {"key": "k", "unique": "until", "unique_for": 60.0}),
    ],
)
def test_a_key_holds_while_active_until_failed_for_a_period_or_for_ever(unique: Any, expected: dict[str, Any]):
    """The four modes of uniqueness."""
    fields = checked(key="k", unique=unique)
    assert expected == {name: fields[name] for name in expected}


@pytest.mark.parametrize("unique", ["sometimes", None, -5])
def test_other_modes_are_refused(unique: Any):
    """The error names all there are."""
    expected = f"unique={unique!r} must be 'active', 'failed', 'forever' or a duration like '1d'"
    assert expected == refused(key="k", unique=unique)


def test_uniqueness_needs_a_key():
    """Alone it would have no effect."""
    assert refused(unique="1d") == "unique='1d' needs key="


@pytest.mark.parametrize("queue", ["", "a,b", "a:b", "x" * 101, "tab\t", 5])
def test_a_queue_has_a_name(queue: Any):
    """That can be written in a list of queues."""
    assert "must be a name of 1 to 100 printable characters" in refused(queue=queue)


def test_a_timeout_is_longer_than_zero():
    """One of zero would end everything before it began."""
    assert checked(timeout="1m 30s")["timeout"] == 90.0
    assert refused(timeout=0) == "timeout=0 must be longer than zero"


def test_metadata_is_kept_as_json():
    """An object for people, logs and metrics."""
    assert bytes(checked(metadata={"item_id": 42})["metadata"]) == b'{"item_id":42}'


def test_metadata_is_a_mapping():
    """A list would have no names to be copied into logs."""
    assert refused(metadata=[1]) == "metadata=[1] must be a mapping"


def test_metadata_is_small():
    """It is for labels; the error says what to do with more."""
    with pytest.raises(InvalidInput, match=r"^metadata has .* may have 16,384; store it elsewhere"):
        checked(metadata={"text": "x" * 20_000})


def test_metadata_that_cannot_be_kept_is_refused_with_its_path():
    """Like input."""
    with pytest.raises(InvalidInput, match=r"^metadata: \$\.a\.b is nan"):
        checked(metadata={"a": {"b": float("nan")}})


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(codec=None, categories=None), max_size=10),
    st.binary(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.timedeltas(),
)


@given(
    option=st.sampled_from(["delay", "run_at", "priority", "key", "unique", "queue", "timeout", "metadata"]), junk=JUNK
)
def test_any_value_of_any_option_is_taken_or_refused_by_name(option: str, junk: Any):
    """What is taken can be sent to a database as JSON; nothing escapes as a TypeError."""
    given = {"key": "k", option: junk} if option == "unique" else {option: junk}
    fields, refused = {}, ""
    try:
        fields = checked(**given)
    except (InvalidOption, InvalidInput) as error:
        refused = str(error)
    assert not refused or option in refused
    assert json.encode(RunInserted("id", "greet", Raw(b"{}"), **fields))


# --- who enqueues


def test_enqueued_by_the_caller_outside_of_a_run():
    """As the caller says."""
    assert (invoked_by(), invoked_by("cli")) == ("api", "cli")


def test_enqueued_by_the_run_inside_of_one():
    """Whatever the caller says."""
    token = current_run.set(Claimed("01RUN", 1, "greet", "default", 1, "{}", 0, 0.0))
    try:
        assert invoked_by("cli") == "run:01RUN"
    finally:
        current_run.reset(token)


def test_a_change_whose_key_was_taken_stands_for_the_run_that_holds_it():
    """Handles point to the run there is."""
    changes = [RunInserted("A", "f", Raw(b"{}")), RunInserted("B", "f", Raw(b"{}"))]
    assert ids_of(changes, {"B": "Z"}) == [("A", True), ("Z", False)]
