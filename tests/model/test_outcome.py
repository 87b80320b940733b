"""How an attempt ended, and what follows from it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json, structs

from ostinato import Cancel, Fatal, Retry, RetryAfter, StoreUnavailable
from ostinato.model.change import AttemptEnded, Change, KeyFreed, RunCompleted, RunSettled
from ostinato.model.outcome import (
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    Cancelled,
    Done,
    Failed,
    GivenBack,
    Interrupted,
    Lost,
    Outcome,
    Settled,
    Unknown,
    failure,
    next_delay,
    rescue,
    settle,
)
from ostinato.model.retry import Rule
from ostinato.model.run import MOVES, Claimed, Orphan, Reason, State, may

POLICY = Retry("1s", "2s")

TEXTS = st.text(st.characters(codec=None, categories=None), max_size=50)  # NUL and lone surrogates included


def a_claimed_run(**fields: Any) -> Claimed:
    """A run as its worker gets it, at its first attempt."""
    run = Claimed("01RUN", 7, "enrich", "default", 1, "{}", 0, 0.0)
    return structs.replace(run, **fields)


def an_orphan(**fields: Any) -> Orphan:
    """A run whose worker died, certainly started, with attempts left."""
    orphan = Orphan("01RUN", 7, "enrich", "default", 1, 0, True, False, 3, "01DEAD", 2.5)
    return structs.replace(orphan, **fields)


def settled(outcome: Outcome, run: Claimed | None = None, policy: Retry = POLICY) -> list[Change]:
    return settle(run or a_claimed_run(), outcome, policy, worker="01WORKER", duration=1.5)


def only(kind: type[Any], changes: list[Change]) -> Any:
    """The one change of a kind."""
    (found,) = [change for change in changes if isinstance(change, kind)]
    return found


def error_of(change: RunSettled) -> Any:
    assert change.error is not None
    return json.decode(change.error)


# --- exceptions as outcomes


def test_any_exception_is_a_failure_named_by_its_class():
    """With its message and where it came from."""
    try:
        raise ValueError("no such artist")
    except ValueError as error:
        failed = failure(error)
    assert isinstance(failed, Failed)
    assert (
        failed.code,
        failed.message,
        failed.retriable,
        failed.delay,
    ) == ("ValueError", "no such artist", True, None)
    assert 'raise ValueError("no such artist")' in (failed.traceback or "")


def test_an_exception_without_a_message_is_named_at_least():
    """An empty message would say nothing."""
    failed = failure(KeyboardInterrupt())
    assert isinstance(failed, Failed)
    assert failed.message == "KeyboardInterrupt"


def test_fatal_is_not_retried():
    """The handler knows that there is no point."""
    failed = failure(Fatal("the track is gone"))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.message, failed.retriable) == ("fatal", "the track is gone", False)


def test_retry_after_carries_its_delay():
    """It is a request and no accident, so there is no traceback to keep."""
    failed = failure(RetryAfter("30s", "429 from the API"))
    assert isinstance(failed, Failed)
    assert (
        failed.code,
        failed.message,
        failed.delay,
        failed.traceback,
    ) == ("retry_after", "429 from the API", 30.0, None)


def test_cancel_is_a_cancellation():
    """The run is not wanted any more, says its handler."""
    assert Cancelled("customer left") == failure(Cancel("customer left"))


def test_an_unreachable_database_is_nobodys_failure():
    """The attempt is returned."""
    assert Interrupted("no route") == failure(StoreUnavailable("no route"))


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say what is wrong")


def test_an_exception_that_cannot_be_printed_is_a_failure_too():
    """A broken `__str__` must not take the settlement down with it."""
    failed = failure(Unprintable())
    assert isinstance(failed, Failed)
    assert failed.code == "Unprintable"


@pytest.mark.parametrize("kind", [ValueError, Fatal, StoreUnavailable, Cancel, lambda text: RetryAfter("1s", text)])
@given(text=TEXTS)
def test_what_an_exception_says_can_be_stored(kind: Any, text: str):
    """NUL and lone surrogates, which databases refuse, do not get into a settlement."""
    error = json.encode(structs.asdict(only(RunSettled, settled(failure(kind(text))))))
    assert b"\\u0000" not in error


@pytest.mark.parametrize("reason", [None, 42, ValueError("x")])
def test_a_reason_for_cancelling_is_kept_as_text(reason: Any):
    """Handlers raise `Cancel(error)`, and views read text."""
    stored = error_of(only(RunSettled, settled(failure(Cancel(reason)))))
    assert isinstance(stored["message"], str)


def test_long_messages_and_tracebacks_are_cut():
    """The beginning of the message and the end of the traceback say most."""
    failed = failure(ValueError("x" * 100_000))
    assert isinstance(failed, Failed)
    assert len(failed.message) == MESSAGE_LIMIT
    assert len(failed.traceback or "") == TRACEBACK_LIMIT


# --- settling


def test_done_completes():
    """The output is kept as it was encoded."""
    assert [RunCompleted("01RUN", 7, Raw(b"[1]"))] == settled(Done(Raw(b"[1]")))


def test_a_failed_attempt_is_retried_after_the_policys_delay():
    """And it is kept for people to read."""
    changes = settled(Failed("ValueError", "bad", traceback="File …"), a_claimed_run(attempt=2))
    held = only(RunSettled, changes)
    assert (held.state, held.reason, held.delay, held.refund) == (State.HELD, Reason.RETRY, 2.0, 0)
    assert error_of(held) == {"code": "ValueError", "message": "bad"}
    assert AttemptEnded("01RUN", 7, 2, "ValueError", "bad", "01WORKER", 1.5, "File …") == only(AttemptEnded, changes)


def test_the_last_attempt_fails_the_run():
    """Nothing is left in the table of delays."""
    changes = settled(Failed("ValueError", "bad"), a_claimed_run(attempt=3))
    assert State.FAILED is only(RunSettled, changes).state
    assert only(AttemptEnded, changes).attempt == 3


def test_what_is_not_retriable_fails_at_the_first_attempt():
    """Whatever the policy says."""
    assert State.FAILED is only(RunSettled, settled(Failed("fatal", "no", retriable=False))).state


def test_the_handlers_delay_replaces_the_policys():
    """But the number of attempts is the policy's."""
    asked = Failed("retry_after", "later", delay=99.0)
    assert only(RunSettled, settled(asked)).delay == 99.0
    assert State.FAILED is only(RunSettled, settled(asked, a_claimed_run(attempt=3))).state


def test_an_exceptions_own_rule_decides():
    """The policy is asked with the exception itself."""
    policy = POLICY.never(KeyError)
    assert State.FAILED is only(RunSettled, settled(Failed("KeyError", "x", KeyError()), policy=policy)).state
    assert State.HELD is only(RunSettled, settled(Failed("ValueError", "x", ValueError()), policy=policy)).state


def test_cancelled_is_cancelled_with_its_reason():
    """A cancelled attempt is no failure, so none is kept."""
    changes = settled(Cancelled("customer left"))
    assert State.CANCELLED is only(RunSettled, changes).state
    assert error_of(only(RunSettled, changes)) == {"code": "cancelled", "message": "customer left"}
    assert len(changes) == 1


@pytest.mark.parametrize("suspect", [False, True])
def test_what_is_given_back_costs_nothing(suspect: bool):
    """It is ready at once, with its attempt returned, and a suspect stays one."""
    given_back = only(RunSettled, settled(GivenBack(), a_claimed_run(suspect=suspect)))
    assert (State.READY, 1, suspect, 0.0) == (
        given_back.state,
        given_back.refund,
        given_back.suspect,
        given_back.delay,
    )


def test_an_interrupted_attempt_is_returned_and_kept():
    """The database was away: nobody's budget pays, and people can see it."""
    changes = settled(Interrupted("gone"))
    held = only(RunSettled, changes)
    assert (held.state, held.refund) == (State.HELD, 1)
    assert held.delay > 0
    assert only(AttemptEnded, changes).code == "store_unavailable"


def test_an_unknown_function_parks_the_run():
    """With the attempt returned, and an error that names the function, the worker and the remedy."""
    held = only(RunSettled, settled(Unknown()))
    assert (held.state, held.reason, held.refund) == (State.HELD, Reason.PARKED, 1)
    assert held.delay > 0
    message = error_of(held)["message"]
    assert message.startswith("worker 01WORKER serves this queue but has no function 'enrich'; start a worker that")


@pytest.mark.parametrize("outcome", [Lost(), Settled()])
def test_nothing_is_written_for_a_run_that_is_not_ours_any_more(outcome: Outcome):
    """Somebody else has it, or it was settled already."""
    assert settled(outcome, a_claimed_run(key="k")) == []


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Done(Raw(b"1")), State.COMPLETED),
        (Failed("fatal", "no", retriable=False), State.FAILED),
        (Cancelled("no"), State.CANCELLED),
    ],
)
def test_a_run_that_ends_frees_its_key(outcome: Outcome, state: State):
    """Whether the key may really be taken again depends on its mode and the state."""
    assert KeyFreed("01RUN", 7, state) == only(KeyFreed, settled(outcome, a_claimed_run(key="k")))


@pytest.mark.parametrize("outcome", [Failed("x", "x"), GivenBack(), Unknown(), Interrupted("x")])
def test_a_run_that_goes_on_keeps_its_key(outcome: Outcome):
    """Nobody else may take it meanwhile."""
    assert [change for change in settled(outcome, a_claimed_run(key="k")) if isinstance(change, KeyFreed)] == []


# --- delays


@given(st.text(max_size=30), st.integers(1, 5))
def test_a_runs_delay_is_the_same_whenever_it_is_asked_for(run_id: str, attempt: int):
    """What is announced is what was stored."""
    run, policy = a_claimed_run(id=run_id, attempt=attempt), Retry.exponential(5, jitter=1)
    failed = Failed("x", "x")
    assert next_delay(run, failed, policy) == next_delay(run, failed, policy)


def test_different_runs_are_spread_over_the_jitter():
    """A thousand runs that fail together do not return together."""
    policy = Retry("100s", jitter=0.5)
    found = [next_delay(a_claimed_run(id=f"01RUN{number}"), Failed("x", "x"), policy) for number in range(1000)]
    times = sorted(delay for delay in found if delay is not None)
    assert times[0] < 55
    assert times[-1] > 145
    assert max(after - before for before, after in pairwise(times)) < 5


# --- moves

OUTCOMES = st.one_of(
    st.just(Done(Raw(b"null"))),
    st.builds(
        Failed,
        st.text(max_size=5),
        st.text(max_size=5),
        st.sampled_from([None, ValueError(), TimeoutError()]),
        retriable=st.booleans(),
        delay=st.none() | st.floats(0, 100),
    ),
    st.builds(Cancelled, st.text(max_size=5)),
    st.builds(Interrupted, st.text(max_size=5)),
    st.sampled_from([GivenBack(), Lost(), Settled(), Unknown()]),
)
POLICIES = st.builds(
    lambda delays, rule: Retry(*delays, jitter=0.5).on(*rule),
    st.lists(st.floats(0, 10), max_size=4),
    st.tuples(st.sampled_from([ValueError, OSError]), st.floats(0, 10)),
)
TARGETS = {move.after for move in MOVES if move.before is State.RUNNING}


@given(
    outcome=OUTCOMES,
    policy=POLICIES,
    attempt=st.integers(1, 6),
    suspect=st.booleans(),
    key=st.none() | st.just("k"),
)
def test_every_outcome_makes_a_permitted_move(
    outcome: Outcome, policy: Retry, attempt: int, suspect: bool, key: str | None
):
    """Whatever happens to a running run, it goes where the table of moves says, and once."""
    run = a_claimed_run(attempt=attempt, suspect=suspect, key=key)
    changes = settled(outcome, run, policy)
    moves = [change for change in changes if isinstance(change, RunCompleted | RunSettled)]
    states = [State.COMPLETED if isinstance(change, RunCompleted) else change.state for change in moves]
    assert len(states) <= 1
    assert set(states) <= TARGETS
    assert all(getattr(change, "run_id", None) == run.id for change in changes)
    assert all(getattr(change, "lease_no", None) == run.lease_no for change in changes)
    assert all(0 <= change.refund <= 1 and change.delay >= 0 for change in moves if isinstance(change, RunSettled))
    freed = any(isinstance(change, KeyFreed) for change in changes)
    assert freed == (key is not None and any(state.ended for state in states))


@given(
    attempt=st.integers(1, 6),
    uncounted=st.integers(0, 1),
    certain=st.booleans(),
    allowed=st.integers(1, 6),
)
def test_every_rescue_makes_a_permitted_move(attempt: int, uncounted: int, certain: bool, allowed: int):
    """A run whose worker died is ready again or failed, is a suspect, and its attempt is kept."""
    orphan = an_orphan(attempt=attempt, uncounted=uncounted, certain=certain, attempts_allowed=allowed)
    changes = rescue(orphan)
    change = only(RunSettled, changes)
    assert change.state in {move.after for move in MOVES if move.verb == "rescue"}
    assert change.suspect
    assert only(AttemptEnded, changes).code == "worker_died"
    assert (change.state is State.FAILED) == any(isinstance(each, KeyFreed) for each in changes)


def test_every_state_can_be_reached_and_every_one_that_has_not_ended_can_be_left():
    """The table of moves has no dead ends; ended runs are left by a person's retry alone."""
    assert set(State) == {move.after for move in MOVES}
    assert {state for state in State if not state.ended} <= {move.before for move in MOVES}
    assert {"retry"} == {move.verb for move in MOVES if move.before is not None and move.before.ended}


def test_may_reads_the_table():
    """A completed run cannot be retried, a failed one can."""
    assert may("retry", State.FAILED)
    assert not may("retry", State.COMPLETED)
    assert not may("fly", State.READY)


# --- rescue


def test_an_uncertain_start_is_returned_and_makes_a_suspect():
    """Nobody can tell whether it had started, so it does not pay, yet."""
    change = only(RunSettled, rescue(an_orphan(certain=False)))
    assert (change.state, change.refund, change.suspect, change.uncounted) == (State.READY, 1, True, 1)


def test_a_certain_start_is_counted():
    """A run that takes its worker down has used up an attempt."""
    change = only(RunSettled, rescue(an_orphan(attempt=2)))
    assert (change.state, change.refund, change.suspect, change.uncounted) == (State.READY, 0, True, 0)


def test_the_start_in_doubt_is_counted_when_it_happens_again():
    """Twice in a row is no coincidence."""
    change = only(RunSettled, rescue(an_orphan(attempt=1, uncounted=1)))
    assert (change.state, change.refund) == (State.READY, -1)


def test_a_run_with_no_attempts_left_fails_and_says_why():
    """The error names what happened and how often, the attempt names the worker."""
    changes = rescue(an_orphan(attempt=3))
    assert error_of(only(RunSettled, changes)) == {
        "code": "worker_died",
        "message": "the worker died 3 times while it ran this",
    }
    assert only(AttemptEnded, changes).message == "worker 01DEAD died while it held this run; attempt 3 of 3"
    assert KeyFreed("01RUN", 7, State.FAILED) == only(KeyFreed, changes)


class Life:
    """A run's counters, claimed and rescued as a store does it."""

    def __init__(self, allowed: int) -> None:
        self.allowed, self.attempt, self.uncounted, self.lease_no = allowed, 0, 0, 0
        self.suspect, self.state = False, State.READY

    def kill_a_worker(self, *, certain: bool) -> None:
        """Claims it and lets its worker die. Suspects are claimed alone, so their start is certain."""
        self.attempt, self.lease_no = self.attempt + 1, self.lease_no + 1
        orphan = an_orphan(
            lease_no=self.lease_no,
            attempt=self.attempt,
            uncounted=self.uncounted,
            certain=certain or self.suspect,
            attempts_allowed=self.allowed,
        )
        change = only(RunSettled, rescue(orphan))
        self.attempt -= change.refund
        self.state, self.suspect, self.uncounted = change.state, change.suspect, change.uncounted


@given(allowed=st.integers(1, 8))
def test_a_killer_ends_as_failed_after_exactly_its_attempts(allowed: int):
    """Each certain start counts, and the last one is the last."""
    run = Life(allowed)
    starts = 0
    while run.state is State.READY:
        run.kill_a_worker(certain=True)
        starts += 1
    assert (State.FAILED, allowed, allowed) == (run.state, starts, run.attempt)


@given(allowed=st.integers(2, 8))
def test_a_killer_that_was_claimed_with_others_first_kills_no_more_workers(allowed: int):
    """The first start, in doubt, is counted in the end: a killer takes no worker more than any other."""
    run = Life(allowed)
    deaths = 0
    while run.state is State.READY:
        run.kill_a_worker(certain=False)
        deaths += 1
    assert (State.FAILED, allowed, allowed) == (run.state, deaths, run.attempt)


def test_a_neighbour_of_a_killer_loses_nothing():
    """Claimed together with a killer, never started, then alone: all its attempts are there."""
    run = Life(1)
    run.kill_a_worker(certain=False)
    assert (run.state, run.attempt, run.suspect) == (State.READY, 0, True)


def test_rules_are_values():
    """Policies with rules can be compared, and declared."""
    assert Rule(ValueError, (1.0,)) == Retry().on(ValueError, "1s").rules[0]
