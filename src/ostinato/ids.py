"""Monotonic ULIDs: 48 bits of milliseconds, 80 bits of randomness, 26 characters that sort by time."""

from __future__ import annotations

import os
import threading
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_RANDOM_BITS = 80


class Ulids:
    """A source of ids, each greater than the one before, from any thread and across fork.

    Identity must not repeat in a forked child, so the child starts from fresh randomness.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        return _text(self._take(1))

    def many(self, count: int) -> list[str]:
        """`count` ids in ascending order."""
        return _texts(self._take(count), count)

    def _take(self, count: int) -> int:
        """The first of as many numbers in a row."""
        with self._lock:
            fresh = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | (int.from_bytes(os.urandom(9), "big") << 4)
            first = max(fresh, self._last + 1)
            self._last = first + count - 1
        return first


def _texts(first: int, count: int) -> list[str]:
    """Ids in a row differ in their last four characters, so the others are written once per million."""
    pairs, texts, number, end = _PAIRS, list[str](), first, first + count
    while number < end:
        head, stop = _text(number)[:22], min(end, ((number >> 20) + 1) << 20)
        texts += [head + pairs[n >> 10 & 1023] + pairs[n & 1023] for n in range(number, stop)]
        number = stop
    return texts


def _text(number: int) -> str:
    pairs = _PAIRS
    high = number >> 70
    low = number & 0x3FFFFFFFFFFFFFFFFF
    return (
        pairs[high >> 50 & 1023]
        + pairs[high >> 40 & 1023]
        + pairs[high >> 30 & 1023]
        + pairs[high >> 20 & 1023]
        + pairs[high >> 10 & 1023]
        + pairs[high & 1023]
        + pairs[low >> 60]
        + pairs[low >> 50 & 1023]
        + pairs[low >> 40 & 1023]
        + pairs[low >> 30 & 1023]
        + pairs[low >> 20 & 1023]
        + pairs[low >> 10 & 1023]
        + pairs[low & 1023]
    )


new_id = Ulids()
"""The process's source of ids."""
