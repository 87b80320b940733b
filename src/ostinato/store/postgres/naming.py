"""How the schema's name gets into SQL."""

from __future__ import annotations

import re

from ...errors import ConfigError

_TABLES = re.compile(r"\bostinato\.")


def check_schema(schema: str) -> str:
    """A schema name PostgreSQL keeps whole; a longer one would be cut silently and collide."""
    if not schema or len(schema.encode()) > 63 or "\x00" in schema:
        raise ConfigError(f"schema {schema!r} must have 1 to 63 bytes")
    return schema


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def adapt(text: str, schema: str) -> str:
    """SQL written for the schema `ostinato`, for another one. The channel is named like the schema."""
    literal = schema.replace("'", "''")
    return _TABLES.sub(lambda _: quoted(schema) + ".", text).replace("'$channel'", f"'{literal}'")
