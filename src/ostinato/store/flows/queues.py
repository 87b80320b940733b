"""Functions and queues: declaring them, and pausing queues."""

from __future__ import annotations

from collections.abc import Sequence

from .calls import Call, Flow, encoded


def declaring(functions: Sequence[object], queues: Sequence[object]) -> Flow[None]:
    if functions:
        yield Call("declare_functions", {"functions": encoded(functions)})
    if queues:
        yield Call("declare_queues", {"queues": encoded(queues)})


def pausing(queue: str) -> Flow[bool]:
    return bool((yield Call("pause_queue", {"queue": queue})))


def resuming(queue: str) -> Flow[bool]:
    return bool((yield Call("resume_queue", {"queue": queue})))
