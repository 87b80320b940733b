"""How names and small notations get into SQL, and which file a URL names."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from ...errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TABLES = re.compile(r"\bostinato_(?!now\b)")
_NOTATION = re.compile(r"\$(json|time|truth)\(([\w.]+)(?:, (?:(\d+)|(\w+)))?\)")


def check_schema(schema: str) -> str:
    """The tables of a schema are called `schema_runs` and so on, so it must be a plain name."""
    if not _PLAIN.fullmatch(schema) or schema.lower().startswith("sqlite"):
        raise ConfigError(
            f"schema {schema!r} must be a plain name on SQLite (letters, digits and _): "
            "the names of its tables begin with it"
        )
    return schema


def path_of(url: str) -> str:
    """The file that a URL like `sqlite:///radio.db` or `sqlite:////var/lib/radio.db` names; a plain path is one too."""
    scheme, found, rest = url.partition("://")
    path = rest.removeprefix("/") if found else url
    if found and (scheme.partition("+")[0] != "sqlite" or not rest.startswith("/")):
        raise ConfigError(f"{url!r} does not name a file; write sqlite:///relative.db or sqlite:////absolute/path.db")
    if path in ("", ":memory:") or path.startswith("file:"):
        raise ConfigError(
            f"{url!r} is not a file; runs in memory would not survive, and for tests a temporary file is as fast"
        )
    return str(Path(path).absolute())


def adapt(text: str, schema: str) -> str:
    """SQL written for the schema `ostinato`, for another one, with its notations written out."""
    return _NOTATION.sub(_written_out, _TABLES.sub(f"{schema}_", text))


def _written_out(match: re.Match[str]) -> str:
    kind, value, place, name = match.groups()
    member = f"[{place}]" if place else f".{name}"
    if kind == "json" and sqlite3.sqlite_version_info >= (3, 38):
        return f"{value} -> '${member}'"
    if kind == "json":
        # json_extract makes 1 of true, and rounds. With two paths it gives an array, in which all stays as it was.
        pair = f"json_extract({value}, '${member}', '$._')"
        return f"substr({pair}, 2, length({pair}) - length('[,null]'))"
    if kind == "time":
        return f"strftime('%Y-%m-%dT%H:%M:%S', {value} / 1000000, 'unixepoch') || printf('.%06dZ', {value} % 1000000)"
    return f"json(case when {value} then 'true' else 'false' end)"
