"""What a flow is made of: calls to named SQL blocks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import json

Row = Sequence[Any]
T = TypeVar("T")


class Call(NamedTuple):
    """One statement to execute."""

    block: str
    arguments: Mapping[str, object]


Flow = Generator[Call, Sequence[Row], T]


def encoded(value: object) -> str:
    """The one JSON argument that most blocks take."""
    return json.encode(value).decode()


def reading(block: str, **arguments: object) -> Flow[Sequence[Row]]:
    return (yield Call(block, arguments))
