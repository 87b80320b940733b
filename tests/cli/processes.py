"""Real processes of the program: started, listened to, signalled, and ended with the test."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import DecodeError, json

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0


class Program:
    """`ostinato` in a process of its own. Its output is read as it comes."""

    def __init__(self, *args: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs us in the background may ignore it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ostinato.cli", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=cwd,
            env={**environment(), **(env or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, wanted: Callable[[str], bool] | str) -> str:
        """The next line that is wanted, once it has come."""
        while (line := self._queue.get(timeout=PATIENCE)) is not None:
            if wanted in line if isinstance(wanted, str) else wanted(line):
                return line
        raise AssertionError("the program ended without saying so:\n" + "".join(self.lines))

    def event(self, name: str, **fields: Any) -> dict[str, Any]:
        """The next logged event of that name with those fields."""
        return decoded(self.until(lambda line: decoded(line).items() >= {"event": name, **fields}.items()))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """The exit code, once all output has been read."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line)
                self._queue.put(line)
        self._queue.put(None)


def decoded(line: str) -> dict[str, Any]:
    try:
        fields = json.decode(line)
    except DecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def environment() -> dict[str, str]:
    """Ours without settings of Ostinato's: a test says all of them itself."""
    return {name: value for name, value in os.environ.items() if not is_setting(name)} | {"NO_COLOR": "1"}


def is_setting(name: str) -> bool:
    return name.startswith("OSTINATO_") or name == "DATABASE_URL"


@contextmanager
def program(*args: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    started = Program(*args, cwd=cwd, env=env)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.ended()


@contextmanager
def worker(url: str, *args: str, app: str = "tests.cli.apps.radio:app") -> Iterator[Program]:
    """A worker that has begun, and that logs JSON."""
    with program("worker", app, "--database-url", url, "--log-format", "json", *args) as started:
        started.event("worker_started")
        yield started
