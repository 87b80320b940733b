"""What the demo leaves behind: a few lines that say what has been seen."""

from __future__ import annotations

import click

from ...model.run import State
from ..words import span
from .story import Story


def print_summary(story: Story) -> None:
    click.echo("\n".join(summary(story)))


def summary(story: Story) -> list[str]:
    counts = story.counts
    waiting = counts[State.HELD] + counts[State.READY] + counts[State.RUNNING]
    ends = f"{counts[State.COMPLETED]} completed, {counts[State.FAILED]} failed, {waiting} still waited"
    return [
        f"In {span(story.elapsed)}, {sum(counts.values())} runs were enqueued: {ends}.",
        f"The music service failed {story.retries} times and was asked again.",
        _kills(story.kills, sum(len(rescue.taken) for rescue in story.rescues.values())),
        _proof(story),
    ]


def _kills(killed: int, rescued: int) -> str:
    if killed == 0:
        return "No worker was killed yet."
    workers = "One worker was" if killed == 1 else f"{killed} workers were"
    return f"{workers} killed with kill -9, and {rescued} runs were rescued."


def _proof(story: Story) -> str:
    if story.most_times_enriched > 1:
        return f"A track was written {story.most_times_enriched} times. That is a bug; please report it."
    found = f"{story.looked_up} look-ups were completed, and the station's table has {story.enriched} albums"
    if story.enriched != story.looked_up:
        return f"{found}. That is a bug; please report it."
    return f"{found}: none was lost, none written twice."
