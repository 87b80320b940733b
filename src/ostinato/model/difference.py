"""How a stored input differs from what its function takes by now, for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def differences(schema: Schema, value: object) -> list[str]:
    """What a JSON value has too much, lacks, or has of another type than its JSON Schema says, field by field.

    Not a validator: whether the value fits has been decided elsewhere, and what is not understood is not mentioned.
    """
    return list(_differences(schema, schema, value, ""))


def _differences(root: Schema, schema: Schema, value: object, path: str) -> Iterator[str]:
    schema = _resolved(root, schema)
    if (expected := _types(root, schema)) and not _is_one_of(value, expected):
        yield f"{path or 'the input'} is {_named(value)}, not {' or '.join(sorted(expected))}"
    elif isinstance(value, Mapping) and "properties" in schema:
        yield from _field_differences(root, schema, value, path)
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for place, item in enumerate(value):
            yield from _differences(root, schema["items"], item, f"{path}[{place}]")


def _field_differences(root: Schema, schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[str]:
    known: Mapping[str, Schema] = schema["properties"]
    prefix = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield f"it lacks {prefix}{name}"
    for name, field in value.items():
        if name in known:
            yield from _differences(root, known[name], field, f"{prefix}{name}")
        elif schema.get("additionalProperties") is False:
            yield f"it has {prefix}{name}, which is not taken"


def _resolved(root: Schema, schema: Schema) -> Schema:
    while (reference := schema.get("$ref")) is not None:
        found: Any = root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part, {})
        schema = found
    return schema


def _types(root: Schema, schema: Schema) -> set[str]:
    """The JSON types that are possible, or none if any is."""
    if alternatives := schema.get("anyOf"):
        each = [_types(root, _resolved(root, alternative)) for alternative in alternatives]
        return set().union(*each) if all(each) else set()
    kind = schema.get("type", ())
    return {kind} if isinstance(kind, str) else set(kind)


def _is_one_of(value: object, expected: set[str]) -> bool:
    kind = _kind(value)
    return kind in expected or (kind == "integer" and "number" in expected)


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _named(value: object) -> str:
    kind = _kind(value)
    if kind == "null":
        return kind
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
