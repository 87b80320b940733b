"""Where the figures were taken, without which they say nothing."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from bench.arenas import Arena

Environment = dict[str, str]


def describe_machine() -> Environment:
    return {
        "taken": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load at start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


async def describe_arena(arena: Arena) -> Environment:
    return {f"{arena.store}: {name}": value for name, value in (await arena.describe()).items()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
