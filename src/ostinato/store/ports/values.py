"""What the verbs of a store are given and answer."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Raw, Struct


class Fence(NamedTuple):
    """What the database knows of a run whose settlement was refused."""

    lease_no: int
    state: str
    cancel_requested: bool
    message: str | None


class Ended(NamedTuple):
    """What became of a run."""

    state: str
    output: str | None
    error: str | None


class DeclaredFunction(Struct, frozen=True):
    """A function as other processes, SQL and people see it."""

    name: str
    queue: str
    attempts: int
    timeout: float
    retry: Raw
    input_schema: Raw | None = None
    version: str | None = None
    priority: int = 0
    start_timeout: float | None = None
    finish_timeout: float | None = None
    lifecycle: Raw | None = None
    on_failure: str | None = None
    cancel_on: Raw | None = None


class DeclaredQueue(Struct, frozen=True):
    """A queue's settings that the database enforces."""

    name: str
    max_waiting: int | None = None


class DeclaredDrainer(Struct, frozen=True):
    """A drainer as its code declares it, and where it begins if it is new."""

    name: str
    glob: str
    origin: str
    position: str


class MigrationView(Struct, frozen=True):
    version: int
    name: str
    applied_at: str | None
    checksum_matches: bool | None
