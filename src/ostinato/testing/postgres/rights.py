"""Root and `nobody`: PostgreSQL refuses to run as root, so it runs as a user who must be able to reach its binaries."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ostinato.errors import ConfigError

from . import places


class Account(NamedTuple):
    """Who a server runs as, where that is not who we are."""

    uid: int
    gid: int


def account() -> Account | None:
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        nobody = pwd.getpwnam("nobody")
        return Account(nobody.pw_uid, nobody.pw_gid)
    return Account(65534, 65534)


def public_copy(installation: Path) -> Path:
    """A copy of an installation that every user can reach, made once and shared by all processes."""
    with (installation / "bin" / "postgres").open("rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()
    site, home = installation.parents[1], _copies()
    copy, fresh = home / digest[:16], home / "fresh"
    with _locked(home / "lock"):
        if _files(site, installation) != _files(copy, copy / installation.relative_to(site)):
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.rmtree(copy, ignore_errors=True)
            for folder in folders(installation):
                shutil.copytree(folder, fresh / folder.relative_to(site))
            subprocess.run(["chmod", "-R", "a+rX", fresh], check=True)
            fresh.rename(copy)
    return copy / installation.relative_to(site)


def folders(installation: Path) -> list[Path]:
    """What it takes to run: its own folders, and the libraries that its wheel keeps beside the package."""
    package = installation.parent
    folders = [installation / "bin", installation / "lib", installation / "share"]
    return [path for path in (*folders, package.with_name(f"{package.name}.libs")) if path.exists()]


def _files(site: Path, installation: Path) -> set[Path]:
    """What is there: systems tidy up their temporary folders file by file."""
    return {path.relative_to(site) for folder in folders(installation) for path in folder.rglob("*")}


def _copies() -> Path:
    home = places.temporary_root() / f"ostinato-postgres-{os.geteuid()}"
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
