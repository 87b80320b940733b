"""Input mappers: recipes that make a function's input from an event.

A recipe is an object whose values are JSONPaths into the event (`$.payload.sku`, `$.entity_id`), texts (`literal:gold`),
numbers, true, false, null, or objects and lists of these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from jsonpath import JSONPathEnvironment, JSONPathError
from msgspec import to_builtins

from ..errors import ConfigError
from .event import Event, Unsuitable

LITERAL = "literal:"

Document = dict[str, Any]
Recipe = Callable[[Document], Any]

_environment = JSONPathEnvironment(strict=True)


def compile_mapper(recipe: Any) -> Callable[[Event], Any]:
    """The recipe as a function of an event, or an error that says what is wrong with it."""
    if not isinstance(recipe, dict):
        raise ConfigError(f"mapper {recipe!r} must be an object, like {{'sku': '$.entity_id'}}")
    made = _compiled(recipe, "$")
    return lambda event: made(document_of(event))


def document_of(event: Event) -> Document:
    """The event as its filters and mappers see it."""
    document: Document = to_builtins(event)
    return document


def _compiled(recipe: Any, place: str) -> Recipe:
    match recipe:
        case str():
            return _text(recipe, place)
        case dict():
            members = [(name, _compiled(value, f"{place}.{name}")) for name, value in recipe.items()]
            return lambda document: {name: made(document) for name, made in members}
        case list():
            entries = [_compiled(value, f"{place}[{index}]") for index, value in enumerate(recipe)]
            return lambda document: [made(document) for made in entries]
        case None | bool() | int() | float():
            return lambda _: recipe
        case _:
            raise ConfigError(f"mapper at {place}: {recipe!r} is neither a path, a literal, an object nor a list")


def _text(text: str, place: str) -> Recipe:
    if text.startswith(LITERAL):
        literal = text.removeprefix(LITERAL)
        return lambda _: literal
    if text.startswith("$"):
        return _path(text, place)
    raise ConfigError(f"mapper at {place}: {text!r} is no path; write {LITERAL}{text} for the text itself")


def _path(text: str, place: str) -> Recipe:
    try:
        path = _environment.compile(text)
    except JSONPathError as error:
        raise ConfigError(f"mapper at {place}: {text!r} is no JSONPath (RFC 9535): {error}") from error
    if (names := _plain_names(text)) is not None:
        return lambda document: _followed(document, names, text, place)
    if path.singular_query():
        return lambda document: _only(path.findall(document), text, place)
    return lambda document: list(path.findall(document))


@cache
def _plain_names(text: str) -> tuple[str, ...] | None:
    """The names in a path like $.payload.sku, which is followed without a query."""
    names = text.split(".")[1:]
    return tuple(names) if names and all(name.isidentifier() for name in names) else None


def _followed(document: Any, names: tuple[str, ...], text: str, place: str) -> Any:
    value = document
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise Unsuitable("mapper", f"the event has nothing at {text}, which is wanted for {place}")
        value = value[name]
    return value


def _only(found: list[Any], text: str, place: str) -> Any:
    if not found:
        raise Unsuitable("mapper", f"the event has nothing at {text}, which is wanted for {place}")
    return found[0]
