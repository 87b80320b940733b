"""Durations as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.clock import seconds, utc
from ostinato.errors import ConfigError

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("1h 30m", 5400.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("2 d", 172800.0),
        (" 7d ", 604800.0),
        ("1w", 604800.0),
        (0, 0.0),
        (2.5, 2.5),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_people_write_durations_in_many_ways(written: str | float | timedelta, expected: float):
    """Text with units, numbers of seconds and timedeltas are all durations."""
    assert expected == seconds(written)


@pytest.mark.parametrize(
    "written", ["", " ", "30", "s", "-5s", "5 minutes", "5x", "1h 30", "1e3s", "1mm", None, True, [], object()]
)
def test_what_is_not_a_duration_is_refused(written: object):
    """The error shows how durations are written."""
    with pytest.raises(ConfigError, match="is not a duration; write it like '500ms', '30s'"):
        seconds(written)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", [-1, -0.001, float("inf"), float("nan"), timedelta(seconds=-1), "9" * 400 + "s"])
def test_a_duration_is_finite_and_not_negative(written: float | str | timedelta):
    """Nothing waits for ever or goes back in time."""
    with pytest.raises(ConfigError, match="is not a finite time of zero or more"):
        seconds(written)


def test_a_whole_number_too_large_for_a_float_is_refused_like_any_other():
    """It does not escape as an OverflowError."""
    with pytest.raises(ConfigError, match="finite"):
        seconds(10**400)


def test_the_error_names_what_the_duration_is_for():
    """Of many durations in a program, it says which one is wrong."""
    with pytest.raises(ConfigError, match=r"^shutdown_grace: '5 minutes' is not a duration"):
        seconds("5 minutes", what="shutdown_grace")


@given(st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(sorted(UNITS))), min_size=1, max_size=5))
def test_parts_add_up(parts: list[tuple[int, str]]):
    """Any parts in any order mean their sum."""
    written = " ".join(f"{number}{unit}" for number, unit in parts)
    assert seconds(written) == pytest.approx(sum(number * UNITS[unit] for number, unit in parts))


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_config_error(text: str):
    """Nothing else comes out of it."""
    refused = ""
    try:
        assert seconds(text) >= 0
    except ConfigError as error:
        refused = str(error)
    assert not refused or repr(text) in refused


def test_an_instant_is_turned_into_utc():
    """The same moment in another zone."""
    paris = timezone(timedelta(hours=2))
    assert datetime(2030, 1, 1, 10, tzinfo=UTC) == utc(datetime(2030, 1, 1, 12, tzinfo=paris))
    assert utc(datetime(2030, 1, 1, 12, tzinfo=paris)).tzinfo is UTC


def test_a_naive_datetime_is_refused_with_the_remedy():
    """It names no instant; the error says how to give one."""
    with pytest.raises(ConfigError, match=r"^run_at: .* has no time zone; use datetime\(\.\.\., tzinfo=\.\.\.\)"):
        utc(datetime(2030, 1, 1))  # noqa: DTZ001


def test_an_instant_that_utc_cannot_express_is_refused():
    """The last hours of the calendar in the far west are after the end of it in UTC."""
    with pytest.raises(ConfigError, match="run_at"):
        utc(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))))
