"""What a step calls: how, with which arguments, and what it gives back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...codec import ResultType, sorted_json
from ...errors import StepMisused


class Callee(NamedTuple):
    """What is known of a step's function."""

    is_async: bool
    result: ResultType


_callees: dict[tuple[object, object], Callee] = {}
_MOST_CALLEES = 10_000


def callee_of(function: Callable[..., Any]) -> Callee:
    """Known once per place in the code, and what is annotated there: closures are made anew for every call."""
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None:  # partials and objects that can be called
        return Callee(_is_async(function), ResultType(function))
    try:
        place = code, plain.__annotations__.get("return", _UNANNOTATED)
        found = _callees.get(place)
    except TypeError:  # an annotation that cannot be compared with others
        return Callee(_is_async(function), ResultType(plain))
    if found is None:
        if len(_callees) >= _MOST_CALLEES:
            _callees.clear()
        found = _callees[place] = Callee(_is_async(function), ResultType(plain))
    return found


_UNANNOTATED = object()


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def refusal_of(name: object, function: object) -> str:
    """What is wrong with a step that has no function, and how it is written."""
    if callable(name):
        called = getattr(name, "__name__", "do_it")
        return f"a step's name comes first, then its function: run.step({called!r}, {called}, ...)"
    if inspect.iscoroutine(function):
        function.close()
        called = function.__name__
        return f"step {name!r} was given a call and not a function: run.step({name!r}, {called}, ...) without brackets"
    return f"step {name!r} needs a function to call, and {function!r} is none: run.step({name!r}, function, ...)"


def told_apart(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None
) -> tuple[bytes, str | None]:
    """What makes the step different from others of its name, and its arguments for people to read."""
    try:
        given = sorted_json([args, kwargs])
    except Exception as error:
        if key is None:
            raise StepMisused(
                f"step {name!r}: its arguments cannot be told from others ({error}); say what makes it different with "
                f"run.options(key=...).step({name!r}, ...)"
            ) from error
        return b"k" + key.encode(), None
    shown = _shown(given)
    return (b"a" + given if key is None else b"k" + key.encode()), shown


def bound(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments with those that a partial brings along."""
    if isinstance(function, partial):
        return (*function.args, *args), {**function.keywords, **kwargs}
    return args, kwargs


LONGEST_INPUT = 4096


def _shown(given: bytes) -> str | None:
    if given == b"[[],{}]":
        return None
    if len(given) > LONGEST_INPUT or b"\\u0000" in given:
        return None
    return given.decode()
