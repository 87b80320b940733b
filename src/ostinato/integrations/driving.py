"""Driving a flow with whatever executes its statements, in both colours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Flow = Generator[Any, Any, T]
Blocks = Mapping[str, Any]
Rows = Sequence[Sequence[Any]]
Values = Mapping[str, object]


def drive(flow: Flow[T], blocks: Blocks, execute: Callable[[Any, Values], Rows]) -> T:
    """Drives a flow: `execute` is given a block and its values, and answers the rows."""
    try:
        call = next(flow)
        while True:
            call = flow.send(execute(blocks[call.block], call.arguments))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[T], blocks: Blocks, execute: Callable[[Any, Values], Awaitable[Rows]]) -> T:
    """The same with an `execute` that is awaited."""
    try:
        call = next(flow)
        while True:
            call = flow.send(await execute(blocks[call.block], call.arguments))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def rows_of(cursor: Any, block: Any, values: Values) -> Rows:
    """Executes a block on a cursor that takes `%(name)s`; a statement that gives nothing has no rows."""
    cursor.execute(*block.pyformat(values))
    return cursor.fetchall() if cursor.description else ()
