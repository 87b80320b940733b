"""A few connections, opened when needed and reused last-in first-out.

asyncpg's own pool sends a reset before every reuse, a round trip that costs as much as the enqueue it follows.
Nothing of ours outlives its statement or transaction on a connection, so there is nothing to reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Connection = Any  # asyncpg ships no types


class Pool:
    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, size: int) -> None:
        self._connect, self.size = connect, size
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(size)
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for the block. One that broke, or was left inside a transaction, is not reused."""
        connection = await self.acquire()
        try:
            yield connection
        finally:
            self.release(connection)

    async def acquire(self) -> Connection:
        await self._room.acquire()
        try:
            return self._reusable() or await self._connect()
        except BaseException:
            self._room.release()
            raise

    async def fill(self, count: int, prepare: Callable[[Connection], Awaitable[None]]) -> None:
        """Opens as many connections and prepares each, so that nobody has to wait for one of them."""
        opened = await asyncio.gather(*(self._prepared(prepare) for _ in range(count)), return_exceptions=True)
        for connection in opened:
            if not isinstance(connection, BaseException):
                self.release(connection)
        for error in opened:
            if isinstance(error, BaseException):
                raise error

    async def _prepared(self, prepare: Callable[[Connection], Awaitable[None]]) -> Connection:
        connection = await self.acquire()
        try:
            await prepare(connection)
        except BaseException:
            self.release(connection)
            raise
        return connection

    def release(self, connection: Connection) -> None:
        self._room.release()
        self._give_back(connection)

    def _reusable(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _give_back(self, connection: Connection) -> None:
        if connection.is_closed():
            return
        if self._closed or connection.is_in_transaction():
            connection.terminate()
        else:
            self._idle.append(connection)

    async def close(self) -> None:
        """Closes what is idle, and the rest when it is given back. Who was cancelled meanwhile may call it again."""
        self._closed = True
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.close(timeout=2)
            except TimeoutError:  # the server does not say goodbye, or could not be asked to cancel a statement
                connection.terminate()
