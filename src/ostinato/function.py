"""What `@app.function` gives: the handler, and ways to enqueue runs of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from .engine.door import NO_OPTIONS, EnqueueOptions
from .engine.registry import FunctionSpec
from .resources.runs import Handle, Runs

P = ParamSpec("P")
R = TypeVar("R")


class Enqueuer:
    """Enqueues runs of one function with some options."""

    def __init__(self, spec: FunctionSpec, runs: Runs, options: EnqueueOptions = NO_OPTIONS) -> None:
        self.spec = spec
        self.enqueue_options = options
        self._runs = runs

    @property
    def name(self) -> str:
        return self.spec.name

    def options(self, **options: Any) -> Enqueuer:
        """The same function with options: delay, run_at, priority, key, unique, queue, timeout, metadata, force,
        conn."""
        return Enqueuer(self.spec, self._runs, self.enqueue_options.changed(**options))

    async def enqueue(self, *value: Any, **fields: Any) -> Handle:
        """Enqueues one run: with keywords, or with one object that is the whole input."""
        return await self._runs.enqueue(self.name, value, fields, self.enqueue_options)

    async def enqueue_many(self, inputs: Iterable[Any]) -> list[Handle]:
        """Enqueues a run for each input, all or none. Ten thousand in one call is a normal call."""
        return await self._runs.enqueue_many(self.name, inputs, self.enqueue_options)


class Function(Enqueuer, Generic[P, R]):
    """A registered handler. Calling it calls the handler, here and now, which is how to test it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.spec.handler(*args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<function {self.name!r} of queue {self.spec.queue!r}>"
