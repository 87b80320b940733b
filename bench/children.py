"""The parent's side of a measured process."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Self

from bench.roles import Result, Task

LINE_LIMIT = 64 * 1024 * 1024
TIMEOUT = 600.0


class ChildFailed(Exception):
    """A measured process ended without a result; its standard error is on the terminal."""


class Child:
    """A fresh interpreter with one task, of which the parent hears that it is ready and, later, its result."""

    def __init__(self, task: Task, process: asyncio.subprocess.Process) -> None:
        self.task = task
        self._process = process

    @classmethod
    async def start(cls, task: Task) -> Self:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.child", json.dumps(asdict(task))),
            stdin=pipe, stdout=pipe, limit=LINE_LIMIT,
        )  # fmt: skip
        return cls(task, process)

    async def ready(self) -> None:
        await self._receive("ready")

    async def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"go\n")
        await self._process.stdin.drain()

    async def result(self) -> Result:
        result: Result = await self._receive("result")
        await self._process.wait()
        return result

    async def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _receive(self, expected: str) -> Any:
        assert self._process.stdout
        async with asyncio.timeout(TIMEOUT):
            line = await self._process.stdout.readline()
        message = json.loads(line) if line else {}
        if expected not in message:
            raise ChildFailed(f"{self.task.contender} on {self.task.store}, {self.task.role}: no {expected}")
        return message[expected]


@asynccontextmanager
async def children(*tasks: Task) -> AsyncIterator[list[Child]]:
    """Start the processes together and yield them when all are ready."""
    started = [await Child.start(task) for task in tasks]
    try:
        for child in started:
            await child.ready()
        yield started
    finally:
        for child in started:
            await child.end()


async def perform(task: Task) -> Result:
    """Run a task that needs nobody beside it."""
    async with children(task) as (child,):
        await child.go()
        return await child.result()
