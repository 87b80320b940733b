"""The story as a live screen. Colours are the terminal's own sixteen, so that it reads well on any background."""

from __future__ import annotations

import asyncio
import textwrap
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ...model.run import State
from . import radio
from .crew import Crew, Member
from .run_rows import SYMBOLS, run_rows
from .story import Happening, Story

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REFRESH = 0.1
WIDE = 140
SPARKS = "▁▂▃▄▅▆▇█"
DEPTHS = (State.HELD, State.READY, State.RUNNING, State.COMPLETED, State.FAILED)
ABOUT = (
    "A radio station looks up albums at a slow music service that fails every fifth call. "
    "Two workers do it; now and then one is killed with kill -9."
)


class ScreenView:
    """Draws on the terminal's other screen, and leaves the first one as it was."""

    async def show(self, story: Story, crew: Crew) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(draw(console, story, crew), refresh=True)
                await asyncio.sleep(REFRESH)


def draw(console: Console, story: Story, crew: Crew) -> RenderableType:
    """The whole screen, no higher than the terminal."""
    width, height = console.width - 2, console.height
    members = list(crew)[-4:]
    head: list[RenderableType] = [_title(story), *_about(width), Text(), _depths(story, width)]
    workers: list[RenderableType] = [_rule("workers"), *(_worker(story, member) for member in members)]
    room = height - len(head) - len(workers)
    body = _side_by_side(story, crew, room) if width >= WIDE else _below_each_other(story, crew, room)
    return Padding(Group(*head, *workers, *body), (0, 1))


def _below_each_other(story: Story, crew: Crew, room: int) -> list[RenderableType]:
    told = max(2, room // 3 - 1)
    shown = max(1, room - told - 2)
    return [_rule("runs"), run_rows(story, crew, shown), _rule("lately"), *_lately(story, told)]


def _side_by_side(story: Story, crew: Crew, room: int) -> list[RenderableType]:
    made = Table.grid(padding=(0, 3, 0, 0), expand=True)
    made.add_column(ratio=4)
    made.add_column(ratio=3)
    left = Group(_rule("runs"), run_rows(story, crew, room - 1))
    made.add_row(left, Group(_rule("lately"), *_lately(story, room - 1)))
    return [made]


# --- the parts


def _title(story: Story) -> RenderableType:
    made = Table.grid(expand=True)
    made.add_column(ratio=1)
    made.add_column(justify="right", no_wrap=True)
    title = Text(no_wrap=True, overflow="ellipsis").append("ostinato demo", "bold").append(f"  {story.url}", "dim")
    made.add_row(title, Text.assemble("  ", (_clock(story.elapsed), "bold"), ("  Ctrl-C stops", "dim")))
    return made


def _about(width: int) -> list[Text]:
    return [Text(line) for line in textwrap.wrap(ABOUT, width)]


def _rule(title: str) -> Rule:
    return Rule(Text(title, "bold"), align="left", style="dim")


def _depths(story: Story, width: int) -> RenderableType:
    """How many runs are in each state, and how quickly they are completed."""
    depths = Text(no_wrap=True, overflow="ellipsis")
    for state in DEPTHS:
        colour, count = SYMBOLS[state].colour, story.counts[state]
        depths.append(f"{SYMBOLS[state].symbol} ", colour)
        depths.append(f"{count} ", "bold").append(f"{state.value}  ")
    made = Table.grid(expand=True)
    made.add_column()
    made.add_column(justify="right", no_wrap=True)
    made.add_row(depths, _speed(story, seconds=6 if width < WIDE else 30))
    return made


def _speed(story: Story, *, seconds: int) -> Text:
    now = story.elapsed
    buckets = [0] * seconds
    for at in story.completions:
        if (age := int(now - at)) < seconds:
            buckets[seconds - 1 - age] += 1
    highest = max(8, *buckets)
    sparks = "".join(SPARKS[min(7, count * 8 // (highest + 1))] for count in buckets)
    recent = sum(at > now - 5 for at in story.completions) / min(5.0, max(1.0, now))
    return Text.assemble((sparks, "green"), f" {recent:.1f}/s")


def _worker(story: Story, member: Member) -> Text:
    running = len(story.running_of(member.worker)) if member.worker else 0
    line = Text(no_wrap=True, overflow="ellipsis").append(f"worker {member.number}", "bold")
    line.append(f"  pid {member.process.pid:<7}")
    line.append("●" * running, "red" if member.killed else "cyan").append("○" * (radio.SLOTS - running), "dim")
    return line.append("  ").append_text(_condition(story, member, running))


def _condition(story: Story, member: Member, running: int) -> Text:
    view = story.workers.get(member.worker or "")
    if member.killed and view is not None:
        left = (view.expires_at - datetime.now(UTC)).total_seconds()
        lease = f"its lease ends in {left:.1f} s" if left > 0 else "its lease has run out"
        return Text(f"killed with kill -9; {lease}", "red")
    if view is None:
        return Text("starting", "dim")
    renewed = max(0.0, (datetime.now(UTC) - view.renewed_at).total_seconds())
    return Text(f"{running} running, lease renewed {renewed:.1f} s ago", "dim")


def _lately(story: Story, room: int) -> list[Text]:
    """The last things that happened, in order, the older ones faint."""
    told = [happening for happening in story.happenings if happening.headline][-room:]
    return [_line(story, happening) for happening in told]


def _line(story: Story, happening: Happening) -> Text:
    style = "dim" if story.elapsed - happening.at > 12 else happening.colour
    line = Text(no_wrap=True, overflow="ellipsis")
    return line.append(f"{_clock(happening.at)} ", "dim").append(happening.text, style)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
