"""Where the figures were taken, without which they say nothing."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from bench.arenas import DATA, Arena

Environment = dict[str, str]


def describe_machine() -> Environment:
    return {
        "taken": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "file system": _file_system(DATA.parent),
        "load at start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


async def describe_arena(arena: Arena) -> Environment:
    return {f"{arena.store}: {name}": value for name, value in (await arena.describe()).items()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _file_system(path: Path) -> str:
    """Name the type of the file system that holds the path: on a tmpfs an fsync costs nothing and figures lie."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(point, kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]))[1]
