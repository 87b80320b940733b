"""What the app's resources are to code without an event loop: the same objects, whose verbs block."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from ..engine.ledger import following
from ..resources import runs

if TYPE_CHECKING:
    from ..model.event import Event
    from ..model.view import RunView
    from ..resources import events, queues, schedules, workers

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Wait = Callable[[str, Callable[[], Coroutine[Any, Any, Any]]], Any]
"""Waits for a verb. The text is how the app's own user would write it after `await app.`, for errors."""


class View:
    """A resource of the app, or a handle: each of its verbs, with the same arguments, waits for the result."""

    def __init__(self, of: object, path: str, wait: Wait) -> None:
        self._of, self._path, self._wait = of, path, wait

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = getattr(self._of, name)
        return self._blocking(value, f"{self._path}.{name}") if callable(value) else value

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._of) if not name.startswith("_")]

    def __repr__(self) -> str:
        return repr(self._of)

    def _blocking(self, verb: Callable[..., Any], asked: str) -> Callable[..., Any]:
        @wraps(verb)
        def call(*args: Any, **fields: Any) -> Any:
            work = partial(verb, *args, **fields)
            return seen(self._wait(asked, work) if inspect.iscoroutinefunction(verb) else work(), self._wait)

        return call


def seen(value: Any, wait: Wait) -> Any:
    """What a verb answered, with handles that block."""
    if isinstance(value, runs.Handle):
        return Handle.of_run(value, wait)
    if isinstance(value, following.Following):
        return Following(value, "events.follow()", wait)
    if isinstance(value, list) and value and isinstance(value[0], runs.Handle):
        return [Handle.of_run(each, wait) for each in value]
    return value


if TYPE_CHECKING:
    # What type checkers know of verbs: the parameters of the app's own, and the result without `await`. A resource or a
    # verb that is not named below is there all the same.

    class Verb(Generic[P, T_co]):
        def __get__(self, view: View | None, kind: type[View]) -> Callable[P, T_co]: ...

    @overload
    def blocking(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, runs.Handle]]) -> Verb[P, Handle]: ...

    @overload
    def blocking(verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Verb[P, T]: ...

    @overload
    def blocking(verb: Callable[Concatenate[Any, P], runs.Handle]) -> Verb[P, Handle]: ...

    def blocking(verb: Any) -> Any: ...

    class Runs(View):
        handle = blocking(runs.Runs.handle)
        get = blocking(runs.Runs.get)
        list: ClassVar[Verb[..., Sequence[RunView]]]
        steps = blocking(runs.Runs.steps)
        children = blocking(runs.Runs.children)
        counts = blocking(runs.Runs.counts)
        result = blocking(runs.Runs.result)
        cancel = blocking(runs.Runs.cancel)
        retry = blocking(runs.Runs.retry)
        retry_many = blocking(runs.Runs.retry_many)
        cancel_where = blocking(runs.Runs.cancel_where)
        retry_where = blocking(runs.Runs.retry_where)
        purge = blocking(runs.Runs.purge)

    class Workers(View):
        list = blocking(workers.Workers.list)
        functions = blocking(workers.Workers.functions)

    class Queues(View):
        list = blocking(queues.Queues.list)
        get = blocking(queues.Queues.get)
        overview = blocking(queues.Queues.overview)
        pause = blocking(queues.Queues.pause)
        resume = blocking(queues.Queues.resume)
        purge = blocking(queues.Queues.purge)

    class Schedules(View):
        list = blocking(schedules.Schedules.list)
        get = blocking(schedules.Schedules.get)
        pause = blocking(schedules.Schedules.pause)
        resume = blocking(schedules.Schedules.resume)
        fire = blocking(schedules.Schedules.fire)

    class Events(View):
        get = blocking(events.Events.get)
        recent = blocking(events.Events.recent)
        types = blocking(events.Events.types)
        trace = blocking(events.Events.trace)
        read = blocking(events.Events.read)

        def schemas(self) -> dict[str, Any]: ...

        def follow(
            self,
            on: str = "**",
            *,
            entity: tuple[str, str] | None = None,
            source: str | None = None,
            token: str | None = None,
            start_at: str = "now",
        ) -> Following: ...


class Following(View):
    """Events as they are recorded: `for event in client.events.follow("price.*")`. Each step waits for the next."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            return self._wait("events.follow()", self._of.__anext__)  # type: ignore[attr-defined, no-any-return]
        except StopAsyncIteration:
            raise StopIteration from None

    if TYPE_CHECKING:
        token: str | None
        begin = blocking(following.Following.begin)
        aclose = blocking(following.Following.aclose)


class Handle(View):
    """A run that was enqueued."""

    @classmethod
    def of_run(cls, handle: runs.Handle, wait: Wait) -> Self:
        return cls(handle, f"runs.handle({handle.id!r})", wait)

    if TYPE_CHECKING:
        id: str
        created: bool
        """False when the key was taken: this is the run that holds it."""
        result = blocking(runs.Handle.result)
        status = blocking(runs.Handle.status)
        cancel = blocking(runs.Handle.cancel)
