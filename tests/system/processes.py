"""Worker processes, and what can be done to them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.system import gates, log, runner
from tests.system.databases import Database
from tests.system.gates import Gates
from tests.system.log import Log

ROOT = Path(__file__).parents[2]

TOLD = (
    "WorkerStarted WorkerStopping WorkerStopped WorkerBuried LeaseLost RunRescued RunFailed StaleWriteRefused "
    "QueueAsleep QueueScanned ListeningChanged StoreTroubled"
)


class WorkerProcess:
    """One worker, in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Log, errors: Path, database: Database) -> None:
        self._process, self._log, self.errors, self._database = process, log, errors, database
        self.listens = database.dialect == "postgresql"
        self.pid = process.pid

    async def ready(self, *, timeout: float = 15.0) -> None:
        """Until it has a lease."""
        try:
            await self._log.heard("WorkerStarted", pid=self.pid, timeout=timeout)
        except AssertionError as error:
            error.add_note(self.errors.read_text(errors="replace"))
            raise

    async def asleep(self, *, since: float = 0.0, timeout: float = 15.0) -> None:
        """Until it sleeps for lack of work (again, since a moment), able to hear a bell."""
        await self._log.until(lambda: self._sleeps(since), f"worker {self.pid} asleep", timeout=timeout)

    def _sleeps(self, since: float) -> bool:
        said = [line for line in self._log.lines if line["pid"] == self.pid and line["at"] >= since]
        listening = self._log.find("ListeningChanged", pid=self.pid, working=True)
        heard_from = listening[-1]["at"] if listening else 0.0
        ready = bool(listening) or not self.listens
        return ready and any(line["what"] == "QueueAsleep" and line["at"] >= heard_from for line in said)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stops it as a debugger, a paused machine or swapping does; returns when it stands still. Not while it holds
        the only write lock of a file: nobody could take over."""
        while True:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
            if not self._database.is_being_written():
                return
            self.thaw()

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def exit_code(self, *, timeout: float = 15.0) -> int:
        """Waits for its end."""
        async with asyncio.timeout(timeout):
            while (code := self._process.poll()) is None:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.005)
        return code

    def close(self) -> None:
        if self.is_alive:
            self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Crew:
    """Starts workers on one database, and ends them with the test."""

    def __init__(self, database: Database, log: Log, gates: Gates) -> None:
        self._database, self._log, self._gates = database, log, gates
        self._workers: list[WorkerProcess] = []
        self._supervisors: list[asyncio.Task[None]] = []

    async def start(self, app: str, *, faults: Sequence[str] = (), **settings: object) -> WorkerProcess:
        """A worker of `tests.system.apps.<app>`, once it has its lease. Settings are those of `App`."""
        worker = self.launch(app, faults=faults, **settings)
        await worker.ready()
        return worker

    def launch(self, app: str, *, faults: Sequence[str] = (), **settings: object) -> WorkerProcess:
        """The same without waiting for anything."""
        errors = self._gates.folder / f"worker-{len(self._workers)}.log"
        with errors.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.runner", f"tests.system.apps.{app}:app", *faults],
                cwd=ROOT,
                env=self.environment(**settings),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[self._log.writable],
                start_new_session=True,
            )
        worker = WorkerProcess(process, self._log, errors, self._database)
        worker.listens = worker.listens and settings.get("notify") != "off"
        self._workers.append(worker)
        return worker

    def supervise(self, app: str, **settings: object) -> None:
        """A worker that is started again whenever it ends, as systemd or Kubernetes would."""
        self._supervisors.append(asyncio.create_task(self._keep_alive(app, settings)))

    async def close(self) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        for worker in self._workers:
            worker.close()

    def complaints(self) -> str:
        """What the workers wrote to their logs, for a test that failed."""
        texts = ((worker.pid, worker.errors.read_text(errors="replace")) for worker in self._workers)
        return "\n".join(f"--- worker {pid}\n{text[-3000:]}" for pid, text in texts if text)

    async def _keep_alive(self, app: str, settings: dict[str, object]) -> None:
        while True:
            worker = self.launch(app, **settings)  # type: ignore[arg-type]
            await worker.exit_code(timeout=3600)

    def environment(self, **settings: object) -> dict[str, str]:
        """What a process needs to know of the test."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")}
        return {
            **ours,
            "OSTINATO_DATABASE_URL": self._database.url,
            **{f"OSTINATO_{name.upper()}": str(value) for name, value in settings.items()},
            log.VARIABLE: str(self._log.writable),
            gates.VARIABLE: str(self._gates.folder),
            runner.TOLD: TOLD.replace(" ", ","),
        }
