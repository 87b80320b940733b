"""The story as lines, for pipes, logs and tests."""

from __future__ import annotations

import asyncio

import click

from ...model.run import State
from .crew import Crew
from .story import Happening, Story

EVERY = 2.0


class PlainView:
    """A line for everything that happens, and the depths every other second."""

    async def show(self, story: Story, crew: Crew) -> None:
        while True:
            await asyncio.sleep(EVERY)
            depths = "  ".join(f"{state.value} {story.counts[state]}" for state in State if state != State.CANCELLED)
            print_line(Happening(story.elapsed, "", f"-- {depths}", headline=False))


def print_line(happening: Happening) -> None:
    click.echo(f"{happening.at:6.1f} s  {happening.text}")
