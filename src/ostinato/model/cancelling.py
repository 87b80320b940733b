"""Events that cancel runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, json

from ..errors import ConfigError
from .event import Event, Unsuitable
from .glob import checked
from .mapper import compile_mapper

_INPUT_PATH = re.compile(r"\$(\.[A-Za-z_][A-Za-z0-9_]*)+")


class CancelOn(Struct, frozen=True):
    """Events that cancel a function's runs: those of a type, a glob, that have at each path what the run's input has.

    >>> CancelOn("order.cancelled", match={"$.payload.order_id": "$.order_id"}).type
    'order.cancelled'
    """

    type: str
    match: Mapping[str, str] = {}
    """Path into the event → path into the run's input. Without any, an event of the type cancels all runs."""


Given = str | CancelOn | Sequence[str | CancelOn]


def specified(given: Given | None, *, what: str) -> tuple[CancelOn, ...]:
    """What was declared, or an error that says what is wrong with it."""
    if given is None:
        return ()
    several = [given] if isinstance(given, str | CancelOn) else given
    if not isinstance(several, list | tuple) or not all(isinstance(each, str | CancelOn) for each in several):
        raise ConfigError(f"{what}: cancel_on={given!r} must be an event type, a CancelOn, or a list of these")
    found = tuple(CancelOn(each) if isinstance(each, str) else each for each in several)
    for each in found:
        _check(each, what)
    return found


def _check(given: CancelOn, what: str) -> None:
    try:
        checked(given.type)
        if not isinstance(given.match, Mapping):
            raise ConfigError(f"match={given.match!r} must be like {{'$.payload.order_id': '$.order_id'}}")
        for path in given.match.values():
            if not _INPUT_PATH.fullmatch(str(path)):
                raise ConfigError(f"match: {path!r} must be a path of plain names into the input, like '$.order_id'")
        compile_mapper(_recipe(given.match))
    except ConfigError as error:
        raise ConfigError(f"{what}: cancel_on: {error}") from error


def _recipe(match: Mapping[str, str]) -> dict[str, str]:
    """Paths into the event, by themselves."""
    return {path: path for path in match}


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A function's `cancel_on`, ready to be asked."""

    function: str
    glob: str
    paths: list[str]
    """Into the input, as names with dots between them."""
    values: Callable[[Event], list[Any] | None]
    """What an event asks for at these paths; None if it lacks something."""


def rules_in(function: str, stored: str) -> list[Rule]:
    """The rules of a function, as they are stored."""
    return [
        Rule(function, each.type, [path[2:] for path in each.match.values()], _reader(each.match))
        for each in json.decode(stored, type=list[CancelOn])
    ]


def _reader(match: Mapping[str, str]) -> Callable[[Event], list[Any] | None]:
    read = compile_mapper(_recipe(match))

    def values(event: Event) -> list[Any] | None:
        try:
            found = list(read(event).values())
        except Unsuitable:
            return None
        return None if any(value is None for value in found) else found

    return values
