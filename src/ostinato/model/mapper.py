"""Input mappers: recipes that make a function's input from an event.

A recipe is an object whose values are JSONPaths into the event (`$.payload.sku`, `$.entity_id`), texts
(`literal:gold`), numbers, true, false, null, or objects and lists of these.

Any path of RFC 9535 will do whose cost is bounded: without regular expressions (`match`, `search`), and without `..`,
`,` and further filters inside of a filter. A subscription's own filter has all that, with a budget. A path that can
only have one value gives it, and is missed where there is none; any other gives a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from threading import local
from typing import Any

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError, JSONPathMatch
from msgspec import to_builtins

from ..errors import ConfigError
from .event import Event, Unsuitable

LITERAL = "literal:"
_STRUCTURE = re.compile(r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | \.\. | [][?,]""", re.VERBOSE)
LONGEST_PATH = 500
DEEPEST = 50
MOST_VISITED = 100_000
"""How many values a path may look at in one event."""

Document = dict[str, Any]
Recipe = Callable[[Document], Any]

_visits = local()


class _TooMuch(Exception):
    """A path looked at more values than it may."""


class _Visit(JSONPathMatch):
    """A value that a path looks at. Some paths, like `$..*..*..*`, look at more than anybody can wait for."""

    __slots__ = ()

    def __init__(self, **fields: Any) -> None:
        _visits.left -= 1
        if _visits.left < 0:
            raise _TooMuch
        super().__init__(**fields)


class _Environment(JSONPathEnvironment):
    max_recursion_depth = 250

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        del self.function_extensions["match"], self.function_extensions["search"]


_environment = _Environment(strict=True)


def compile_mapper(recipe: Any) -> Callable[[Event], Any]:
    """The recipe as a function of an event, or an error that says what is wrong with it."""
    if not isinstance(recipe, dict):
        raise ConfigError(f"mapper {recipe!r} must be an object, like {{'sku': '$.entity_id'}}")
    made = _compiled(recipe, "$", 0)
    return lambda event: made(document_of(event))


def document_of(event: Event) -> Document:
    """The event as its filters and mappers see it."""
    document: Document = to_builtins(event)
    return document


def _compiled(recipe: Any, place: str, depth: int) -> Recipe:
    if depth > DEEPEST:
        raise ConfigError(f"mapper at {place[:80]}… is nested deeper than {DEEPEST} levels")
    match recipe:
        case str():
            return _text(recipe, place)
        case dict():
            members = [(name, _compiled(value, f"{place}.{name}", depth + 1)) for name, value in recipe.items()]
            return lambda document: {name: made(document) for name, made in members}
        case list():
            entries = [_compiled(value, f"{place}[{index}]", depth + 1) for index, value in enumerate(recipe)]
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
    if re.split(r"[.\[]", text, maxsplit=1)[0] in Event.__struct_fields__:
        raise ConfigError(
            f"mapper at {place}: {text!r} is no path; write $.{text}, or {LITERAL}{text} for the text itself"
        )
    raise ConfigError(f"mapper at {place}: {text!r} is no path; write {LITERAL}{text} for the text itself")


def _path(text: str, place: str) -> Recipe:
    path = _read(text, place)
    if (names := _plain_names(text)) is not None:
        _check_field(names[0], text, place)
        return lambda document: _followed(document, names, text, place)
    if path.singular_query():
        return lambda document: _only(_found(path, document, text, place), text, place)
    return lambda document: _found(path, document, text, place)


def _read(text: str, place: str) -> JSONPath:
    if len(text) > LONGEST_PATH:
        raise ConfigError(f"mapper at {place}: a path may have {LONGEST_PATH} characters, and this one has {len(text)}")
    try:
        path = _environment.compile(text)
    except (JSONPathError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"mapper at {place}: {text!r} is no JSONPath (RFC 9535) that can be used: {reason}"
        ) from error
    assert isinstance(path, JSONPath)  # strict: no unions of paths
    if (culprit := _unbounded(text)) is not None:
        raise ConfigError(
            f"mapper at {place}: {text!r} has {culprit!r} inside of a filter, which may look at any number of values; "
            "map the whole list and choose in the function, or use the subscription's filter="
        )
    return path


def _unbounded(path: str) -> str | None:
    """What makes a filter's cost more than the size of what it looks at."""
    brackets: list[bool] = []
    for found in _STRUCTURE.finditer(path):
        match found[0]:
            case "[":
                brackets.append(False)
            case "]":
                brackets.pop()
            case "?" if not any(brackets):
                brackets[-1] = True
            case ".." | "," | "?" as culprit if any(brackets):
                return culprit
    return None


def _plain_names(text: str) -> tuple[str, ...] | None:
    """The names in a path like $.payload.sku, which is followed without a query."""
    names = text.split(".")[1:]
    return tuple(names) if names and text[:2] == "$." and all(map(_is_plain, names)) else None


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _check_field(name: str, text: str, place: str) -> None:
    if name not in Event.__struct_fields__:
        raise ConfigError(
            f"mapper at {place}: an event has no {name!r}, which {text!r} asks for; it has payload, with what was "
            f"recorded, and {', '.join(field for field in Event.__struct_fields__ if field != 'payload')}"
        )


def _followed(document: Any, names: tuple[str, ...], text: str, place: str) -> Any:
    value = document
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise _missing(text, place)
        value = value[name]
    return value


def _found(path: JSONPath, document: Document, text: str, place: str) -> list[Any]:
    _visits.left = MOST_VISITED
    root = _Visit(filter_context={}, obj=document, parent=None, path="$", parts=(), root=document)
    found: Iterable[JSONPathMatch] = [root]
    for segment in path.segments:
        found = segment.resolve(found)
    try:
        return [visit.obj for visit in found]
    except _TooMuch:
        reason = f"looks at more than {MOST_VISITED:,} values"
    except (JSONPathError, RecursionError) as error:
        reason = f"fails: {error}".partition("\n")[0]
    raise Unsuitable("mapper", f"{text}, which is wanted for {place}, cannot be found: it {reason}")


def _only(found: list[Any], text: str, place: str) -> Any:
    if not found:
        raise _missing(text, place)
    return found[0]


def _missing(text: str, place: str) -> Unsuitable:
    return Unsuitable("mapper", f"the event has nothing at {text}, which is wanted for {place}")
