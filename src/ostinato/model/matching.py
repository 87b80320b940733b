"""What a waiting run asks of an event: values at paths, or a condition in CEL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import json

from ..codec import sorted_json
from ..errors import ConfigError, InvalidOption
from .event import Event, Unsuitable
from .filter import compile_filter
from .mapper import compile_mapper

Condition = Callable[[Event], bool]


def text_of(match: object) -> str | None:
    """The condition as it is stored, or an error that says what is wrong with it.

    >>> text_of({"$.payload.order": 42})
    '{"$.payload.order":42}'
    """
    if match is None:
        return None
    if not isinstance(match, str | Mapping) or not match:
        raise InvalidOption(
            f"match={match!r} must be like {{'$.payload.order': 42}}, or a condition like 'event.payload.order == 42'"
        )
    if isinstance(match, str) and match.startswith("{"):
        raise InvalidOption(f"match={match!r}: put a condition that begins with {{ into parentheses")
    try:
        text = match if isinstance(match, str) else sorted_json(dict(match)).decode()
        compiled(text)
    except (ConfigError, TypeError, ValueError) as error:
        raise InvalidOption(f"match: {error}") from error
    return text


def shown(match: object) -> object:
    """The condition for people to read."""
    return dict(match) if isinstance(match, Mapping) else match


@lru_cache(maxsize=4096)
def compiled(text: str | None) -> Condition:
    """The condition as a function of an event."""
    if text is None:
        return _any
    if not text.startswith("{"):
        return _suitable(compile_filter(text))
    wanted: dict[str, Any] = json.decode(text)
    read = compile_mapper({path: path for path in wanted})
    return _suitable(lambda event: _equal(read(event), wanted))


# --- looking up -----------------------------------------------------------------------------------------------------

Paths = tuple[str, ...]
Values = tuple[object, ...]


def asked_by(text: str | None) -> tuple[Paths, Values] | None:
    """At which paths of an event a condition wants which values; None for a condition of another kind.

    Events that the condition accepts have equal values there, and few others do.

    >>> asked_by('{"$.payload.order":42}')
    (('$.payload.order',), (42,))
    """
    if text is None or not text.startswith("{"):
        return None
    wanted: dict[str, Any] = json.decode(text)
    return tuple(wanted), tuple(_plain(value) for value in wanted.values())


def values_at(paths: Paths, event: Event) -> Values | None:
    """What an event has at these paths; None if it lacks one."""
    try:
        found = _reader(paths)(event)
    except Unsuitable:
        return None
    return tuple(_plain(found[path]) for path in paths)


@lru_cache(maxsize=1024)
def _reader(paths: Paths) -> Callable[[Event], Any]:
    return compile_mapper({path: path for path in paths})


def _plain(value: object) -> object:
    """What can be looked up; lists and mappings are told apart later."""
    return value if isinstance(value, str | int | float) else None


# --- comparing ------------------------------------------------------------------------------------------------------


def _equal(found: Any, wanted: Any) -> bool:
    """As JSON has it: 1 is 1.0, and neither is true."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_equal(found[name], wanted[name]) for name in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_equal, found, wanted))
    return bool(found == wanted)


def _any(event: Event) -> bool:
    return True


def _suitable(condition: Condition) -> Condition:
    """An event that lacks what is asked of it is not the one that is waited for."""

    def accepts(event: Event) -> bool:
        try:
            return condition(event)
        except Unsuitable:
            return False

    return accepts
