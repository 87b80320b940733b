"""JSON at the door: encoding, what both databases can keep, and handlers' input types."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict

from .errors import ConfigError, InvalidInput

DEFAULT_LIMIT = 1024 * 1024
DEEPEST = 200
MOST_BITS = 14_000
"""Python reads and writes at most 4300 digits."""

_PATH = re.compile(r" - at `(?:key in )?(\$[^`]*)`$")
_FIELD = re.compile(r"required field `([^`]+)`")


# --- encoding -------------------------------------------------------------------------------------------------------


def to_json(value: object, *, what: str, limit: int = DEFAULT_LIMIT) -> bytes:
    """The value as JSON that PostgreSQL and SQLite both keep unchanged; anything else is refused with its path."""
    try:
        encoded = _encoder.encode(value)
        _check_syntax(encoded)  # what claims to be JSON already (msgspec.Raw) is passed through as it is
    except Exception as error:
        raise _unserialisable(value, error, what) from error
    if len(encoded) > limit:
        raise InvalidInput(
            f"{what} has {len(encoded):,} bytes as JSON and may have {limit:,}; store it elsewhere and pass a reference"
        )
    if b"\\u0000" in encoded or b"null" in encoded or (len(encoded) > DEEPEST and _may_be_deep(encoded)):
        _refuse_unportable(value, what)
    return encoded


def _may_be_deep(encoded: bytes) -> bool:
    return encoded.count(b"[") + encoded.count(b"{") > DEEPEST


def _hook(value: object) -> object:
    dump = getattr(value, "model_dump", None)  # pydantic, without importing it
    if dump is not None:
        return dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


_encoder = msgspec.json.Encoder(enc_hook=_hook)
_check_syntax = msgspec.json.Decoder(Raw).decode


def _unserialisable(value: object, error: Exception, what: str) -> InvalidInput:
    path, problem = _first_problem(value, "$", 0) or ("$", str(error) or type(error).__name__)
    return InvalidInput(f"{what}: {path} {problem}", path=path)


def _refuse_unportable(value: object, what: str) -> None:
    if found := _first_problem(value, "$", 0):
        raise InvalidInput(f"{what}: {found[0]} {found[1]}", path=found[0])


def _first_problem(value: object, path: str, depth: int) -> tuple[str, str] | None:
    """Where a value is not portable JSON, and why."""
    if depth > DEEPEST:
        return path[:80] + "…", f"is nested deeper than {DEEPEST} levels"
    match value:
        case None | bool():
            return None
        case int():
            return (path, "has more than 4300 digits") if value.bit_length() > MOST_BITS else None
        case Raw():
            return _raw_problem(value, path, depth)
        case str():
            return _text_problem(value, path)
        case float():
            return None if math.isfinite(value) else (path, f"is {value}, which JSON cannot say")
        case Mapping():
            return _mapping_problem(value, path, depth)
        case list() | tuple() | set() | frozenset():
            return _items_problem(value, path, depth)
        case _:
            return _object_problem(value, path, depth)


def _items_problem(value: Iterable[object], path: str, depth: int) -> tuple[str, str] | None:
    for place, item in enumerate(value):
        if found := _first_problem(item, f"{path}[{place}]", depth + 1):
            return found
    return None


def _mapping_problem(value: Mapping[Any, Any], path: str, depth: int) -> tuple[str, str] | None:
    for key, item in value.items():
        if not isinstance(key, str | int | float) and not hasattr(key, "isoformat") and not hasattr(key, "hex"):
            return path, f"has a key that is a {type(key).__name__}, and JSON has only text"
        where = f"{path}.{printable(str(key))}"
        if isinstance(key, str) and (found := _text_problem(key, where)):
            return found
        if found := _first_problem(item, where, depth + 1):
            return found
    return None


def _text_problem(value: str, path: str) -> tuple[str, str] | None:
    if "\x00" in value:
        return path, "contains NUL, which PostgreSQL refuses"
    try:
        value.encode()
    except UnicodeEncodeError:
        return path, "contains a lone surrogate, which is not Unicode text"
    return None


def printable(text: str) -> str:
    """The text itself, if it can be shown and stored, or else its escaped form."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _raw_problem(value: Raw, path: str, depth: int) -> tuple[str, str] | None:
    try:
        return _first_problem(msgspec.json.decode(value), path, depth + 1)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return path, f"is not JSON: {error}"


def _object_problem(value: object, path: str, depth: int) -> tuple[str, str] | None:
    try:
        plain = msgspec.to_builtins(value, enc_hook=_hook)
    except Exception as error:
        return path, f"cannot be stored as JSON: {error}"
    return None if plain is value else _first_problem(plain, path, depth + 1)


def sorted_json(value: object) -> bytes:
    """The value as JSON in which the order of keys and of sets does not matter."""
    return _sorted_encoder.encode(value)


_sorted_encoder = msgspec.json.Encoder(enc_hook=_hook, order="sorted")


# --- results of steps -----------------------------------------------------------------------------------------------


class ResultType:
    """How a step's result is kept as JSON, and read back as what it was."""

    __slots__ = ("_annotation", "_decode", "_remedy")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._annotation = _returned(function)
        self._remedy = "annotate what the step's function returns, or return what JSON can say"
        try:
            self._decode = _decoder(self._annotation, "it")
        except ConfigError as error:
            self._decode = msgspec.json.decode
            self._remedy = f"the function says it returns {self._annotation}, but {error}; return what JSON can say"

    def kept(self, value: Any, *, limit: int) -> tuple[bytes, Any]:
        """The result as JSON, and as it will be read back: what comes back as something else is refused."""
        encoded = to_json(value, what="the result", limit=limit)
        if value is None and encoded == b"null":
            return encoded, self.read(encoded)
        again = self.read(encoded)
        if (changed := _changed(value, again, "$")) is None:
            return encoded, again
        path, before, after = changed
        becomes = f"as a {after}" if after != before else "changed"
        raise InvalidInput(f"the result: {path} is a {before} and would come back {becomes}; {self._remedy}", path=path)

    def read(self, encoded: bytes | str) -> Any:
        try:
            return self._decode(encoded)
        except (msgspec.MsgspecError, ValueError) as error:
            what = f"the result is not what the function says it returns ({self._annotation})"
            raise _mismatch(error, what) from error


def _returned(function: Callable[..., Any]) -> Any:
    """What a function, a partial or a callable object is annotated to return, once it is awaited."""
    function = getattr(function, "func", function)  # functools.partial
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = getattr(function, "__func__", None) or type(function).__call__
    try:
        returned = get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any  # annotations that mean something only to a type checker: as if there were none
    if get_origin(returned) in (Awaitable, Coroutine):
        return get_args(returned)[-1]
    return returned


_PLAIN = (str, int, bool, float, type(None), bytes)


def _changed(before: Any, after: Any, path: str) -> tuple[str, str, str] | None:
    """Where two values differ, and in what; None if they are the same, of the same types."""
    kind = type(before)
    if kind is not type(after):
        same = kind is int and type(after) is float and before == after  # whole numbers are good enough for floats
        return None if same else (path, kind.__name__, type(after).__name__)
    if kind in _PLAIN:
        return None if before == after else (path, kind.__name__, kind.__name__)
    if kind is list or kind is tuple:
        return _changed_item(before, after, path)
    if isinstance(before, dict):
        return _changed_key(before, after, path) or _changed_part(before, after, path)
    if isinstance(before, set | frozenset):
        return _changed_element(before, after, path)
    if (parts := _parts(before)) is not None:
        return _changed_part(parts, _parts(after) or {}, path)
    return None if before == after else (path, kind.__name__, kind.__name__)


def _changed_item(before: Sequence[Any], after: Sequence[Any], path: str) -> tuple[str, str, str] | None:
    if len(before) != len(after):
        return path, type(before).__name__, type(after).__name__
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        if changed := _changed(old, new, f"{path}[{place}]"):
            return changed
    return None


def _changed_key(before: Mapping[Any, Any], after: Mapping[Any, Any], path: str) -> tuple[str, str, str] | None:
    if before.keys() == after.keys() and set(map(type, before)) == set(map(type, after)):
        return None
    kinds, kinds_after = [", ".join(sorted({type(key).__name__ for key in each})) for each in (before, after)]
    return f"a key of {path}", kinds, kinds_after


def _changed_part(before: Mapping[Any, Any], after: Mapping[Any, Any], path: str) -> tuple[str, str, str] | None:
    for name, old in before.items():
        if changed := _changed(old, after.get(name), f"{path}.{name}"):
            return changed
    return None


def _changed_element(before: Collection[Any], after: Collection[Any], path: str) -> tuple[str, str, str] | None:
    kinds, kinds_after = {type(element) for element in before}, {type(element) for element in after}
    if kinds != kinds_after:
        names = [", ".join(sorted(kind.__name__ for kind in each)) for each in (kinds, kinds_after)]
        return f"an element of {path}", names[0], names[1]
    return None if before == after else (path, type(before).__name__, type(after).__name__)


def _parts(value: Any) -> dict[str, Any] | None:
    """The fields of a struct, a dataclass or a model."""
    if isinstance(value, Struct):
        return asdict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclass_fields(value)}
    if hasattr(type(value), "model_validate_json"):
        return dict(value)
    return None


# --- handlers' input ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputType:
    """How a handler takes its input: nothing, the whole object in one parameter, or keyword parameters."""

    takes_run: bool
    call: Callable[..., Any]
    """`call(handler, run, json)`: decodes the input and calls the handler."""
    check: Callable[[bytes | str], object]
    """Decodes the input, or raises InvalidInput."""
    whole: Any = None
    schema: Raw | None = None


@dataclass(frozen=True, slots=True)
class PayloadType:
    """What the payloads of a type of events look like."""

    check: Callable[[bytes], object]
    """Decodes the payload, or raises InvalidInput."""
    schema: Raw | None = None


def payload_type(annotation: Any, *, name: str) -> PayloadType:
    """Reads what payloads look like from a struct, dataclass, TypedDict, pydantic model or any other type."""
    what = f"payload of {name!r}"
    decode = _decoder(annotation, what)

    def check(raw: bytes) -> object:
        try:
            return decode(raw)
        except (msgspec.MsgspecError, ValueError) as error:
            raise _mismatch(error, what) from error

    return PayloadType(check, _schema(annotation))


def input_type(handler: Callable[..., Any], *, name: str) -> InputType:
    """Reads how a handler takes its input from its signature."""
    hints = _hints(handler, name)
    parameters = list(inspect.signature(handler).parameters.values())
    takes_run = bool(parameters) and _is_run(parameters[0], hints)
    if takes_run:
        parameters = parameters[1:]
    _refuse_unusable(parameters, hints, name)
    if len(parameters) == 1 and _takes_whole(hints.get(parameters[0].name), parameters[0]):
        return _whole_input(hints.get(parameters[0].name, dict[str, Any]), takes_run, name)
    return _keyword_input(parameters, hints, takes_run, name)


def _refuse_unusable(parameters: list[inspect.Parameter], hints: Mapping[str, Any], name: str) -> None:
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise ConfigError(f"function {name!r}: a handler cannot take *args; its input is a JSON object")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"function {name!r}: {parameter.name!r} cannot be given by name; remove the `/`")
        if getattr(hints.get(parameter.name), "__ostinato_run__", False):
            raise ConfigError(f"function {name!r}: the run comes first among the parameters, if the handler wants it")


def _hints(handler: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(handler, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"function {name!r}: {error}; annotations are needed at run time, so import them outside of TYPE_CHECKING"
        ) from error


def _is_run(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> bool:
    annotation = hints.get(parameter.name)
    if annotation is None:
        return parameter.name == "run"
    return getattr(annotation, "__ostinato_run__", False) is True


def _takes_whole(annotation: Any, parameter: inspect.Parameter) -> bool:
    if parameter.kind is parameter.VAR_KEYWORD or annotation is None:
        return False
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return False
    if issubclass(origin, dict | Mapping | Struct) or is_typeddict(origin):
        return True
    return is_dataclass(origin) or hasattr(origin, "model_validate_json")


def _whole_input(annotation: Any, takes_run: bool, name: str) -> InputType:
    check = _checker(annotation, name)
    if takes_run:
        return InputType(
            True, lambda handler, run, raw: handler(run, check(raw)), check, annotation, _schema(annotation)
        )
    return InputType(False, lambda handler, run, raw: handler(check(raw)), check, annotation, _schema(annotation))


def _keyword_input(
    parameters: list[inspect.Parameter], hints: Mapping[str, Any], takes_run: bool, name: str
) -> InputType:
    named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    takes_more = len(named) < len(parameters)
    fields = [_field(parameter, hints) for parameter in named]
    struct = msgspec.defstruct(f"input of {name}", fields, kw_only=True, forbid_unknown_fields=not takes_more)
    what = f"input of {name!r}"
    check, decode = _checker(struct, name), _decoder(struct, f"function {name!r}: its input")

    def keywords(raw: bytes) -> dict[str, Any]:
        try:
            known = asdict(decode(raw))
        except (msgspec.MsgspecError, ValueError) as error:
            raise _mismatch(error, what) from error
        return {**msgspec.json.decode(raw), **known} if takes_more else known

    return InputType(takes_run, _keyword_call(keywords, takes_run, bool(parameters)), check, None, _schema(struct))


def _keyword_call(keywords: Callable[[bytes], dict[str, Any]], takes_run: bool, any_names: bool) -> Callable[..., Any]:
    if takes_run:
        return lambda handler, run, raw: handler(run, **keywords(raw))
    if any_names:
        return lambda handler, run, raw: handler(**keywords(raw))
    return lambda handler, run, raw: handler() if raw in ("{}", b"{}") else handler(**keywords(raw))


def _field(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> tuple[Any, ...]:
    annotation = hints.get(parameter.name, Any)
    if parameter.default is parameter.empty:
        return parameter.name, annotation
    default = parameter.default
    if default is None or isinstance(default, str | int | float | bool):
        return parameter.name, annotation, default
    return parameter.name, annotation, msgspec.field(default_factory=lambda: deepcopy(default))


def _checker(annotation: Any, name: str) -> Callable[[Any], Any]:
    """A decoder that speaks of the function and the field."""
    what = f"input of {name!r}"
    decode = _decoder(annotation, f"function {name!r}: its input")

    def check(raw: bytes | str) -> Any:
        try:
            return decode(raw)
        except (msgspec.MsgspecError, ValueError) as error:
            raise _mismatch(error, what) from error

    return check


def _decoder(annotation: Any, what: str) -> Callable[[Any], Any]:
    validate = getattr(annotation, "model_validate_json", None)
    if validate is not None:
        return validate  # type: ignore[no-any-return]
    try:
        return msgspec.json.Decoder(annotation, dec_hook=_read_hook).decode
    except TypeError as error:
        raise ConfigError(f"{what} cannot be read from JSON: {error}") from error


def _read_hook(kind: type, value: Any) -> Any:
    """A pydantic model inside of something else."""
    if (validate := getattr(kind, "model_validate_json", None)) is not None:
        return validate(msgspec.json.encode(value))
    if isinstance(value, kind):
        return value
    raise ValueError(f"{kind.__name__} cannot be read from JSON")


def _mismatch(error: Exception, what: str) -> InvalidInput:
    text, path = _describe(error)
    return InvalidInput(f"{what}: {text}", path=path)


def _describe(error: Exception) -> tuple[str, str]:
    pydantic_errors = getattr(error, "errors", None)
    if callable(pydantic_errors):
        first = pydantic_errors()[0]
        path = "$" + "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in first["loc"])
        return f"{path} {first['msg']}", path
    text = str(error)
    place = _PATH.search(text)
    path = place[1] if place else "$"
    if field := _FIELD.search(text):
        path = f"{path}.{field[1]}"
    return f"{path}: {_PATH.sub('', text)}", path


def _schema(annotation: Any) -> Raw | None:
    pydantic_schema = getattr(annotation, "model_json_schema", None)
    try:
        found = pydantic_schema() if pydantic_schema else msgspec.json.schema(annotation)
    except TypeError:
        return None  # a type without a JSON Schema, such as one behind a custom hook
    return Raw(msgspec.json.encode(found))


def encode_input(kind: InputType, given: tuple[Any, ...], fields: Mapping[str, Any], *, name: str, limit: int) -> bytes:
    """The input of an enqueue as checked JSON: `(value)`, or keywords."""
    value = _given(kind, given, fields, name)
    encoded = to_json(value, what=f"input of {name!r}", limit=limit)
    kind.check(encoded)
    return encoded


def _given(kind: InputType, given: tuple[Any, ...], fields: Mapping[str, Any], name: str) -> object:
    if given and (fields or len(given) > 1):
        raise InvalidInput(f"input of {name!r}: give one object or keywords, not both")
    if given:
        return given[0]
    if (
        isinstance(kind.whole, type)
        and issubclass(kind.whole, Struct)
        and set(fields) <= set(kind.whole.__struct_fields__)
    ):
        try:
            return kind.whole(**fields)
        except TypeError:  # something is missing, and decoding says best what
            return fields
    return fields
