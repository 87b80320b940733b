"""A real pgbouncer in front of a server of ours, from Debian's package or wherever it is installed."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

START_SECONDS = 20.0

CONFIGURATION = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
logfile = {folder}/log
pool_mode = {mode}
default_pool_size = 4
server_round_robin = 1
server_login_retry = 0
max_client_conn = 200
{more}
"""
"""Few connections, given out in turn: whoever relies on a session meets another one at the next statement."""


def find_program() -> str | None:
    """pgbouncer, on the PATH or where Debian has it."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


def nobody() -> pwd.struct_passwd | None:
    """Who it runs as when we are root, which it refuses to be."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def free_port() -> int:
    """Below those that the system hands out for outgoing connections."""
    while True:
        port = secrets.choice(range(15_000, 32_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Pgbouncer(NamedTuple):
    port: int
    log: Path

    def url_of(self, url: str) -> str:
        """The same database and role, through the pooler."""
        parts = urlsplit(url)
        return parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}").geturl()


@contextmanager
def pgbouncer(server: str, *, mode: str = "transaction", more: str = "") -> Iterator[Pgbouncer]:
    """A pooler in front of the server that the URL names. It does not run as root, as the server does not."""
    program, address, account = find_program(), urlsplit(server), nobody()
    assert program is not None
    folder, port = Path(tempfile.mkdtemp(prefix="ostinato-pgb-")), free_port()
    (folder / "users").write_text(f'"{address.username}" ""\n')
    (folder / "ini").write_text(
        CONFIGURATION.format(
            host=address.hostname, port=address.port, own_port=port, folder=folder, mode=mode, more=more
        )
    )
    for path in (folder, folder / "users", folder / "ini"):
        if account:
            os.chown(path, account.pw_uid, account.pw_gid)
    process = subprocess.Popen(
        [program, "-q", str(folder / "ini")],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=account.pw_uid if account else None,
        group=account.pw_gid if account else None,
        extra_groups=[] if account else None,
    )
    try:
        _wait_for(process, port, folder / "log")
        yield Pgbouncer(port, folder / "log")
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.01)
    raise AssertionError(f"pgbouncer did not start:\n{log.read_text() if log.exists() else ''}")
