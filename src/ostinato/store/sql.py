"""Named SQL blocks, read from `.sql` files.

A block begins with `-- name: claim` and has parameters written `:queue`. Both stores have the same blocks with the same
parameters, so the flows that use them are written once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One statement: its text for the store's own driver, and its parameters in the order of their numbers."""

    name: str
    text: str
    parameters: tuple[str, ...]
    formatted: str = ""
    """The text with `%(name)s` in place of `:name`."""

    def arguments(self, values: Mapping[str, object]) -> list[object]:
        return [values[name] for name in self.parameters]

    def pyformat(self, values: Mapping[str, object]) -> tuple[str, Mapping[str, object] | None]:
        """The text and the arguments for a driver that takes `%(name)s`, as psycopg, psycopg2 and Django do. Without
        arguments such a driver takes the text as it is."""
        return (self.formatted, values) if self.parameters else (self.text, None)


def load(package: str, *, adapt: Callable[[str], str]) -> dict[str, Block]:
    """All blocks of the `.sql` files in a package, by name. `adapt` puts the schema's name in."""
    blocks: dict[str, Block] = {}
    for file in sorted(files(package).iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            for block in parse(adapt(file.read_text(encoding="utf-8"))):
                if block.name in blocks:
                    raise ValueError(f"two SQL blocks are named {block.name!r}")
                blocks[block.name] = block
    return blocks


def parse(text: str) -> list[Block]:
    """The blocks of one file."""
    pieces = _NAME.split(text)[1:]
    return [_block(name, _COMMENT.sub("", body).strip()) for name, body in zip(pieces[::2], pieces[1::2], strict=True)]


def _block(name: str, text: str) -> Block:
    formatted = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    return Block(name, text, tuple(dict.fromkeys(_PARAMETER.findall(text))), formatted)


def numbered(block: Block) -> Block:
    """The block with `$1` in place of `:name`, as PostgreSQL's protocol wants it."""
    places = {name: f"${number}" for number, name in enumerate(block.parameters, start=1)}
    return replace(block, text=_PARAMETER.sub(lambda match: places[match[1]], block.text))
