"""Filters: conditions on events, in CEL. `event` has the event's fields; an attribute that is missing is null."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .event import Event, Unsuitable
from .mapper import document_of

if TYPE_CHECKING:
    from cel_expr_python.cel import Env

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'")
_ATTRIBUTES = re.compile(r"\bevent((?:\.[A-Za-z_]\w*)+)\b(?!\s*\()")


def compile_filter(text: str) -> Callable[[Event], bool]:
    """The condition as a function of an event, or an error that says what is wrong with it."""
    try:
        expression = _environment().compile(text)
    except RuntimeError as error:
        raise ConfigError(f"filter {text!r} is no CEL: {error}") from error
    paths = {tuple(found[1:].split(".")) for found in _ATTRIBUTES.findall(_STRING.sub('""', text))}

    def accepts(event: Event) -> bool:
        document = document_of(event)
        for path in paths:
            _fill(document, path)
        return _answer(expression.eval(data={"event": document}), text)

    return accepts


def _environment() -> Env:
    try:
        from cel_expr_python import cel
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("cel_expr_python"):
            raise
        raise ConfigError("filters need CEL: pip install 'ostinato[cel]'") from error
    return cel.NewEnv(variables={"event": cel.Type.DYN})


def _fill(document: dict[str, Any], path: tuple[str, ...]) -> None:
    """Puts null where an attribute is missing."""
    value = document
    for name in path[:-1]:
        value = value.setdefault(name, {})
        if not isinstance(value, dict):
            return
    value.setdefault(path[-1], None)


def _answer(value: Any, text: str) -> bool:
    found = value.plain_value() if str(value.type()) == "BOOL" else value.value()
    if isinstance(found, bool):
        return found
    if "null_type" in str(found):  # null is not greater than anything, nor smaller
        return False
    raise Unsuitable("filter", f"filter {text!r} does not give true or false: {found}")
