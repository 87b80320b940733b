"""Who may do what: the least that those who enqueue or record, those who work and those who look must be allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import NamedTuple

from .naming import quoted

_PACKAGE = "ostinato.store.postgres"

HISTORY = "migrations"
"""The table that only an installer writes."""


class Privilege(NamedTuple):
    """A right to a thing of the schema, or without a name to all of its kind; where columns are named, to those."""

    verb: str
    kind: str
    name: str | None = None
    columns: tuple[str, ...] = ()
    but: str | None = None
    """A table that is left out."""


def producing() -> list[Privilege]:
    """To enqueue and to record, by SQL or through the library.

    The functions have their caller's rights, so the caller needs what they touch: which functions and queues there are,
    how many runs wait in a queue, and which run or event has a key. Not what a run is given or returns, nor what an
    event says. A run is inserted with the columns that an enqueue writes and no others, and so is an event.
    """
    script = _shipped_sql()
    return [
        Privilege("usage", "schema"),
        *(Privilege("execute", "function", name) for name in (*_ENQUEUING, *_RECORDING)),
        Privilege("select", "table", HISTORY),
        Privilege("select", "table", "functions", ("name", "queue", "priority", *_TERMS)),
        Privilege("select", "table", "queues", ("name", "max_waiting")),
        Privilege("select", "table", "runs", ("id", "queue", "state")),
        Privilege("insert", "table", "runs", _inserted(script, "runs")),
        Privilege("select", "table", "keys", ("function", "key", "run_id")),
        Privilege("insert", "table", "keys", _inserted(script, "keys")),
        Privilege("usage", "sequence", "events_sequence"),
        Privilege("select", "table", "events", ("id", "idempotency_key")),
        Privilege("insert", "table", "events", _inserted(script, "events")),
    ]


def working() -> list[Privilege]:
    """To do all that the engine does: rows may be read and written, tables cannot be changed."""
    return [
        Privilege("usage", "schema"),
        Privilege("execute", "function"),
        Privilege("usage", "sequence"),
        Privilege("select", "sequence", "events_sequence"),
        Privilege("select", "table"),
        *(Privilege(verb, "table", but=HISTORY) for verb in ("insert", "update", "delete")),
    ]


def reading() -> list[Privilege]:
    """To look at everything, inputs and results included."""
    return [
        Privilege("usage", "schema"),
        Privilege("execute", "function", "clock"),
        Privilege("execute", "function", "micros"),
        Privilege("execute", "function", "timeline"),
        Privilege("select", "sequence", "events_sequence"),
        Privilege("select", "table"),
    ]


_ENQUEUING = (
    "enqueue",
    "run_request",
    "seconds_in",
    "instant_in",
    "check_json",
    "new_ids",
    "base32",
    "insert_runs",
    "check_functions",
    "check_room",
    "take_keys",
    "force_keys",
    "drop_old_keys",
    "terms_of",
    "ring",
    "ring_for",
    "somebody_sleeps",
    "clock",
    "micros",
)


_TERMS = ("start_timeout", "finish_timeout", "cancel_on")
"""What functions declare that is written to their runs."""

_RECORDING = ("record", "event_request", "event_text", "insert_events", "adopt_ledger", "ring_ledger")


class Expected(NamedTuple):
    """One right of one kind of role, as the query for missing ones wants it."""

    role_kind: str
    verb: str
    kind: str
    name: str | None
    column: str | None
    but: str | None


def expected() -> list[dict[str, str | None]]:
    """Everything that each kind of role needs, column by column."""
    kinds = {"producer": producing(), "worker": working(), "reader": reading()}
    return [
        Expected(kind, right.verb, right.kind, right.name, column, right.but)._asdict()
        for kind, rights in kinds.items()
        for right in rights
        for column in (right.columns or (None,))
    ]


def statements(
    schema: str, *, producers: Iterable[str] = (), workers: Iterable[str] = (), readers: Iterable[str] = ()
) -> list[str]:
    """The SQL that grants. Granting again changes nothing, and covers what newer migrations have added."""
    kinds = ((producers, producing()), (workers, working()), (readers, reading()))
    return [
        statement
        for roles, rights in kinds
        for role in dict.fromkeys(roles)
        for right in rights
        for statement in _granted(right, quoted(schema), quoted(role))
    ]


def _granted(right: Privilege, schema: str, role: str) -> Iterator[str]:
    columns = f" ({', '.join(right.columns)})" if right.columns else ""
    if right.kind == "schema":
        yield f"grant {right.verb} on schema {schema} to {role};"
    elif right.name is None:
        yield f"grant {right.verb} on all {right.kind}s in schema {schema} to {role};"
    else:
        yield f"grant {right.verb}{columns} on {right.kind} {schema}.{right.name} to {role};"
    if right.but is not None:
        yield f"revoke {right.verb} on {right.kind} {schema}.{right.but} from {role};"


def _inserted(script: str, table: str) -> tuple[str, ...]:
    """The columns that our own inserts into a table name, so that none is forgotten when one is added."""
    lists = re.findall(rf"insert into ostinato\.{table} \(([^)]*)\)", script)
    return tuple(dict.fromkeys(column.strip() for columns in lists for column in columns.split(",")))


def _shipped_sql() -> str:
    package = files(_PACKAGE)
    steps = sorted((package / "migrations").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in steps if file.name.endswith(".sql")]
    return "\n".join([*texts, (package / "runs.sql").read_text(encoding="utf-8")])
