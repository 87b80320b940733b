"""Ids: monotonic ULIDs, from any thread and across fork."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from ostinato import ids
from ostinato.ids import Ulids, new_id

CROCKFORD = set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")

FORKING = """
import os
from ostinato.ids import new_id
new_id()
reader, writer = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        os.write(writer, "".join(new_id.many(100)).encode())
        os._exit(0)
os.wait(), os.wait()
print(os.read(reader, 6000).decode() + "".join(new_id.many(100)))
"""


def value(text: str) -> int:
    """The number that an id stands for."""
    alphabet = sorted(CROCKFORD)
    number = 0
    for character in text:
        number = number * 32 + alphabet.index(character)
    return number


def test_an_id_is_26_characters_of_crockford():
    """Nobody has to tell O from 0."""
    made = new_id()
    assert len(made) == 26
    assert set(made) <= CROCKFORD


def test_an_id_begins_with_its_time():
    """The first 48 bits are milliseconds since 1970, as in any ULID."""
    before = time.time_ns() // 1_000_000
    made = value(Ulids()()) >> 80
    assert before <= made <= time.time_ns() // 1_000_000


def test_ids_in_a_row_ascend():
    """Sorting by id is sorting by the order in which they were made."""
    made = [new_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == 10_000


def test_ids_ascend_when_the_clock_goes_back(monkeypatch):
    """A clock that is set back does not repeat or reorder ids."""
    source = Ulids()
    first = source()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000)
    assert first < source() < source()


@given(st.lists(st.integers(0, 3000), max_size=5))
def test_many_are_as_good_as_one_by_one(counts: list[int]):
    """Bulks are distinct, ascending, follow each other and have the right length."""
    source = Ulids()
    bulks = [source.many(count) for count in counts]
    made = [each for bulk in bulks for each in bulk]
    assert counts == [len(bulk) for bulk in bulks]
    assert made == sorted(set(made))


@given(first=st.integers(0, 2**128 - 5000), count=st.integers(0, 5000))
def test_the_fast_path_writes_the_same_text(first: int, count: int):
    """Ids of a bulk share their head where they can, and nowhere else."""
    texts = ids._texts(first, count)
    assert [first + place for place in range(count)] == [value(text) for text in texts]


def test_a_bulk_may_cross_a_million():
    """The shared head changes in the middle of a bulk."""
    first = (7 << 20) - 3
    assert list(range(first, first + 6)) == [value(text) for text in ids._texts(first, 6)]


def test_threads_never_get_the_same_id():
    """Each thread's ids ascend, and no two threads share one."""
    made: dict[int, list[str]] = {}

    def make(number: int) -> None:
        made[number] = [new_id() for _ in range(2000)]

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each == sorted(each) for each in made.values())
    assert len({run_id for each in made.values() for run_id in each}) == 16_000


def test_forked_processes_never_get_the_same_id():
    """Children start from fresh randomness, and not from where their parent was."""
    answer = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True).stdout.strip()
    made = {answer[place : place + 26] for place in range(0, len(answer), 26)}
    assert len(made) == 300
