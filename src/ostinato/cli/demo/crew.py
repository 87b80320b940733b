"""The worker processes of the demo: real ones, started by `ostinato worker`, and really killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import DecodeError, json

from ..failure import Failure
from .radio import PARENT
from .story import Story

PATIENCE = 1.2


@dataclass
class Member:
    """A worker process."""

    number: int
    process: Process
    killed: bool = False
    worker: str | None = None
    """Its identity in the database, once it has a lease."""
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=20))

    @property
    def working(self) -> bool:
        return self.worker is not None and self.process.returncode is None and not self.killed


class Crew:
    def __init__(self, url: str, story: Story) -> None:
        self._url, self._story = url, story
        self.members: list[Member] = []
        self._ears: set[asyncio.Task[None]] = set()
        self._dismissed = False
        self._failed: asyncio.Queue[Member] = asyncio.Queue()

    def __iter__(self) -> Iterator[Member]:
        """Those who work, and those who were killed and whose lease still runs."""
        alive = self._story.workers
        return (m for m in self.members if m.process.returncode is None or (m.worker in alive))

    async def hire(self) -> Member:
        """Starts a worker. It is in a session of its own: Ctrl-C is for the demo, which sends it home in order."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ostinato.cli", "worker", "ostinato.cli.demo.radio:app"),
            *("--database-url", self._url, "--log-format", "json", "--log-level", "info"),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            env={**os.environ, PARENT: str(os.getpid())},
            start_new_session=True,
        )
        member = Member(len(self.members) + 1, process)
        self.members.append(member)
        ear = asyncio.create_task(self._listen(member))
        self._ears.add(ear)
        ear.add_done_callback(self._ears.discard)
        return member

    async def kill(self, member: Member) -> None:
        """kill -9: no handler, no clean-up, no goodbye."""
        member.killed = True
        member.process.send_signal(signal.SIGKILL)
        await member.process.wait()

    async def dismiss(self) -> None:
        """Sends everybody home: by SIGTERM, and those who stay, by force."""
        self._dismissed = True
        alive = [member.process for member in self.members if member.process.returncode is None]
        for process in alive:
            _signal(process, signal.SIGTERM)
        if alive:
            await asyncio.wait([asyncio.create_task(process.wait()) for process in alive], timeout=PATIENCE)
        for process in alive:
            _signal(process, signal.SIGKILL)
        if self._ears:
            await asyncio.wait(self._ears, timeout=PATIENCE)

    async def fail_if_one_fails(self) -> None:
        member = await self._failed.get()
        words = "\n".join(member.last_words)
        raise Failure(f"worker {member.number} ended by itself, with code {member.process.returncode}\n{words}")

    async def _listen(self, member: Member) -> None:
        """Passes on what a worker logs, until it ends."""
        assert member.process.stderr is not None
        async for line in member.process.stderr:
            fields = _decoded(line)
            if fields is None:
                member.last_words.append(line.decode(errors="replace").rstrip())
                continue
            if fields.get("event") == "worker_started":
                self._greet(member, fields["worker_id"])
            self._story.heard(member.number, fields)
        await member.process.wait()
        if not member.killed and not self._dismissed:
            self._failed.put_nowait(member)

    def _greet(self, member: Member, worker: str) -> None:
        if member.worker is None:
            self._story.happened(f"worker {member.number} starts (pid {member.process.pid})", colour="cyan")
        member.worker = worker


def _decoded(line: bytes) -> dict[str, Any] | None:
    with suppress(DecodeError):
        fields = json.decode(line)
        if isinstance(fields, dict):
            return fields
    return None


def _signal(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(number)
