"""A server's process: started from binaries, stopped, killed, removed."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from ostinato.errors import StoreUnavailable

from . import binaries, places, rights
from .databases import Server
from .watchdog import Watchdog

StopMode = Literal["fast", "immediate"]
STOP_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

START_ATTEMPTS = 20
START_SECONDS = 60.0
STOP_SECONDS = 30.0

# For servers whose data nobody will miss. A commit still reaches the kernel, and survives a killed server.
CARELESS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

# Below the ports the system hands out for outgoing connections: there, a client that keeps reconnecting
# while the server is down could end up connected to itself and keep the port from the server.
PORTS = range(15_000, 32_000)
PORT_TAKEN = "Address already in use"
# The processes of a killed server let go of its shared memory a moment after they are gone.
STILL_DYING = "pre-existing shared memory block"


class PostgresServer(Server):
    """A server started from binaries, with its data in a temporary folder of its own.

    Trusts every local connection. Without `fsync` its data lives in memory where there is enough of it, and
    survives the server's crashes but not the machine's. Stopping keeps the data, closing removes it.
    The newest version found is taken where none is named.
    """

    def __init__(
        self, version: int | None = None, *, fsync: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self.version, self._binaries = binaries.binaries_of(version)
        self.port = 0
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "max_connections": "200",
            **({"fsync": "on"} if fsync else CARELESS),
            **(settings or {}),
        }
        self._root = places.temporary_root() if fsync else places.memory_root()
        self._copying = "" if fsync else " strategy file_copy"
        self._account = rights.account()
        self._folder: Path | None = None
        self._watchdog: Watchdog | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # what one can know of it

    @property
    def socket_dir(self) -> Path:
        """The folder of its Unix socket."""
        if self._folder is None:
            raise StoreUnavailable(f"PostgreSQL {self.version} has not been started")
        return self._folder

    @property
    def pid(self) -> int:
        """The process id of its postmaster."""
        if self._process is None:
            raise StoreUnavailable(f"PostgreSQL {self.version} does not run")
        return self._process.pid

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database)}"

    # its life

    def start(self) -> Self:
        """Starts it, on its old port if it was only stopped, and returns when it takes connections."""
        if self._process is not None:
            return self
        try:
            first = self._prepare()
            self._launch(keep_port=not first)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Ends it: `fast` tidies up first, `immediate` leaves that to the recovery at the next start."""
        self._end(STOP_SIGNALS[mode])

    def restart(self, mode: StopMode = "fast") -> None:
        """Stops and starts it on the same port; all connections are lost."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Ends all its processes by SIGKILL, as the kernel does when memory runs out."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # no new children while we look for them
        children = children_of(self._process.pid)
        self._end(signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def close(self) -> None:
        """Ends it and removes its data."""
        self._end(signal.SIGQUIT)
        if self._watchdog is not None:
            self._watchdog.dismiss()
        self._folder = self._watchdog = None

    # how it is done

    def _prepare(self) -> bool:
        """Makes the folder and an empty cluster in it; False if that was done before."""
        if self._folder is not None:
            return False
        if self._account and not places.open_to_all(self._binaries / "postgres"):
            self._binaries = rights.public_copy(self._binaries.parent) / "bin"
        self._folder = Path(tempfile.mkdtemp(prefix="ostinato-pg-", dir=self._root))
        self._watchdog = Watchdog(self._folder)
        if self._account:
            os.chown(self._folder, *self._account)
        self._make_cluster()
        return True

    def _make_cluster(self) -> None:
        options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync")
        initdb = self._spawn("initdb", "--pgdata=data", *options)
        if initdb.wait() != 0:
            raise StoreUnavailable(f"initdb of PostgreSQL {self.version} failed:\n{self._log()}")

    def _launch(self, *, keep_port: bool) -> None:
        for _ in range(START_ATTEMPTS):
            self.port = self.port if keep_port else free_port()
            failure = self._attempt()
            if failure is None:
                return
            if PORT_TAKEN not in failure and STILL_DYING not in failure:
                break
            time.sleep(0.05)
        raise StoreUnavailable(f"PostgreSQL {self.version} did not start:\n{failure}")

    def _attempt(self) -> str | None:
        """Starts the postmaster and waits until it is ready; else what it wrote before it ended."""
        before = len(self._log())
        settings = {"port": str(self.port), "unix_socket_directories": str(self.socket_dir), **self._settings}
        self._process = self._spawn("postgres", "-D", "data", *(f"--{k}={v}" for k, v in settings.items()))
        self._guard(self._process.pid)
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None:
            if self._is_ready():
                return None
            if time.monotonic() > deadline:
                self._end(signal.SIGQUIT)
                return f"not ready after {START_SECONDS:.0f} s\n{self._log()[before:]}"
            time.sleep(0.005)
        self._process = None
        self._guard(None)
        return self._log()[before:]

    def _is_ready(self) -> bool:
        """Asks the lock file, as pg_ctl does; the one of a killed predecessor has another pid."""
        try:
            lines = (self.socket_dir / "data" / "postmaster.pid").read_text().split()
        except FileNotFoundError:
            return False
        return bool(lines) and lines[0] == str(self.pid) and lines[-1] == "ready"

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a program of this version, in the server's folder and with no setting of the caller's."""
        with (self.socket_dir / "log").open("ab") as log:
            return subprocess.Popen(
                [self._binaries / program, *arguments],
                cwd=self.socket_dir,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
                user=self._account.uid if self._account else None,
                group=self._account.gid if self._account else None,
                extra_groups=[] if self._account else None,
            )

    def _end(self, by: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._guard(None)

    def _guard(self, pid: int | None) -> None:
        if self._watchdog is not None:
            self._watchdog.guard(pid)

    def _log(self) -> str:
        path = self.socket_dir / "log"
        return path.read_text(errors="replace") if path.exists() else ""


def free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def children_of(pid: int) -> list[int]:
    """The processes whose parent is *pid*. (`ps` is missing from small Linux images, /proc from macOS.)"""
    if not Path("/proc/self/stat").exists():
        rows = (line.split() for line in binaries.output("ps", "-A", "-o", "pid=,ppid=").splitlines())
        return [int(child) for child, parent in rows if int(parent) == pid]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(path.parent.name))
    return found
