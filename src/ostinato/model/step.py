"""Steps: the parts of a run that are remembered, who is who among them, and what follows when one fails."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct

from ..errors import Fatal, RetryAfter
from .retry import Retry

LONGEST_NAME = 200
LONGEST_SLEEP = 366 * 24 * 3600.0


class Kind(StrEnum):
    """What a step does."""

    STEP = "step"
    SLEEP = "sleep"
    EVENT = "event"
    SEND = "send"
    INVOKE = "invoke"


class Status(StrEnum):
    """Where a step is. *Pending* has begun, and waits: for a time, an event, a child or its next try."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class StepError(Struct, frozen=True, omit_defaults=True):
    """Why a step failed, as it is stored."""

    code: str
    message: str
    run_id: str | None = None
    """The child whose end it was."""


class Memo(Struct, frozen=True, gc=False):
    """What is remembered of a step, as it is read from the database."""

    run_id: str
    id: str
    place: int
    kind: str
    status: str
    output: str | None = None
    error: str | None = None
    retry_count: int = 0
    remaining: float | None = None
    """Seconds from when it was read until it goes on by itself."""
    child: str | None = None
    since: int | None = None
    """Events recorded before are not waited for, in microseconds since 1970."""
    event_id: str | None = None


class Wait(Struct, frozen=True, gc=False):
    """A step that waits for an event."""

    run_id: str
    step_id: str
    glob: str
    matches: str | None
    since: int


class Waiting(NamedTuple):
    """What runs that are held fast wait for, and what they have got."""

    waiting: set[tuple[str, str]]
    """The run and the step."""
    used: set[tuple[str, str]]
    """The run and the event."""


def identity(name: str, told_apart_by: bytes, repeat: int) -> str:
    """The id of a step: of its name, of its key or its arguments, and of how many there were like it before.

    >>> identity("fetch", b'["a"]', 0) == identity("fetch", b'["a"]', 0) != identity("fetch", b'["a"]', 1)
    True
    """
    digest = blake2b(b"%b\x00%b\x00%d" % (name.encode(), told_apart_by, repeat), digest_size=12)
    return digest.hexdigest()


def memo_in(row: Sequence[Any]) -> Memo:
    return Memo(*row)


def retry_in(error: BaseException, retry: Retry, retried: int, *, step: str) -> float | None:
    """Seconds until a step that failed is tried again; None when it has failed for good."""
    if isinstance(error, Fatal):
        return None
    spread = crc32(f"{step}:{retried}".encode()) / 2**32
    planned = retry.delay(retried + 1, error, spread=spread)
    return error.delay if planned is not None and isinstance(error, RetryAfter) else planned


_decode_error = msgspec.json.Decoder(StepError).decode


def error_in(text: str) -> StepError:
    return _decode_error(text)
