"""Where a server's files may be."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

MEMORY_BYTES = 2 << 30


def open_to_all(path: Path) -> bool:
    """Whether every user may enter this folder or run this program, by its mode and those of all above it."""
    return all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents))


def temporary_root() -> Path:
    """The folder for temporary files: open to all, and short, as the path of a socket has about 100 bytes."""
    usual = Path(tempfile.gettempdir()).resolve()
    return usual if len(str(usual)) <= 60 and open_to_all(usual) else Path("/tmp")


def memory_root() -> Path:
    """A folder in memory, if there is a large one: a new database takes 15 ms there, on some disks 300."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES:
        return memory
    return temporary_root()
