"""What people see of drainers, and what their verbs answer."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from msgspec import DecodeError, Struct, json

from ..errors import InvalidOption
from .event import Event, Position
from .schedule import moment

BUILT_IN = "built-in"
EXTERNAL = "external"
"""Origins. That of a drainer in code is its handler, as module:name."""

MOST_LAG = 10_000
"""How far events are counted that a drainer has not read."""


class Trigger(NamedTuple):
    """A run that an event has started."""

    event_id: str
    subscription: str
    run_id: str


class Drained(Struct, frozen=True):
    """What a call of a drainer did."""

    processed: int = 0
    triggered: Sequence[Trigger] = ()
    parked: int = 0
    halted_on_event_id: str | None = None
    error: str | None = None
    skipped_due_to_lock: bool = False

    def __add__(self, later: Drained) -> Drained:
        return Drained(
            self.processed + later.processed,
            [*self.triggered, *later.triggered],
            self.parked + later.parked,
            later.halted_on_event_id or self.halted_on_event_id,
            later.error or self.error,
            self.skipped_due_to_lock or later.skipped_due_to_lock,
        )


class DrainerView(Struct, frozen=True, kw_only=True):
    """A drainer as it stands in the database."""

    name: str
    glob: str
    origin: str
    position: str
    """How far it is, in words."""
    token: str
    """The same for `reset`."""
    created_at: datetime
    last_drained_at: datetime | None = None
    events_processed_total: int = 0
    lag: int | None = None
    """How many events it has not read, counted to `MOST_LAG`; None if that cannot be said before its next pass."""
    parked: int = 0
    failures: int = 0
    """In a row."""
    halted_on: str | None = None
    error: str | None = None
    retry_at: datetime | None = None

    @property
    def lag_in_words(self) -> str:
        if self.lag is None:
            return "?"
        return f"{MOST_LAG}+" if self.lag >= MOST_LAG else str(self.lag)


class ParkedView(Struct, frozen=True, kw_only=True):
    """An event that a subscription could not be given."""

    subscription: str
    event_id: str
    event_type: str | None
    """None if retention has removed the event."""
    sequence_no: int
    entity_type: str | None = None
    entity_id: str | None = None
    code: str
    message: str
    parked_at: datetime


class Batch(Struct, frozen=True):
    """Events for one who reads from outside, and what to acknowledge them with; no token if there are none."""

    events: Sequence[Event]
    token: str | None


class Reset(Struct, frozen=True):
    """Where a drainer was put, or in a dry run would be, and how many events it reads from there, counted to
    `MOST_LAG`."""

    name: str
    token: str
    events: int
    dry_run: bool = False


class Refusal(NamedTuple):
    """An event that a subscription could not be given in a replay."""

    event_id: str
    code: str
    message: str


class Replayed(Struct, frozen=True, kw_only=True):
    """What a replay has started, or in a dry run would start."""

    replay: str
    """Its name: a replay of the same name starts no run twice."""
    subscription: str
    function: str
    events: int
    """Those in the range that the subscription is about."""
    runs: int
    refused: int = 0
    refusals: Sequence[Refusal] = ()
    """The first of them."""
    dry_run: bool = True


class Placed(Struct, frozen=True, array_like=True):
    """What the token of a place says: the position, and whose transactions that speaks of."""

    lineage: str
    position: str


class Acknowledgement(Struct, frozen=True, array_like=True):
    """What a token says: from where to where somebody has read. It holds while the drainer is where it was."""

    drainer: str
    start: str
    end: str
    count: int


Content = TypeVar("Content", Placed, Acknowledgement)


def token_of(content: Placed | Acknowledgement) -> str:
    """A text that passes through shells, URLs and JSON as it is."""
    return urlsafe_b64encode(json.encode(content)).decode().rstrip("=")


def read_token(token: str, kind: type[Content]) -> Content:
    try:
        return json.decode(urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)), type=kind)
    except (ValueError, DecodeError) as error:
        raise InvalidOption(f"{token!r} is no token of a drainer; give the one that was printed, whole") from error


def drainer_in(row: Sequence[Any], position: Position, lag: int | None) -> DrainerView:
    """The drainer in a row, as the stores read it: moments are microseconds since 1970."""
    return DrainerView(
        name=row[0],
        glob=row[1],
        origin=row[2],
        position=_in_words(position, lag),
        token=token_of(Placed(row[12], row[3])),
        created_at=moment(row[4]),
        last_drained_at=row[5] and moment(row[5]),
        events_processed_total=row[6],
        lag=lag,
        parked=row[7],
        failures=row[8],
        halted_on=row[9],
        error=row[10],
        retry_at=row[11] and moment(row[11]),
    )


def _in_words(position: Position, lag: int | None) -> str:
    if lag is None:
        return "of another cluster, from which the database was restored; its next pass finds the place here"
    if not lag:
        return "at the end"
    left = f"more than {MOST_LAG}" if lag >= MOST_LAG else str(lag)
    return f"{left} before the end" + (f", after number {position.last}" if position.last else "")


def parked_in(row: Sequence[Any]) -> ParkedView:
    """The parked event in a row, as the stores read it."""
    return ParkedView(
        subscription=row[0],
        event_id=row[1],
        event_type=row[2],
        sequence_no=row[3],
        entity_type=row[4],
        entity_id=row[5],
        code=row[6],
        message=row[7],
        parked_at=moment(row[8]),
    )
