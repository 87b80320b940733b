"""Committing changes: alone, beside statements in a transaction of ours, or in the caller's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from ...errors import ConfigError
from ...model.change import Change, Committed
from ..flows import Flow
from ..sql import Block
from .values import Fence

T = TypeVar("T")


class Transaction(Protocol):
    """An open transaction of ours: the user's statements and our changes, committed together."""

    async def execute(self, sql: str, *args: Any) -> int:
        """Executes one statement and answers how many rows it concerned."""

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]: ...

    async def fetchrow(self, sql: str, *args: Any) -> dict[str, Any] | None: ...

    async def fetchval(self, sql: str, *args: Any) -> Any: ...

    async def apply(self, changes: Sequence[Change]) -> Committed:
        """Applies changes inside the transaction."""

    async def ask(self, flow: Flow[T]) -> T:
        """Executes a flow inside the transaction."""

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class Caller(Protocol):
    """A user's own connection with an open transaction, whatever the driver."""

    dialect: str
    is_async: bool
    """Whether it belongs to an event loop. One that does not is used inline, and its `drive` awaits nothing."""

    async def drive(self, flow: Flow[T], blocks: Mapping[str, Block]) -> T:
        """Executes a flow inside the caller's transaction. Refuses a connection that has none open."""

    async def driver(self) -> object:
        """The driver's own connection, without what a library has put around it."""

    def underlying(self, error: BaseException) -> BaseException:
        """What the driver raised, without what a library has put around it."""


def refuse_other_dialect(caller: Caller, dialect: str) -> None:
    if caller.dialect != dialect:
        raise ConfigError(f"conn= is a {caller.dialect} connection, but the app's database is {dialect}")


class Commits(Protocol):
    async def commit(self, changes: Sequence[Change]) -> Committed:
        """Applies all changes or none; those of a run whose fence does not hold are refused and named."""

    def begin(self, *, limit: float | None = None) -> AbstractAsyncContextManager[Transaction]:
        """A transaction, rolled back on leaving unless it was committed. `limit`: seconds it may last, where that
        matters."""

    async def apply_on(self, caller: Caller, changes: Sequence[Change]) -> Committed:
        """Applies changes in the caller's own open transaction."""

    async def fences(self, ids: Sequence[str]) -> dict[str, Fence]: ...
