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
    text = match if isinstance(match, str) else sorted_json(dict(match)).decode()
    try:
        compiled(text)
    except ConfigError as error:
        raise InvalidOption(f"match: {error}") from error
    return text


@lru_cache(maxsize=4096)
def compiled(text: str | None) -> Condition:
    """The condition as a function of an event."""
    if text is None:
        return _any
    if not text.startswith("{"):
        return _suitable(compile_filter(text))
    wanted: dict[str, Any] = json.decode(text)
    read = compile_mapper({path: path for path in wanted})
    return _suitable(lambda event: bool(read(event) == wanted))


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
