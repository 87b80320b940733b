"""Waiting for what happens, in place of sleeping.

    probe = Probe(app.telemetry)
    async with app.worker():
        handle = await greet.enqueue(name="Ada")
        completed = await probe.next(RunCompleted, run_id=handle.id)

Tests that wait for events are as fast as what they test, and fail with what happened instead.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self, TypeVar

from ostinato.telemetry import Event, Telemetry

E = TypeVar("E", bound=Event)

PATIENCE = 10.0
_SHOWN = 10


class Probe:
    """Remembers every event of an app from now on, so that none is missed that came before it was asked for.

    Events may come from any thread, and be waited for in any event loop.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._events: list[Event] = []
        self._given: set[int] = set()
        self._waiting: set[_Waiter] = set()
        self._lock = threading.Lock()
        self._unsubscribe = telemetry.subscribe(Event, self._heard)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening; what was heard can still be asked for. Closing again is harmless."""
        unsubscribe, self._unsubscribe = self._unsubscribe, _nothing
        unsubscribe()

    async def next(self, kind: type[E], *, timeout: float = PATIENCE, **fields: object) -> E:
        """The first event of the kind (`Event`: any) whose fields have these values. Each event is given once.

        Raises TimeoutError, with what happened instead, when none comes in time.
        """
        _check(kind, fields)
        waiter = _Waiter()
        with self._lock:
            self._waiting.add(waiter)
        try:
            async with asyncio.timeout(timeout):
                return await self._take(kind, fields, waiter)
        except TimeoutError:
            raise TimeoutError(self._complaint(kind, fields, timeout)) from None
        finally:
            with self._lock:
                self._waiting.discard(waiter)

    def seen(self, kind: type[E], **fields: object) -> list[E]:
        """All events of the kind with these values so far, in order, whether they were given by `next` or not."""
        _check(kind, fields)
        with self._lock:
            return [event for event in self._events if isinstance(event, kind) and _matches(event, fields)]

    async def _take(self, kind: type[E], fields: dict[str, Any], waiter: _Waiter) -> E:
        looked_at = 0
        while True:
            waiter.woken.clear()
            with self._lock:
                for place in range(looked_at, len(self._events)):
                    event = self._events[place]
                    if place not in self._given and isinstance(event, kind) and _matches(event, fields):
                        self._given.add(place)
                        return event
                looked_at = len(self._events)
            await waiter.woken.wait()

    def _heard(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            waiting = list(self._waiting)
        for waiter in waiting:
            waiter.wake()

    def _complaint(self, kind: type[Event], fields: dict[str, Any], timeout: float) -> str:
        wanted = " ".join([kind.__name__, *(f"{name}={value!r}" for name, value in fields.items())])
        with self._lock:
            last = [repr(event) for event in self._events[-_SHOWN:]]
        return f"no {wanted} within {timeout:g} s; the last that happened: {', '.join(last) or 'nothing at all'}"


class _Waiter:
    """One `next` that waits, in its own event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken = asyncio.Event()

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.woken.set)


def _check(kind: type[Event], fields: dict[str, Any]) -> None:
    """A misspelt field would wait for ever."""
    if kind is not Event and (unknown := set(fields) - set(kind.__struct_fields__)):
        there = ", ".join(kind.__struct_fields__)
        raise TypeError(f"{kind.__name__} has no field {min(unknown)!r}; its fields are {there}")


def _matches(event: Event, fields: dict[str, Any]) -> bool:
    return all(getattr(event, name, None) == value for name, value in fields.items())


def _nothing() -> None: ...
