"""Durations as people write them. Instants come from the database, never from here."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from .errors import ConfigError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")

LONGEST = 1000 * 366 * 86400.0

Duration = str | float | int | timedelta


def seconds(value: Duration, *, what: str = "duration") -> float:
    """The seconds in `"90s"`, `"1h 30m"`, a `timedelta` or a plain number.

    >>> seconds("1h 30m")
    5400.0
    """
    try:
        amount = _seconds(value, what)
    except OverflowError:
        amount = float("inf")
    if not 0 <= amount < float("inf"):
        raise ConfigError(f"{what}: {value!r} is not a finite time of zero or more")
    if amount > LONGEST:
        raise ConfigError(f"{what}: {value!r} is longer than a thousand years")
    return amount


def _seconds(value: Duration, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        parts = _PART.findall(value)
        if parts and not _PART.sub("", value).strip():
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    raise ConfigError(f"{what}: {value!r} is not a duration; write it like '500ms', '30s', '5m', '1h 30m', '7d'")


def utc(moment: datetime, *, what: str = "run_at") -> datetime:
    """The same instant in UTC; a naive datetime is refused, since it names no instant."""
    if not isinstance(moment, datetime):
        raise ConfigError(f"{what}: {moment!r} is not a datetime")
    if moment.tzinfo is None:
        raise ConfigError(f"{what}: {moment!r} has no time zone; use datetime(..., tzinfo=...) or datetime.now(UTC)")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ConfigError(f"{what}: {moment!r} cannot be said in UTC") from None
