"""The entry of a measured process: a task as JSON in the first argument, lines of JSON to the parent and back."""

import asyncio
import json
import os
import sys
from typing import Any, TextIO

from bench.contenders import Target, contender
from bench.roles import ROLES, Task


class PipeControl:
    """Speaks to the parent over the original standard output, which the measured code cannot reach any more."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    async def ready(self) -> None:
        self.send({"ready": True})
        if not await asyncio.to_thread(sys.stdin.readline):
            raise EOFError("the parent process has gone")

    def send(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self._out, flush=True)


def main() -> None:
    control = PipeControl(_take_standard_output())
    task = _parse(sys.argv[1])
    run = getattr(contender(task.contender, task.store), "run", asyncio.run)
    result = run(_perform(task, control))
    control.send({"result": result})


async def _perform(task: Task, control: PipeControl) -> dict[str, Any]:
    return await ROLES[task.role](task, control)


def _parse(text: str) -> Task:
    fields = json.loads(text)
    return Task(**fields | {"target": Target(**fields["target"])})


def _take_standard_output() -> TextIO:
    """Keep the pipe for ourselves and send whatever the measured code prints to standard error."""
    private = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return private


if __name__ == "__main__":
    main()
