"""Globs over event types: `*` stands for letters within a segment, `**` for any number of whole segments, also none.

Segments are split at `.` and `/`, which are not the same: `price.*` does not mean `price/changed`. What a `**` stands
for begins with the separator before it, and has any separators inside. No regular expressions: one with eight stars
took seconds, and globs come from users.
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


def checked(glob: object) -> str:
    """The glob, or an error that says what is wrong with it."""
    if not isinstance(glob, str):
        raise ConfigError(f"glob {glob!r} must be text, like 'price.*'")
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

    >>> matches("price.*", "price.changed"), matches("price.*", "price.list.changed"), matches("**.b", "a.b")
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
        ends = {id(node.here): node.here for node in _walk(self._root, segments(event_type))}
        for values in ends.values():
            yield from values


class _Node(Generic[T]):
    """A place in the tree of globs, and what may come next.

    A `**` has two: one where it stands for nothing yet, and `inside`, which can be stayed at. What follows is shared.
    """

    __slots__ = ("across", "here", "inside", "literal", "separator", "wild")

    def __init__(self, *, separator: str = "", inside: _Node[T] | None = None) -> None:
        self.separator = separator
        self.inside = inside
        self.here: list[T] = inside.here if inside else []
        self.literal: dict[Segment, _Node[T]] = inside.literal if inside else {}
        self.wild: _Wild[T] = inside.wild if inside else _Wild()
        self.across: dict[str, _Node[T]] = inside.across if inside else {}

    def place_of(self, glob: Sequence[Segment]) -> _Node[T]:
        """Where a glob ends, made if it is not there."""
        node: _Node[T] = self
        for segment in glob:
            node = node._child(segment)
        return node

    def _child(self, segment: Segment) -> _Node[T]:
        if segment.text == ACROSS:
            return self.across.setdefault(segment.separator, _across(segment.separator))
        if "*" in segment.text:
            return self.wild.child(segment)
        return self.literal.setdefault(segment, _Node())

    def following(self, segment: Segment, *, first: bool) -> Iterator[_Node[T]]:
        """Where one segment leads to. Before the first of a type there is no separator, whatever the glob says."""
        if self.inside is not None and (first or self.inside is self or self.separator == segment.separator):
            yield self.inside
        for separator in ("", *SEPARATORS) if first else (segment.separator,):
            if (child := self.literal.get(Segment(separator, segment.text))) is not None:
                yield child
            yield from self.wild.find(separator, segment.text)


def _across(separator: str) -> _Node[T]:
    inside: _Node[T] = _Node()
    inside.inside = inside
    return _Node(separator=separator, inside=inside)


class _Wild(Generic[T]):
    """Segments with stars, by what they begin and end with, so that only those are tried of which both are there."""

    __slots__ = ("_by_ends", "_lengths")

    def __init__(self) -> None:
        self._by_ends: dict[tuple[str, str, str], dict[str, _Node[T]]] = {}
        self._lengths: dict[tuple[int, int], None] = {}

    def child(self, segment: Segment) -> _Node[T]:
        begin, _, rest = segment.text.partition("*")
        end = rest.rpartition("*")[2]
        self._lengths[len(begin), len(end)] = None
        return self._by_ends.setdefault((segment.separator, begin, end), {}).setdefault(segment.text, _Node())

    def find(self, separator: str, text: str) -> Iterator[_Node[T]]:
        for begin, end in self._lengths:
            if begin + end <= len(text):
                ends = (separator, text[:begin], text[len(text) - end :])
                for glob, child in self._by_ends.get(ends, {}).items():
                    if fits(glob, text):
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
            waiting.extend(node.across.values())
    return list(reached.values())
