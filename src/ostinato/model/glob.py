"""Globs over event types: `*` stands for letters within a segment, `**` for any number of segments.

Segments are split at `.` and `/`. No regular expressions: one with eight stars took seconds, and globs come from users.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..errors import ConfigError

T = TypeVar("T")

LONGEST = 200
SEPARATORS = "./"
ACROSS = "**"


class Segment(NamedTuple):
    """A piece of a type or glob, and the separator before it."""

    separator: str
    text: str


def segments(text: str) -> list[Segment]:
    """The pieces of a type or glob.

    >>> [segment.separator + segment.text for segment in segments("track/enrichment.requested")]
    ['track', '/enrichment', '.requested']
    """
    found, start, separator = [], 0, ""
    for place, letter in enumerate(text):
        if letter in SEPARATORS:
            found.append(Segment(separator, text[start:place]))
            start, separator = place + 1, letter
    return [*found, Segment(separator, text[start:])]


def checked(glob: str) -> str:
    """The glob, or an error that says what is wrong with it."""
    if not 0 < len(glob) <= LONGEST or not glob.isprintable() or " " in glob:
        raise ConfigError(f"glob {glob!r} must have 1 to {LONGEST} printable characters and no spaces")
    for segment in segments(glob):
        if not segment.text:
            raise ConfigError(f"glob {glob!r} has an empty segment; write price.* or price.**")
        if ACROSS in segment.text and segment.text != ACROSS:
            raise ConfigError(f"glob {glob!r}: ** stands for whole segments; write * inside of one")
    return glob


def matches(glob: str, event_type: str) -> bool:
    """Whether the glob means an event type.

    >>> matches("price.*", "price.changed"), matches("price.*", "price.list.changed"), matches("**.changed", "price.changed")
    (True, False, True)
    """
    return any(True for _ in GlobIndex([(glob, None)]).find(event_type))


def fits(glob: str, text: str) -> bool:
    """Whether a text fits a glob in which `*` stands for any letters: two pointers, and the last star takes one more.

    >>> fits("ch*ed", "changed"), fits("*", ""), fits("a*b*c", "abcab")
    (True, True, False)
    """
    at, place, star, resume = 0, 0, -1, 0
    while place < len(text):
        if at < len(glob) and glob[at] == "*":
            star, resume, at = at, place, at + 1
        elif at < len(glob) and glob[at] == text[place]:
            at, place = at + 1, place + 1
        elif star >= 0:
            resume += 1
            at, place = star + 1, resume
        else:
            return False
    return not glob[at:].strip("*")


class GlobIndex(Generic[T]):
    """Values by glob, found by an event's type without trying each glob.

    >>> index = GlobIndex([("price.*", 1), ("price.changed", 2), ("stock.**", 3)])
    >>> sorted(index.find("price.changed"))
    [1, 2]
    """

    def __init__(self, values: Iterable[tuple[str, T]] = ()) -> None:
        self._plain: dict[str, list[T]] = {}
        self._root: _Node[T] = _Node()
        for glob, value in values:
            if "*" in glob:
                self._root.place_of(segments(glob)).here.append(value)
            else:
                self._plain.setdefault(glob, []).append(value)

    def find(self, event_type: str) -> Iterator[T]:
        """The values of all globs that mean the type."""
        yield from self._plain.get(event_type, ())
        for node in _walk(self._root, segments(event_type)):
            yield from node.here


class _Node(Generic[T]):
    """A place in the tree of globs, and what may come next. One that was reached by `**` may be stayed at."""

    __slots__ = ("across", "here", "literal", "stays", "wild")

    def __init__(self, *, stays: bool = False) -> None:
        self.here: list[T] = []
        self.literal: dict[Segment, _Node[T]] = {}
        self.wild: dict[Segment, _Node[T]] = {}
        self.across: _Node[T] | None = None
        self.stays = stays

    def place_of(self, glob: Sequence[Segment]) -> _Node[T]:
        """Where a glob ends, made if it is not there."""
        node: _Node[T] = self
        for segment in glob:
            node = node._child(segment)
        return node

    def _child(self, segment: Segment) -> _Node[T]:
        if segment.text == ACROSS:
            self.across = self.across or _Node(stays=True)
            return self.across
        children = self.wild if "*" in segment.text else self.literal
        return children.setdefault(segment, _Node())

    def following(self, segment: Segment, *, first: bool) -> Iterator[_Node[T]]:
        """Where one segment leads to. Before the first of a type there is no separator, whatever a `**` before it says."""
        if self.stays:
            yield self
        for separator in ("", *SEPARATORS) if first else (segment.separator,):
            if (child := self.literal.get(Segment(separator, segment.text))) is not None:
                yield child
        for glob, child in self.wild.items():
            if (first or glob.separator == segment.separator) and fits(glob.text, segment.text):
                yield child


def _walk(root: _Node[T], text: Sequence[Segment]) -> list[_Node[T]]:
    """The places where a type ends, walking all ways through the tree at once: each place is visited once a segment."""
    here = _with_across([root])
    for place, segment in enumerate(text):
        found = {id(child): child for node in here for child in node.following(segment, first=place == 0)}
        here = _with_across(found.values())
        if not here:
            break
    return here


def _with_across(nodes: Iterable[_Node[T]]) -> list[_Node[T]]:
    """The same and where a `**` that stands for nothing leads to."""
    reached: dict[int, _Node[T]] = {}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node) not in reached:
            reached[id(node)] = node
            if node.across is not None:
                waiting.append(node.across)
    return list(reached.values())
