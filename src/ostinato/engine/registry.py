"""The functions an app declares."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from msgspec import Raw, json

from ..codec import InputType, PayloadType, input_type
from ..errors import ConfigError, UnknownFunction
from ..model.cancelling import CancelOn
from ..model.change import Terms
from ..model.event import Subscription
from ..model.retry import DEFAULT_RETRY, Retry
from ..model.run import State
from ..model.schedule import Schedule
from ..store.ports import DeclaredFunction
from .active import DEFAULT_TIMEOUT

Handler = Callable[..., Any]
Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A registered handler and how its runs are to be treated."""

    name: str
    handler: Handler
    input: InputType
    queue: str = "default"
    retry: Retry = DEFAULT_RETRY
    timeout: float = DEFAULT_TIMEOUT
    priority: int = 0
    version: str | None = None
    start_timeout: float | None = None
    finish_timeout: float | None = None
    lifecycle: tuple[State, ...] = ()
    """The ends of its runs that are recorded in the ledger."""
    on_failure: str | None = None
    cancel_on: tuple[CancelOn, ...] = ()
    is_async: bool = True
    only_once: bool = field(init=False)
    """A run of it must not start a second time, so a start is written down before it happens."""
    told: frozenset[State] = field(init=False)
    """The ends that somebody is to be told of: the ledger, or the function that is for failures."""
    terms: Terms | None = field(init=False)
    """What is written to its runs besides their queue and priority, if there is anything."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "only_once", self.retry.attempts == 1)
        object.__setattr__(self, "told", frozenset(self.lifecycle) | ({State.FAILED} if self.on_failure else set()))
        terms = Terms(self.start_timeout, self.finish_timeout, watched=bool(self.cancel_on))
        object.__setattr__(self, "terms", None if terms == Terms() else terms)

    def declared(self) -> DeclaredFunction:
        return DeclaredFunction(
            name=self.name,
            queue=self.queue,
            attempts=self.retry.attempts,
            timeout=self.timeout,
            retry=Raw(json.encode({"delays": self.retry.delays, "jitter": self.retry.jitter})),
            input_schema=self.input.schema,
            version=self.version,
            priority=self.priority,
            start_timeout=self.start_timeout,
            finish_timeout=self.finish_timeout,
            lifecycle=Raw(json.encode(self.lifecycle)) if self.lifecycle else None,
            on_failure=self.on_failure,
            cancel_on=Raw(json.encode(self.cancel_on)) if self.cancel_on else None,
        )


StartAt = Literal["beginning", "now"] | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerSpec:
    """A registered handler of events, and which ones it gets."""

    name: str
    glob: str
    handler: Handler
    start_at: StartAt
    batch: int
    is_async: bool
    origin: str


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """A subscription as it was checked, and where it begins if it is new."""

    subscription: Subscription
    start_at: StartAt


@dataclass(slots=True)
class Registry:
    """Functions by name, and what goes around all of them."""

    functions: dict[str, FunctionSpec] = field(default_factory=dict)
    middleware: list[Middleware] = field(default_factory=list)
    lifespans: list[Callable[[], Any]] = field(default_factory=list)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    events: dict[str, PayloadType] = field(default_factory=dict)
    drainers: dict[str, DrainerSpec] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionSpec] = field(default_factory=dict)

    def add(self, spec: FunctionSpec, subscriptions: Sequence[SubscriptionSpec] = ()) -> None:
        """Adds a function, and the subscriptions that start it."""
        if spec.name in self.functions:
            raise ConfigError(f"two functions are named {spec.name!r}; give one of them another name=")
        self.add_subscriptions(subscriptions)
        self.functions[spec.name] = spec

    def add_schedule(self, schedule: Schedule, spec: FunctionSpec) -> None:
        """Adds a schedule, and its function unless that is there."""
        if schedule.name in self.schedules:
            raise ConfigError(f"two schedules are named {schedule.name!r}; give one of them another name=")
        if self.functions.get(spec.name) is not spec:
            self.add(spec)
        self.schedules[schedule.name] = schedule

    def add_drainer(self, spec: DrainerSpec) -> None:
        if spec.name in self.drainers:
            raise ConfigError(f"two drainers are named {spec.name!r}; each has a position of its own, so rename one")
        self.drainers[spec.name] = spec

    def add_event(self, event_type: str, payload: PayloadType) -> None:
        if event_type in self.events:
            raise ConfigError(f"the payload of {event_type!r} is declared twice; an event type has one")
        self.events[event_type] = payload

    def add_subscriptions(self, specs: Sequence[SubscriptionSpec]) -> None:
        """Adds subscriptions, all or none."""
        names = [spec.subscription.name for spec in specs]
        for name in names:
            if name in self.subscriptions or names.count(name) > 1:
                raise ConfigError(f"two subscriptions are named {name!r}; give one of them another name=")
        self.subscriptions.update(zip(names, specs, strict=True))

    @property
    def versions(self) -> str | None:
        """Those of functions that have one, as JSON."""
        found = {spec.name: spec.version for spec in self if spec.version is not None}
        return json.encode(found).decode() if found else None

    def check_failures(self, known: Collection[str]) -> None:
        """Refuses on_failure= that names no function, or that would go round in circles."""
        for spec in self:
            seen, name = [spec.name], spec.on_failure
            while name is not None:
                if name not in self.functions and name not in known:
                    unknown = UnknownFunction.named(name, {*self.functions, *known})
                    raise ConfigError(f"function {seen[-1]!r}: on_failure={name!r}: {unknown}")
                if name in seen:
                    circle = " → ".join([*seen, name])
                    raise ConfigError(f"on_failure= goes round in circles: {circle}; a failure would never end")
                seen.append(name)
                name = self.functions[name].on_failure if name in self.functions else None

    def get(self, name: str) -> FunctionSpec | None:
        return self.functions.get(name)

    def find(self, name: str) -> FunctionSpec:
        if (spec := self.functions.get(name)) is None:
            raise UnknownFunction.named(name, self.functions)
        return spec

    def __iter__(self) -> Iterator[FunctionSpec]:
        return iter(self.functions.values())


def specify(handler: Handler, *, name: str, **options: Any) -> FunctionSpec:
    """A spec from a handler; its input type is read from its signature."""
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigError(f"function {name!r}: a handler returns its result; it cannot be a generator")
    if not name or len(name) > 200 or not name.isprintable():
        raise ConfigError(f"function name {name!r} must have 1 to 200 printable characters")
    given: Mapping[str, Any] = {key: value for key, value in options.items() if value is not None}
    return FunctionSpec(
        name, handler, input_type(handler, name=name), is_async=inspect.iscoroutinefunction(handler), **given
    )
