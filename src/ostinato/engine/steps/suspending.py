"""When a run is left to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import NamedTuple, NoReturn

from ...model.outcome import Suspended
from ...model.run import Reason

QUIET_FOR = 0.02
"""Seconds without a step in flight, after which what runs beside a waiting step is taken to wait for it too."""

PATIENCE = 1.0
"""The same, while a task that has made steps of its own goes on with something else: it may make more."""


class Suspending(BaseException):
    """Unwinds a function whose run waits for something; it is called again when that has come."""


class _Waiting(NamedTuple):
    task: asyncio.Task[object] | None
    reason: Reason
    step_id: str


class Suspension:
    """Whether something of the run is still going on.

    A function that does all in its own task waits as a whole, and is left at once. One that has several may wait in
    one and go on in another: it is left when no step is in flight, and none has begun for a moment. A task that has
    made steps, and is between two of them, gets longer than that; what takes longer still between two steps had better
    be a step itself, or it is begun again when the run goes on.
    """

    def __init__(self, main: asyncio.Task[None] | None) -> None:
        self._main = main
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._begun = 0
        self._looking_at: int | None = None
        """What had begun when somebody began to look whether nothing more does."""
        self._others: set[asyncio.Task[object]] = set()
        """The tasks besides the function's own that have called steps, and have not ended."""
        self._main_too = False
        """Whether the function's own task makes steps beside the others'."""
        self._waiting: dict[asyncio.Future[None], _Waiting] = {}
        self.outcome: Suspended | None = None

    def join(self) -> None:
        """A step is called."""
        if self.outcome is not None:
            raise Suspending
        task = asyncio.current_task()
        if task is self._main:
            self._main_too = bool(self._others)
        elif task is not None and task not in self._others:
            self._others.add(task)
            task.add_done_callback(self._left)

    def begin(self) -> None:
        """A step is about to do something."""
        if self.outcome is not None:
            raise Suspending
        self._in_flight += 1
        self._begun += 1

    def end(self) -> None:
        self._in_flight -= 1
        if self._waiting and not self._in_flight:
            self._look_later()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()

    async def wait(self, reason: Reason, step_id: str) -> NoReturn:
        """Leaves the run, now or later. To be called outside of `begin` and `end`."""
        await asyncio.sleep(0)  # tasks that the function has just made begin now
        task = asyncio.current_task()
        if task is self._main and not self._in_flight and not self._others and self.outcome is None:
            self.outcome = Suspended(reason, (step_id,))
        if self.outcome is not None:
            raise Suspending
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[future] = _Waiting(task, reason, step_id)
        if not self._in_flight:
            self._look_later()
        try:
            await future
        finally:
            self._waiting.pop(future, None)
        raise AssertionError("unreachable")

    def _look_later(self) -> None:
        if self._looking_at != self._begun:
            self._looking_at = self._begun
            self._loop.call_later(QUIET_FOR, self._look, self._begun, self._loop.time() + PATIENCE)

    def _look(self, begun: int, deadline: float) -> None:
        if self.outcome is not None or self._in_flight or begun != self._begun or not self._waiting:
            if begun == self._looking_at:
                self._looking_at = None
            return
        if self._loop.time() < deadline and self._goes_on():
            self._loop.call_later(QUIET_FOR, self._look, begun, deadline)
            return
        waiting = list(self._waiting.values())
        self.outcome = Suspended(waiting[0].reason, tuple(each.step_id for each in waiting))
        for future in self._waiting:
            if not future.done():
                future.set_exception(Suspending())
                future.exception()  # whoever awaited it may be gone

    def _goes_on(self) -> bool:
        """Whether a task that has made steps is busy with something else."""
        waiting = {each.task for each in self._waiting.values()}
        tasks = [*self._others, self._main] if self._main_too else self._others
        return not all(_waits(task, waiting) for task in tasks)

    def _left(self, task: asyncio.Task[object]) -> None:
        """A task has ended. One that nobody awaits any more, as the run was left, need not be told of as an error."""
        self._others.discard(task)
        if self.outcome is None:
            if self._waiting and not self._in_flight:
                self._look_later()
        elif not task.cancelled() and not isinstance(error := task.exception(), Suspending | None):
            context = {"message": "a task of a run that waits has failed", "exception": error, "task": task}
            self._loop.call_exception_handler(context)


def _waits(task: object, waiting: Container[object]) -> bool:
    """Whether a task waits, or awaits others that do: one task, or several in `asyncio.gather`, as far as asyncio shows
    them."""
    if task in waiting:
        return True
    awaited = getattr(task, "_fut_waiter", None)
    inner = getattr(awaited, "_children", None) or ([awaited] if isinstance(awaited, asyncio.Task) else [])
    going = [each for each in inner if not each.done()]
    return bool(going) and all(_waits(each, waiting) for each in going)
