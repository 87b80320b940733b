"""Runs on the screen: those being executed, those that wait for their time, and those that have just ended."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from ...model.run import Reason, State
from ...model.view import RunView
from ..output import cut
from ..words import COLOURS, attempts, took
from .crew import Crew
from .radio import FIRST
from .story import Story


class Symbol(NamedTuple):
    symbol: str
    colour: str


SYMBOLS = {
    state: Symbol(symbol, COLOURS[state])
    for state, symbol in (
        (State.HELD, "◌"),
        (State.READY, "○"),
        (State.RUNNING, "●"),
        (State.COMPLETED, "✔"),
        (State.FAILED, "✖"),
        (State.CANCELLED, "-"),
    )
}


def run_rows(story: Story, crew: Crew, room: int) -> Table:
    """At most `room` lines."""
    now = datetime.now(UTC)
    dead = {member.worker: member.number for member in crew.members if member.killed}
    made = Table.grid(padding=(0, 2, 0, 0), expand=True)
    made.add_column(no_wrap=True, width=16)
    made.add_column(ratio=4)
    made.add_column(ratio=3)
    made.add_column(no_wrap=True, justify="right", width=3)
    made.add_column(no_wrap=True, justify="right", width=6)
    for run in _chosen(story, room):
        duration = took(run, now)
        made.add_row(
            _state(run, now),
            cut(str((run.metadata or {}).get("about", run.function))),
            _note(run, story, dead),
            attempts(run) if run.attempt else "",
            "" if duration is None else f"{duration:.1f} s",
        )
    return made


def _chosen(story: Story, room: int) -> list[RunView]:
    """Some of each kind: a third of the room at least for what has ended, the rest for what goes on and what will."""
    runs = story.runs
    running = sorted((run for run in runs if run.state is State.RUNNING), key=lambda run: run.claimed_at or run.run_at)
    rescued = [run for run in runs if run.state is State.READY and story.rescued(run.id)]
    held = sorted((run for run in runs if run.state is State.HELD), key=lambda run: run.run_at)
    ended = sorted((run for run in runs if run.ended_at), key=lambda run: run.ended_at or run.run_at, reverse=True)
    waiting = [*rescued, *held][: max(2, room // 5)]
    going = running[: max(1, room - len(waiting) - max(2, room // 3))]
    return [*going, *waiting, *ended][:room]


def _state(run: RunView, now: datetime) -> Text:
    symbol, colour = SYMBOLS[run.state]
    left = max(0.0, (run.run_at - now).total_seconds())
    word = run.state.value
    if run.state is State.HELD:
        word = f"{'retry' if run.reason == Reason.RETRY else 'due'} in {left:.1f} s"
    return Text(f"{symbol} {word}", colour)


def _note(run: RunView, story: Story, dead: dict[str | None, int]) -> Text:
    """What is special about it."""
    note = cut("")
    if run.state is State.RUNNING and run.locked_by in dead:
        return note.append(f"worker {dead[run.locked_by]} is dead", "red")
    if run.state is State.COMPLETED and isinstance(run.output, dict):
        note.append(f"→ {next(iter(run.output.values()))}", "dim")
    elif run.error is not None and run.state in (State.HELD, State.FAILED):
        note.append(run.error.message, COLOURS[run.state])
    elif run.priority == FIRST:
        note.append("a listener's wish", "magenta")
    elif run.reason == Reason.NOT_DUE:
        note.append("scheduled", "dim")
    if story.rescued(run.id):
        note = cut("rescued  ").append_text(note)
        note.stylize("magenta", 0, len("rescued"))
    return note
