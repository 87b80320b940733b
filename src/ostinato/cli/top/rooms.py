"""Who gets how many lines of a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def share(room: int, wanted: Sequence[int]) -> list[int]:
    """Lines for each, fairly: nobody gets more than it wants while another wants for some. One line is for everybody.

    >>> share(10, [2, 30, 30]), share(100, [2, 3, 4]), share(0, [5, 5])
    ([2, 4, 4], [2, 3, 4], [1, 1])
    """
    given = [1] * len(wanted)
    while sum(given) < room and (short := [place for place, want in enumerate(wanted) if given[place] < want]):
        given[min(short, key=lambda place: given[place])] += 1
    return given
