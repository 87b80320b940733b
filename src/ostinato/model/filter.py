"""Filters: conditions on events, in CEL. `event` has the event's fields.

An attribute that is missing is null, at any depth, and one that is null counts as missing. A comparison with null is
neither true nor false, so an event that lacks what is asked of it is not accepted. CEL itself calls both an error;
so what a filter selects (`a.b`, `a["b"]`) is rewritten to CEL's optional selection (`a.?b.orValue(null)`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from ..errors import ConfigError
from .event import Event, Unsuitable
from .mapper import document_of
from .outcome import portable

LONGEST = 2000


class _Expression(Protocol):
    """What is used of CEL's."""

    def return_type(self) -> object: ...

    def eval(self, *, data: dict[str, Any]) -> Any: ...


class _Environment(Protocol):
    def compile(self, expression: str) -> _Expression: ...


_TOKEN = re.compile(
    r"""\s+ | //[^\n]*
    | (?P<text> (?i:[rb]{0,2}) (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*') )
    | (?P<name> [A-Za-z_]\w* | `[^`]*`)
    | (?P<number> 0x[0-9a-fA-F]+u? | \d+(?:\.\d+)?(?:[eE][+-]?\d+)?u? | \.\d+(?:[eE][+-]?\d+)? )
    | (?P<sign> && | \|\| | [=!<>]= | . )""",
    re.VERBOSE | re.DOTALL,
)
_OR_NULL = ".orValue(dyn(null))"


def compile_filter(text: object) -> Callable[[Event], bool]:
    """The condition as a function of an event, or an error that says what is wrong with it."""
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST:
        raise ConfigError(f"filter {str(text)[:80]!r} must be text of 1 to {LONGEST} characters")
    if portable(text) != text:
        raise ConfigError(f"filter {text[:80]!r} has a NUL or half of a character, which a database cannot keep")
    _check(text)
    rewriting = _Rewriting(text)
    expression = _compiled(rewriting.done(), text, _environment(optional=True))
    _check_fields(text, rewriting.paths)

    def accepts(event: Event) -> bool:
        document = _as_cel(document_of(event))
        try:
            found = expression.eval(data={"event": document})
            kind, value = str(found.type()), found.value()
        except RuntimeError as error:  # a budget is spent, or `has` is asked of what has no attributes
            kind, value = "ERROR", str(error)
        if isinstance(value, bool):
            return value
        if value is None or (kind == "ERROR" and _is_about_null(value, rewriting, document)):
            return False
        raise Unsuitable("filter", f"filter {text!r} does not give true or false but {kind}: {str(value)[:200]}")

    return accepts


# --- compiling ------------------------------------------------------------------------------------------------------


def _check(text: str) -> None:
    """Compiles it as it was written, so that errors speak of that."""
    kind = str(_compiled(text, text, _environment()).return_type())
    if kind not in ("BOOL", "DYN"):
        raise ConfigError(f"filter {text!r} gives {kind}, and must be true or false: compare it with something")


def _compiled(rewritten: str, text: str, environment: _Environment) -> _Expression:
    try:
        return environment.compile(rewritten)
    except RuntimeError as error:
        raise ConfigError(f"filter {text!r} is no CEL: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ")


def _check_fields(text: str, paths: set[tuple[str, ...]]) -> None:
    known = Event.__struct_fields__
    for name in sorted({path[0] for path in paths if path} - set(known)):
        close = get_close_matches(name, known, n=1)
        remedy = f"did you mean event.{close[0]}?" if close else f"write event.payload.{name} for what was recorded"
        raise ConfigError(f"filter {text!r}: an event has no {name!r}; {remedy}")


@cache
def _environment(*, optional: bool = False) -> _Environment:
    """Made once: making one costs several times what compiling a filter does."""
    try:
        cel = import_module("cel_expr_python.cel")
        extensions = [import_module("cel_expr_python.ext.ext_optional").ExtOptional()] if optional else []
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("cel_expr_python"):
            raise
        raise ConfigError("filters need CEL: pip install 'ostinato[cel]'") from error
    environment: _Environment = cel.NewEnv(variables={"event": cel.Type.DYN}, extensions=extensions)
    return environment


# --- missing attributes ---------------------------------------------------------------------------------------------


class _Rewriting:
    """Makes every selection an optional one. What follows a chain of them closes it: missing is null."""

    def __init__(self, text: str) -> None:
        self._tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup is not None]
        self._written: list[str] = []
        self._brackets: list[str] = []
        self._after_operand = False
        self._open = False
        """Whether a chain of selections is open, which may have come to nothing."""
        self._path: list[str] | None = None
        self.paths: set[tuple[str, ...]] = set()
        """The attributes of the event that are asked for, as far as they have names."""
        self.others = False
        """Whether attributes of anything else are asked for."""

    def done(self) -> str:
        """The rewritten expression."""
        places = iter(range(len(self._tokens)))
        for place in places:
            token = self._tokens[place]
            match token.lastgroup, token[0]:
                case "sign", "." if self._after_operand:
                    self._select(self._tokens[next(places)][0], self._sign_at(place + 2))
                case "sign", "[" if self._after_operand:
                    self._index()
                case "sign", "(" | "[" | "{":
                    self._enter(token[0])
                case "sign", ")" | "]" | "}":
                    self._leave(token[0])
                case _, word:
                    self._word(word, is_operand=token.lastgroup != "sign" and word != "in")
        self._close()
        return " ".join(self._written)

    def _sign_at(self, place: int) -> str:
        return self._tokens[place][0] if place < len(self._tokens) else ""

    def _select(self, name: str, following: str) -> None:
        if following == "(":
            self._close()
            self._written.append(f".{name}")
            return
        self._written.append(f".?{name}")
        self._open = True
        if self._path is None:
            self.others = True
        else:
            self._path.append(name.strip("`"))

    def _index(self) -> None:
        self._end_path()
        self._written.append("[?")
        self._brackets.append("index")
        self._after_operand = self._open = False

    def _enter(self, bracket: str) -> None:
        is_has = bracket == "(" and self._written[-1:] == ["has"]
        is_group = bracket == "(" and not self._after_operand
        self._brackets.append("has" if is_has else "group" if is_group else bracket)
        self._written.append(bracket)
        self._after_operand = self._open = False
        self._path = None

    def _leave(self, bracket: str) -> None:
        kind = self._brackets.pop() if self._brackets else ""
        if kind == "has" and self._open:  # it asks whether the last one is there
            self._written[-1] = self._written[-1].replace(".?", ".")
            self._open = False
            self._end_path()
        goes_on = kind == "group" and self._open and self._is_bare_chain()
        if goes_on:  # (event.payload.a).b is event.payload.a.b
            self._open = False
        self._close()
        self._written.append(bracket)
        self._after_operand, self._open = True, kind == "index" or goes_on

    def _is_bare_chain(self) -> bool:
        """Whether there is nothing but a name and selections since the last bracket."""
        chain = self._written[len(self._written) - self._written[::-1].index("(") :]
        return all(each.startswith(".?") for each in chain[1:])

    def _word(self, word: str, *, is_operand: bool) -> None:
        self._close()
        self._written.append(word)
        self._after_operand = is_operand
        self._path = [] if word == "event" else None

    def _close(self) -> None:
        if self._open:
            self._written.append(_OR_NULL)
        self._open = False
        self._end_path()

    def _end_path(self) -> None:
        if self._path:
            self.paths.add(tuple(self._path))
        self._path = None


def _as_cel(value: Any) -> Any:
    """Without nulls, and without whole numbers that CEL does not have."""
    match value:
        case dict():
            return {name: _as_cel(each) for name, each in value.items() if each is not None}
        case list():
            return [_as_cel(each) for each in value]
        case int() if value.bit_length() > 63:
            return math.inf if value.bit_length() > 1000 else float(value)
        case _:
            return value


# --- answers --------------------------------------------------------------------------------------------------------


_UNSUITED = "UNKNOWN: No matching overloads found"
_NAMELESS = ("<iter_range>", "<jump_condition>", "@in", "!_", "_&&_", "_||_", "_[?_]")
"""What CEL says cannot be done, without saying to which type."""


def _is_about_null(error: str, rewriting: _Rewriting, document: dict[str, Any]) -> bool:
    """Whether what went wrong is that something is null. Where CEL does not say so, something must be missing."""
    if not error.startswith(_UNSUITED):
        return False
    if "null_type" in error:
        return True
    if not error.endswith(_NAMELESS):
        return False
    return rewriting.others or any(_is_missing(document, path) for path in rewriting.paths)


def _is_missing(document: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(document, dict):
            return False
        if name not in document:
            return True
        document = document[name]
    return False
