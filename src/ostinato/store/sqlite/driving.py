"""Executing flows on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..flows import Flow, Row
from ..sql import Block

T = TypeVar("T")


def drive(connection: sqlite3.Connection, flow: Flow[T], blocks: Mapping[str, Block], executed: set[str]) -> T:
    """Drives a flow, in whatever transaction is open; notes the blocks it used."""
    try:
        call = next(flow)
        while True:
            rows: Sequence[Row] = connection.execute(blocks[call.block].text, call.arguments).fetchall()
            executed.add(call.block)
            call = flow.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
