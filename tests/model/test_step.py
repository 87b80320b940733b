"""Who is who among steps, and when one is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ostinato import Fatal, Retry, RetryAfter
from ostinato.model.step import StepError, error_in, identity, retry_in

CALLS = some.tuples(some.text(max_size=5), some.binary(max_size=5), some.integers(0, 3))


@given(some.lists(CALLS, unique=True, max_size=30))
def test_different_calls_have_different_ids(calls: list[tuple[str, bytes, int]]):
    """Names, arguments and repeats are kept apart, whatever is in them."""
    usable = [call for call in calls if "\x00" not in call[0]]  # names can be printed
    assert len({identity(*call) for call in usable}) == len(usable)


def test_an_id_is_the_same_for_ever():
    """Runs that wait for a year find their steps under it."""
    assert identity("fetch", b'a[["x"],{}]', 0) == "1c712b686c789c4d9e8ecb03"
    assert identity("fetch", b'a[["x"],{}]', 1) != identity("fetch", b'a[["x"],{}]', 0)


@pytest.mark.parametrize(
    ("error", "retry", "retried", "expected"),
    [
        (ValueError(), Retry("1s", "5s"), 0, 1.0),
        (ValueError(), Retry("1s", "5s"), 1, 5.0),
        (ValueError(), Retry("1s", "5s"), 2, None),
        (ValueError(), Retry.none(), 0, None),
        (ValueError(), Retry("0s"), 0, 0.0),
        (Fatal("no"), Retry("1s"), 0, None),
        (ValueError(), Retry("1s").never(ValueError), 0, None),
        (KeyError(), Retry("1s").on(KeyError, "9s"), 0, 9.0),
        (RetryAfter("30s"), Retry("1s"), 0, 30.0),
        (RetryAfter("30s"), Retry("1s"), 1, None),
    ],
)
def test_when_a_step_is_tried_again(error: Exception, retry: Retry, retried: int, expected: float | None):
    """By the policy; a handler may ask for another time, but not for another try."""
    assert retry_in(error, retry, retried, step="s") == expected


def test_jitter_is_the_same_whenever_it_is_asked():
    """And different for different steps."""
    retry = Retry("10s", jitter=0.5)
    delays = [retry_in(ValueError(), retry, 0, step=step) for step in ("a", "a", "b")]
    assert delays[0] == delays[1] != delays[2]
    assert all(delay is not None and 5 <= delay <= 15 for delay in delays)


def test_an_error_is_read_as_it_was_stored():
    """With the run whose end it was, if it was one."""
    assert error_in('{"code":"x","message":"y"}') == StepError("x", "y")
    assert error_in('{"code":"x","run_id":"r","message":"y"}') == StepError("x", "y", "r")
