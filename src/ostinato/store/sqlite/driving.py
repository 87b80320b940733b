"""Executing flows on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ...model.run import Claimed, Orphan
from ..flows import Flow, Row
from ..sql import Block

T = TypeVar("T")

_TRUTHS = {
    "claim": Claimed.__struct_fields__.index("suspect"),
    "lock_orphans": Orphan.__struct_fields__.index("certain"),
}
"""Where rows that become values of the model have a boolean, which SQLite gives as a number."""


def drive(connection: sqlite3.Connection, flow: Flow[T], blocks: Mapping[str, Block], executed: set[str]) -> T:
    """Drives a flow, in whatever transaction is open; notes the blocks it used."""
    try:
        call = next(flow)
        while True:
            rows: Sequence[Row] = connection.execute(blocks[call.block].text, call.arguments).fetchall()
            executed.add(call.block)
            if rows and (column := _TRUTHS.get(call.block)):
                rows = [(*row[:column], bool(row[column]), *row[column + 1 :]) for row in rows]
            call = flow.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
