"""What a doctor says: how bad it is, what was seen, and the remedy."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Finding(Struct, frozen=True):
    """The answer of one check."""

    level: Level
    check: str
    seen: str
    remedy: str | None = None


def ok(check: str, seen: str) -> Finding:
    return Finding(Level.OK, check, seen)


def note(check: str, seen: str, remedy: str | None = None) -> Finding:
    return Finding(Level.NOTE, check, seen, remedy)


def warning(check: str, seen: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, check, seen, remedy)


def error(check: str, seen: str, remedy: str) -> Finding:
    return Finding(Level.ERROR, check, seen, remedy)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number and its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def lasting(seconds: float) -> str:
    """How long, roughly.

    >>> lasting(4), lasting(200), lasting(7300), lasting(200_000)
    ('4 s', '3 min', '2 h', '2 d')
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
