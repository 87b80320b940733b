"""`ostinato runs show` draws the steps of a run, and `ostinato runs retry --from` begins again at one of them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ostinato import App, Retry, Run, StepFailed
from ostinato.cli.run_views import Everything, show_everything
from ostinato.cli.step_views import ASCII, Waterfall
from ostinato.model.run import State
from ostinato.model.step import Kind, Status, StepError
from ostinato.model.view import RunView, StepView
from ostinato.testing import Drain
from tests.cli.conftest import Cli

BEGAN = datetime(2030, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def a_run(state: State = State.COMPLETED, took: float | None = 100.0, **fields: Any) -> RunView:
    return RunView(
        id="01RUN",
        function="order",
        queue="default",
        state=state,
        invoked_by="api",
        created_at=BEGAN,
        run_at=BEGAN,
        started_at=BEGAN,
        ended_at=None if took is None else at(took),
        **fields,
    )


def a_step(name: str, begin: float, end: float | None, status: str = "completed", **fields: Any) -> StepView:
    given = {"id": f"{name}-id", "index": 0, "kind": Kind.STEP, **fields}
    return StepView(
        name=name, status=Status(status), started_at=at(begin), ended_at=None if end is None else at(end), **given
    )


def drawn(run: RunView, *steps: StepView, width: int = 80, now: float = 100.0, **options: Any) -> list[str]:
    """The lines below the head, as a terminal of this width without colours shows them."""
    children = options.pop("children", ())
    fall = Waterfall(run, steps, children, width=width, now=at(now), marks=ASCII)
    return [line.plain.rstrip() for line in fall.draw(**options)][1:]


def bar(line: str, name: int = 8) -> str:
    """The bar alone, in a terminal of 80 columns."""
    return line[name + 21 : 66].rstrip()


# --- times


def shown(run: RunView, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The facts by their names."""
    show_everything(Everything(run, [], [], served=True))
    lines = [line.split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    return {line[0]: line[1].strip() for line in lines if len(line) > 1}


def test_the_times_by_which_it_must_start_and_end(capsys: pytest.CaptureFixture[str]):
    """As long as they lie ahead of it."""
    times: dict[str, Any] = {"start_by": at(60), "finish_by": at(120)}
    waiting = msgspec.structs.replace(a_run(State.READY, took=None, **times), started_at=None)
    assert {"start by", "end by"} <= shown(waiting, capsys).keys()
    running = shown(a_run(State.RUNNING, took=None, **times), capsys)
    assert "start by" not in running
    assert "12:02:00" in running["end by"]
    assert {"start by", "end by"}.isdisjoint(shown(a_run(**times), capsys))


def test_how_long_it_took_since_its_last_and_its_first_start(capsys: pytest.CaptureFixture[str]):
    """A run that slept, or was tried again, has two answers."""
    again = shown(a_run(claimed_at=at(90), lease_no=2), capsys)
    assert again["took"] == "10 s, 1 min 40 s from the first start"
    assert "12:01:30" in again["last start"]
    for once in ({"lease_no": 1}, {"lease_no": 2, "copied_from": "01OTHER"}):
        found = shown(a_run(claimed_at=at(0.001), **once), capsys)
        assert "from the first start" not in found["took"]
        assert "last start" not in found


def test_a_run_whose_worker_is_gone_says_so(capsys: pytest.CaptureFixture[str]):
    """From when the lease is over until somebody has taken over."""
    orphan = a_run(State.RUNNING, took=None, locked_by="W", lease_expires_at=datetime.now(UTC) - timedelta(seconds=1))
    found = shown(orphan, capsys)
    assert found["state"] == "running, lease over"
    assert "takes over" in found["why"]
    held = a_run(State.RUNNING, took=None, locked_by="W", lease_expires_at=datetime.now(UTC) + timedelta(seconds=60))
    assert shown(held, capsys)["state"] == "running"


# --- bars


def test_bars_are_on_the_runs_own_axis():
    """Each from when it began to when it ended; what is too short for that is a mark."""
    first, second, short = drawn(
        a_run(), a_step("first", 0, 50), a_step("second", 50, 100, kind=Kind.SLEEP), a_step("short", 99.9, 99.901)
    )
    assert "#" * 19 == bar(first)
    assert " " * 18 + "." * 19 == bar(second)
    assert " " * 36 + "|" == bar(short)
    assert ["50 s", "50 s", "1 ms"] == [line[-4:] for line in (first, second, short)]


@pytest.mark.parametrize("width", [80, 140, 10_000])
def test_lines_fit_the_terminal(width: int):
    """Whatever the names; where there is no end of a line, bars have one."""
    lines = drawn(a_run(), a_step("fetch-metadata-" * 9, 0, 1), a_step("日本語" * 20, 0, 100), width=width)
    assert all(len(line) <= min(width, 140) for line in lines)
    assert all("..." in line for line in lines)


def test_a_run_of_no_time_at_all():
    """Nothing is divided by zero."""
    (line,) = drawn(a_run(took=0.0), a_step("only", 0, 0))
    assert "|" in line


def test_what_came_from_another_run_is_marked():
    """It happened before this one began."""
    run = a_run(copied_from="01BEFORE")
    steps = a_step("old", -500, -400), a_step("new", 0, 50)
    old, new = drawn(run, *steps)
    assert ("<", "#" * 19) == (bar(old), bar(new))
    assert Waterfall(run, steps, width=80, marks=ASCII).title == "steps: 2 completed; < from run 01BEFORE"


# --- words


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": Kind.SLEEP, "wake_at": at(7500)}, "sleeps until 14:05 UTC, 2 h left"),
        ({"kind": Kind.SLEEP, "wake_at": at(86400)}, "sleeps until 2030-01-02 12:00 UTC, 23 h left"),
        ({"kind": Kind.SLEEP, "wake_at": at(50)}, "sleeps until 12:00 UTC, due now"),
        ({"kind": Kind.EVENT, "awaits": "hitl.approved", "wake_at": at(86400)}, "waits for hitl.approved, 23 h left"),
        ({"kind": Kind.EVENT, "awaits": "a.*", "matches": "x == 1"}, "waits for a.* where x == 1, for ever"),
        ({"kind": Kind.INVOKE, "child": "01CHILD"}, "waits for run 01CHILD of order, running"),
        ({"kind": Kind.INVOKE, "child": "01GONE"}, "waits for run 01GONE"),
        ({"retry_count": 2, "wake_at": at(130)}, "2 retries; tried again at 12:02 UTC, 30 s left"),
    ],
)
def test_a_pending_step_says_what_it_waits_for(fields: dict[str, Any], said: str):
    """And for how long."""
    child = a_run(State.RUNNING, None)
    run = a_run(State.HELD, None)
    _, line = drawn(run, a_step("wait", 0, None, "pending", **fields), children=[_with_id(child, "01CHILD")])
    assert f"  {said}" == line


def _with_id(run: RunView, run_id: str) -> RunView:
    return RunView(**{**{name: getattr(run, name) for name in run.__struct_fields__}, "id": run_id})


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (a_step("x", 0, 1, "failed", error=StepError("ValueError", "two\nlines")), "ValueError: two lines"),
        (a_step("x", 0, 1, retry_count=1), "1 retry"),
        (a_step("x", 0, 1, kind=Kind.INVOKE, child="01GONE"), "run 01GONE"),
        (a_step("x", 0, 1, kind=Kind.EVENT, awaits="a.b"), "no a.b came in time"),
        (a_step("x", 0, 1, kind=Kind.EVENT, awaits="a.b", event_id="01EVENT"), "got event 01EVENT"),
    ],
)
def test_an_ended_step_says_what_became_of_it(step: StepView, said: str):
    """In a line of its own."""
    _, line = drawn(a_run(), step)
    assert f"  {said}" == line


@pytest.mark.parametrize(
    ("state", "said"),
    [(State.CANCELLED, "not ended, since the run was cancelled"), (State.FAILED, "not ended")],
)
def test_a_step_that_its_run_has_left_behind(state: State, said: str):
    """It waits for nothing any more."""
    _, line = drawn(a_run(state), a_step("nap", 0, None, "pending", kind=Kind.SLEEP, wake_at=at(999)))
    assert f"  {said}" == line


# --- many


def test_of_many_steps_both_ends_are_shown_and_what_is_not_completed():
    """What is left out is counted, and everything can be asked for."""
    steps = [a_step("item", place / 10, place / 10, index=place) for place in range(300)]
    steps[150] = a_step("item", 15, None, "running")
    lines = drawn(a_run(State.RUNNING, None), *steps)
    assert ["item", "item#2"] == [line.split()[0] for line in lines[:2]]
    assert "... 135 more; all of them: --all-steps" == lines[15]
    assert lines[16].startswith("item#151")
    assert "... 134 more; all of them: --all-steps" == lines[17]
    assert (33, "item#300") == (len(lines), lines[-1].split()[0])
    assert 300 == len(drawn(a_run(State.RUNNING, None), *steps, everything=True))


# --- the program


def orders(url: str) -> App:
    """An app whose function fails at its second step, unless it is told otherwise."""
    app = App(url)

    @app.function(retry=Retry.none())
    async def child() -> str:
        return "fed"

    @app.function(retry=Retry.none())
    async def order(run: Run, declined: bool) -> str:
        await run.step("reserve", lambda: "reserved")
        await run.invoke("feed", child)
        try:
            await run.step("charge", charge, declined)
        except StepFailed:
            await run.wait_for("approval", "order.approved", timeout="1d")
        return "shipped"

    async def charge(declined: bool) -> None:
        if declined:
            raise ValueError("the card was declined")

    return app


def done(app: App, **given: Any) -> str:
    """The id of a run that was executed as far as it goes."""

    async def enqueue() -> str:
        return (await app.enqueue("order", given)).id

    Drain(app).sync()
    run_id = asyncio.run(enqueue())
    Drain(app).sync()
    return run_id


def test_a_run_is_shown_with_its_steps(url: str, cli: Cli):
    """Names, kinds, what became of them, and what the run waits for; everything as JSON."""
    run_id = done(orders(url), declined=True)

    shown = cli.does("runs", "show", run_id)

    assert "steps: 1 pending, 2 completed, 1 failed" in shown
    assert "it waits for an event, until " in shown
    assert "  ValueError: the card was declined\n" in shown
    assert "  waits for order.approved, 23 h left\n" in shown
    run = cli.reads("runs", "show", run_id)
    assert ["reserve", "feed", "charge", "approval"] == [step["name"] for step in run["steps"]]
    assert ["completed", "completed", "failed", "pending"] == [step["status"] for step in run["steps"]]
    assert (1, None, [run_id]) == (
        run["pending_steps"],
        run["event_id"],
        [child["parent"] for child in run["children"]],
    )
    assert f"  run {run['children'][0]['id']} of child, completed\n" in shown
    assert f"run {run_id} waits for it" in cli.does("runs", "show", run["children"][0]["id"])
    assert "held, waits for event, times out in 23 h" in cli.does("runs", "list", "--function", "order")


def test_a_run_goes_again_from_a_step(url: str, cli: Cli):
    """A new one, whose id is printed; it says where it comes from."""
    app = orders(url)
    run_id = done(app, declined=False)

    copy = cli.does("runs", "retry", run_id, "--from", "charge").strip()

    Drain(app).sync()
    shown = cli.does("runs", "show", copy)
    assert f"copied from  run {run_id}" in shown
    assert f"« from run {run_id}" in shown or f"< from run {run_id}" in shown
    assert "completed" == cli.reads("runs", "show", copy)["state"]


def test_what_cannot_go_again_from_a_step_is_refused(url: str, cli: Cli):
    """With the names of the steps, or what is wrong with the question."""
    run_id = done(orders(url), declined=False)
    assert "has no step 'chrage'; its steps are 'reserve', 'feed', 'charge'" in cli.fails(
        "runs", "retry", run_id, "--from", "chrage"
    )
    assert "--from is about one run" in cli.fails("runs", "retry", run_id, run_id, "--from", "charge", code=2)
    assert "name runs by their IDs" in cli.fails("runs", "retry", "--from", "charge", code=2)
