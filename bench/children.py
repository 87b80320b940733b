"""The parent's side of a measured process."""

import asyncio
import ctypes
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from typing import IO, Any, Self

from bench.peers import complaint, peer_of
from bench.roles import Result, Task

LINE_LIMIT = 64 * 1024 * 1024
TIMEOUT = 600.0
PEER_TIMEOUT = 180.0  # a session that nobody watches must not wait long for one that hangs
GOODBYE_SECONDS = 10.0

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class ChildFailed(Exception):
    """A measured process ended, or fell silent, without a result."""


class Child:
    """A fresh interpreter with one task, of which the parent hears that it is ready and, later, its result."""

    def __init__(self, task: Task, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.task = task
        self._process = process
        self._errors = errors
        self._timeout = PEER_TIMEOUT if peer_of(task.contender) else TIMEOUT

    @classmethod
    async def start(cls, task: Task) -> Self:
        command, variables = _program(task.contender)
        pipe, errors = asyncio.subprocess.PIPE, tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        process = await asyncio.create_subprocess_exec(
            *(*command, json.dumps(asdict(task))),
            stdin=pipe, stdout=pipe, stderr=errors, limit=LINE_LIMIT, env=os.environ | variables,
            start_new_session=True, preexec_fn=_die_with_the_parent,
        )  # fmt: skip
        return cls(task, process, errors)

    async def ready(self) -> None:
        await self._receive("ready")

    async def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write(b"go\n")
        with suppress(ConnectionError):  # it has ended, which the next message that is missing will tell
            await self._process.stdin.drain()

    async def result(self) -> Result:
        """The result; how long the process takes to tidy up afterwards is its own affair, within reason."""
        result: Result = await self._receive("result")
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._process.wait()
        return result

    async def end(self) -> None:
        """Leave nothing behind, whatever happened: neither the process nor what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._errors.close()

    async def _receive(self, expected: str) -> Any:
        assert self._process.stdout
        try:
            async with asyncio.timeout(self._timeout):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise self._failure(f"no {expected} within {self._timeout:.0f} s") from None
        message = json.loads(line) if line else {}
        if expected not in message:
            raise self._failure(f"no {expected}")
        return message[expected]

    def _failure(self, what: str) -> ChildFailed:
        """Show what it complained about, and quote the line that says most."""
        self._errors.seek(0)
        complaints = self._errors.read().decode(errors="replace").strip()
        print(complaints, file=sys.stderr, flush=True)
        return ChildFailed(
            f"{self.task.contender} on {self.task.store}, {self.task.role}: {what}: {complaint(complaints)}"
        )


def _program(contender: str) -> tuple[list[str], dict[str, str]]:
    if peer := peer_of(contender):
        return peer.command, peer.variables
    return [sys.executable, "-m", "bench.child"], {}


def _die_with_the_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@asynccontextmanager
async def children(*tasks: Task) -> AsyncIterator[list[Child]]:
    """Start the processes together and yield them when all are ready."""
    async with AsyncExitStack() as stack:
        started = []
        for task in tasks:
            child = await Child.start(task)
            stack.push_async_callback(child.end)
            started.append(child)
        for child in started:
            await child.ready()
        yield started


async def perform(task: Task) -> Result:
    """Run a task that needs nobody beside it."""
    async with children(task) as (child,):
        await child.go()
        return await child.result()
