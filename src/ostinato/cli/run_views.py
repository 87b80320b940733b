"""Runs as tables, as pages and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import to_builtins

from ..model.run import State
from .output import as_json, console, cut, facts, show, table
from .step_views import show_waterfall
from .words import COLOURS, ago, attempts, is_orphaned, moment, span, state, took, why_held

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ..model.view import AttemptView, RunView, StepView


def run_as_json(run: RunView) -> dict[str, Any]:
    """A run's fields, and the words for people that follow from them."""
    derived = {"status": run.status, "held_because": run.held_because, "event_id": run.event_id}
    return {**to_builtins(run, enc_hook=str), **derived}


class Everything(NamedTuple):
    """What is known of a run."""

    run: RunView
    steps: Sequence[StepView]
    children: Sequence[RunView]
    served: bool
    """Whether anybody works on its queue."""


def everything_as_json(found: Everything) -> dict[str, Any]:
    return {
        **run_as_json(found.run),
        "served": found.served,
        "steps": [to_builtins(step, enc_hook=str) for step in found.steps],
        "children": [run_as_json(child) for child in found.children],
    }


def show_runs(runs: Sequence[RunView]) -> None:
    """A line for each run; the columns that a terminal has no room for are left out."""
    width, now = console().width, datetime.now(UTC)
    columns = [column for column in _COLUMNS if width >= column.from_width]
    made = table(
        *(column.name for column in columns),
        right=("attempt", "took"),
        flexible=("function", "state", "error"),
    )
    for run in runs:
        made.add_row(*(column.cell(run, now) for column in columns))
    show(made)


class _Column(NamedTuple):
    name: str
    from_width: int
    cell: Callable[[RunView, datetime], str | Text]


_COLUMNS = (
    _Column("run", 0, lambda run, _: run.id),
    _Column("function", 0, lambda run, _: cut(run.function)),
    _Column("queue", 120, lambda run, _: run.queue),
    _Column("state", 0, lambda run, now: _coloured(state(run, now), run.state)),
    _Column("attempt", 0, lambda run, _: attempts(run)),
    _Column("created", 0, lambda run, now: ago(run.created_at, now)),
    _Column("took", 100, lambda run, now: _span(took(run, now))),
    _Column("error", 100, lambda run, _: cut(f"{run.error.code}: {run.error.message}" if run.error else "")),
)


def show_everything(found: Everything, *, all_steps: bool = False) -> None:
    screen, run = console(), found.run
    show(facts(_facts(run, served=found.served)))
    show_waterfall(run, found.steps, found.children, everything=all_steps)
    for title, value in (("input", run.input), ("output", run.output), ("metadata", run.metadata)):
        if value is not None:
            _section(screen, title)
            screen.print(_json(value), soft_wrap=True)
    if run.attempts:
        _section(screen, "attempts that did not complete")
        for attempt in run.attempts:
            _show_attempt(screen, attempt)


def _facts(run: RunView, *, served: bool) -> Iterator[tuple[str, Any]]:
    yield "run", run.id
    yield "function", run.function
    yield "queue", run.queue
    yield "state", _coloured(state(run), run.state)
    for line in _whys(run, served=served):
        yield "why", line
    if run.error:
        yield "error", f"{run.error.code}: {run.error.message}"
    yield "attempt", attempts(run).replace("/", " of ")
    yield from _optional(run)
    yield "invoked by", run.invoked_by
    yield from _times(run)


def _whys(run: RunView, *, served: bool) -> Iterator[str]:
    if (why := why_held(run)) is not None:
        yield why
    if run.state in (State.HELD, State.READY) and not served:
        yield f"nobody works on the queue {run.queue!r}; start a worker that does"
    if run.cancel_requested and run.state is State.RUNNING:
        yield "its worker has been asked to stop it"
    if is_orphaned(run):
        yield "its worker has not renewed its lease; the next worker that looks, or starts, takes over"


def _optional(run: RunView) -> Iterator[tuple[str, Any]]:
    if run.key is not None:
        yield "key", run.key
    if run.version is not None:
        yield "version", run.version
    if run.parent is not None:
        yield "parent", f"run {run.parent} waits for it"
    if run.copied_from is not None:
        yield "copied from", f"run {run.copied_from}"
    if run.priority:
        yield "priority", str(run.priority)
    if run.timeout is not None:
        yield "timeout", span(run.timeout)
    if run.locked_by is not None:
        yield "worker", f"{run.locked_by}, lease until {moment(run.lease_expires_at)}"


def _times(run: RunView) -> Iterator[tuple[str, Any]]:
    now = datetime.now(UTC)
    yield "created", moment(run.created_at, now)
    yield "due", moment(run.run_at, now)
    if run.start_by is not None and run.started_at is None:
        yield "start by", moment(run.start_by, now)
    yield "first start", moment(run.started_at, now)
    if _started_again(run):
        yield "last start", moment(run.claimed_at, now)
    if run.finish_by is not None and run.ended_at is None:
        yield "end by", moment(run.finish_by, now)
    yield "ended", moment(run.ended_at, now)
    duration = took(run, now)
    if duration is not None:
        yield "took" if run.ended_at else "running for", f"{span(duration)}{_in_all(run)}"


def _in_all(run: RunView) -> str:
    """How long it was from the first start to the end, for a run that started again."""
    if run.ended_at is None or run.started_at is None or not _started_again(run):
        return ""
    return f", {span((run.ended_at - run.started_at).total_seconds())} from the first start"


def _started_again(run: RunView) -> bool:
    """Every start has a lease; a copy begins with one already, that of the steps it was given."""
    return run.lease_no > (1 if run.copied_from is None else 2)


def _show_attempt(screen: Console, attempt: AttemptView) -> None:
    from rich.text import Text

    duration = (attempt.ended_at - attempt.started_at).total_seconds()
    headline = Text(f"{attempt.attempt}. ", "bold").append(f"{attempt.code}: {attempt.message}", "red")
    screen.print(headline, soft_wrap=True)
    screen.print(
        Text(f"   ended {moment(attempt.ended_at)} after {span(max(0.0, duration))}, worker {attempt.worker}", "dim"),
        soft_wrap=True,
    )
    for line in (attempt.traceback or "").rstrip().splitlines():
        screen.print(Text(f"   {line}"), soft_wrap=True)


def _section(screen: Console, title: str) -> None:
    from rich.text import Text

    screen.print(Text(f"\n{title}", "bold"))


def _json(value: Any) -> Text:
    from rich.text import Text

    return Text(as_json(value))


def _coloured(text: str, state: State) -> Text:
    cell = cut(text)
    cell.stylize(COLOURS[state])
    return cell


def _span(seconds: float | None) -> str:
    return "" if seconds is None else span(seconds)
