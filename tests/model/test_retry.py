"""When a failed attempt is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato import ConfigError, Retry

AMOUNTS = st.floats(0, 1e6, allow_nan=False)


def delays(policy: Retry, error: BaseException | None = None) -> list[float]:
    """All waits of a policy, one after the other, in the middle of their jitter."""
    found: list[float] = []
    while (delay := policy.delay(len(found) + 1, error)) is not None:
        found.append(delay)
    return found


@given(st.lists(AMOUNTS, max_size=10))
def test_n_delays_are_n_retries_are_n_plus_1_attempts(amounts: list[float]):
    """Each delay stands for one retry, in order."""
    policy = Retry(*amounts)
    assert len(amounts) + 1 == policy.attempts
    assert amounts == delays(policy)


def test_durations_are_written_as_everywhere():
    """Text and numbers are both fine."""
    assert delays(Retry("0s", 30, "5m")) == [0.0, 30.0, 300.0]


def test_no_retries():
    """One attempt and no more."""
    assert Retry.none().attempts == 1
    assert Retry.none().delay(1, ValueError()) is None


def test_exponential_delays_grow_up_to_the_longest():
    """2 s, 8 s, 32 s … and never more than the ceiling."""
    assert delays(Retry.exponential(5, longest="1m")) == [2.0, 8.0, 32.0, 60.0, 60.0]


def test_exponential_delays_may_be_many():
    """A thousand retries grow to the ceiling and not out of what a float can say."""
    assert sorted(set(delays(Retry.exponential(1000))))[-1:] == [3600.0]


@given(st.integers(0, 20), AMOUNTS, st.floats(1, 10), AMOUNTS)
def test_exponential_delays_never_fall(retries: int, first: float, factor: float, longest: float):
    """They rise until they stay."""
    found = delays(Retry.exponential(retries, first=first, factor=factor, longest=longest, jitter=0))
    assert retries == len(found)
    assert found == sorted(found)
    assert all(delay <= longest for delay in found)


@given(delay=st.floats(0.001, 1e6), jitter=st.floats(0, 1), spread=st.floats(0, 1))
def test_jitter_keeps_within_its_bounds(delay: float, jitter: float, spread: float):
    """A delay moves by at most its share, and never below zero."""
    moved = Retry(delay, jitter=jitter).delay(1, None, spread=spread)
    assert moved is not None
    assert moved >= 0
    assert delay * (1 - jitter) - 1e-9 <= moved <= delay * (1 + jitter) + 1e-9


def test_jitter_spreads():
    """Different runs wait differently, around the delay that was asked for."""
    policy = Retry("100s", jitter=0.25)
    assert [policy.delay(1, None, spread=spread) for spread in (0, 0.5, 1)] == [75.0, 100.0, 125.0]


def test_one_kind_of_exception_may_have_a_table_of_its_own():
    """The others keep the policy's."""
    policy = Retry("1m").on(TimeoutError, "1s", "2s")
    assert delays(policy, TimeoutError()) == [1.0, 2.0]
    assert delays(policy, ValueError()) == [60.0]


def test_a_rule_covers_subclasses():
    """As `except` does."""
    assert delays(Retry("1m", "1m").on(OSError, "1s"), ConnectionResetError()) == [1.0]


def test_never_fails_at_once():
    """Several kinds may be named together."""
    policy = Retry("1m").never(ValueError, KeyError)
    assert delays(policy, ValueError()) == []
    assert delays(policy, KeyError()) == []
    assert delays(policy, TypeError()) == [60.0]


def test_the_rule_given_last_is_asked_first():
    """A special case is added after the general one."""
    policy = Retry("1m").on(OSError, "5s").never(FileNotFoundError)
    assert delays(policy, FileNotFoundError()) == []
    assert delays(policy, PermissionError()) == [5.0]


def test_rules_make_a_new_policy():
    """The one they were added to stays as it is."""
    plain = Retry("1m", jitter=0.5)
    ruled = plain.on(ValueError, "1s")
    assert plain.rules == ()
    assert ruled.jitter == 0.5
    assert plain.delays == ruled.delays


def test_equal_policies_are_equal():
    """A policy is a value."""
    assert Retry("60s").never(ValueError) == Retry("1m").never(ValueError)
    assert Retry("60s") != Retry("61s")


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_jitter_is_a_share(jitter: float):
    """More than the whole delay would be a wait before now."""
    with pytest.raises(ConfigError, match="must be between 0 and 1"):
        Retry("1s", jitter=jitter)


@pytest.mark.parametrize(("retries", "factor"), [(-1, 2.0), (3, 0.5), (3, float("nan"))])
def test_exponential_refuses_what_would_not_grow(retries: int, factor: float):
    """The error names both numbers."""
    with pytest.raises(ConfigError, match="must be ≥ 0 and ≥ 1"):
        Retry.exponential(retries, factor=factor)


def test_a_bad_delay_is_refused():
    """The error says that it stands in a Retry."""
    with pytest.raises(ConfigError, match=r"^Retry: 'soon' is not a duration"):
        Retry("soon")


@pytest.mark.parametrize("kind", ["ValueError", ValueError("x"), int, None])
def test_a_rule_is_about_exceptions(kind: object):
    """What is not a class of exceptions is refused when declared, and not when the first attempt fails."""
    with pytest.raises(ConfigError, match="class of exceptions"):
        Retry("1s").on(kind, "1s")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="class of exceptions"):
        Retry("1s").never(kind)  # type: ignore[arg-type]
