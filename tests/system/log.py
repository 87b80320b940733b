"""The independent log: what worker processes tell over a pipe, which survives their being killed.

Every line is one write of less than PIPE_BUF bytes, so lines of several processes never mix, and a line that was
written is read even if its writer died right after.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import json

VARIABLE = "SYSTEM_LOG"
LONGEST = 4096

Line = dict[str, Any]
T = TypeVar("T")


def tell(what: str, **fields: object) -> None:
    """Writes a line, from a worker process. `at` is the machine's monotonic clock, the same for all processes."""
    line = json.encode({"what": what, "pid": os.getpid(), "at": time.monotonic(), **fields}, enc_hook=str) + b"\n"
    assert len(line) <= LONGEST
    os.write(int(os.environ[VARIABLE]), line)


class Log:
    """The test's end of the pipe."""

    def __init__(self) -> None:
        self._readable, self.writable = os.pipe()
        os.set_blocking(self._readable, False)
        self.lines: list[Line] = []
        self.listeners: list[Callable[[Line], None]] = []
        self._rest = b""
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._readable, self._read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._readable)
        os.close(self._readable)
        os.close(self.writable)

    def find(self, what: str, **fields: object) -> list[Line]:
        """The lines so far that say this."""
        self._read()
        return [
            line for line in self.lines if line["what"] == what and all(line.get(k) == v for k, v in fields.items())
        ]

    async def heard(self, what: str, *, count: int = 1, timeout: float = 15.0, **fields: object) -> list[Line]:
        """Waits until so many lines say this."""

        def enough() -> list[Line] | None:
            found = self.find(what, **fields)
            return found if len(found) >= count else None

        return await self.until(enough, f"{count} times {what!r} {fields}", timeout=timeout)

    async def until(self, question: Callable[[], T | None], wanted: str, *, timeout: float = 15.0) -> T:
        """Waits until a question to the lines has an answer."""
        try:
            async with asyncio.timeout(timeout):
                while not (answer := question()):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            last = "\n".join(map(str, self.lines[-20:]))
            raise AssertionError(f"not within {timeout} s: {wanted}; the last lines:\n{last}") from None
        return answer

    def _read(self) -> None:
        with suppress(BlockingIOError):
            self._rest += os.read(self._readable, 1 << 20)
        *complete, self._rest = self._rest.split(b"\n")
        for line in map(json.decode, complete):
            self.lines.append(line)
            for listener in self.listeners:
                listener(line)
        self._news.set()
