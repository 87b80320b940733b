"""Times and durations in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ostinato.cli.words import ago, moment, span

NOW = datetime(2027, 1, 31, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 ms"),
        (0.0421, "42 ms"),
        (1.25, "1.2 s"),
        (12.0, "12 s"),
        (60.0, "1 min"),
        (61.0, "1 min 1 s"),
        (3600.0, "1 h"),
        (5400.0, "1 h 30 min"),
        (90000.0, "1 d 1 h"),
        (864000.0, "10 d"),
    ],
)
def test_spans_have_two_figures_or_so(seconds: float, words: str):
    """A duration is said in its two largest units."""
    assert words == span(seconds)


def test_moments_are_seen_from_now():
    """The past was ago, the future is in, and now is now."""
    assert ago(NOW - timedelta(minutes=3), NOW) == "3 min ago"
    assert ago(NOW + timedelta(hours=1), NOW) == "in 1 h"
    assert ago(NOW + timedelta(milliseconds=300), NOW) == "now"


def test_a_moment_is_absolute_and_relative():
    """A moment is written in UTC, with how far it is from now."""
    assert moment(NOW, NOW + timedelta(seconds=5)) == "2027-01-31 09:00:00.000 UTC (5.0 s ago)"
    assert moment(None) == "-"
