"""A worker process: `python -m tests.system.runner tests.system.apps.items:app [fault …]`.

Settings come from the environment. It ends with the process that started it, whose pipe is its stdin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from importlib import import_module

from msgspec import structs

from ostinato import App, telemetry
from tests.system import faults
from tests.system.log import tell

TOLD = "SYSTEM_TOLD"


def main() -> None:
    target, *broken = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    threading.Thread(target=_end_with_the_test, daemon=True).start()
    for fault in broken:
        getattr(faults, fault)()
    module, _, name = target.partition(":")
    app: App = getattr(import_module(module), name)
    for kind in os.environ[TOLD].split(","):
        app.telemetry.subscribe(getattr(telemetry, kind), _tell)
    asyncio.run(app.run_worker())


def _tell(event: telemetry.Event) -> None:
    tell(type(event).__name__, **structs.asdict(event))


def _end_with_the_test() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
