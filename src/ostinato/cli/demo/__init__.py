"""`ostinato demo`: an application, its workers and a live view, from nothing to a story in ten seconds."""

from __future__ import annotations

import click

from ..options import duration as duration_option
from ..options import wait_for


@click.command(short_help="See it work: an app, its workers and a live view, in this terminal.")
@click.option("--duration", callback=duration_option, metavar="SECONDS", help="Stop by itself after this long.")
@click.option("--plain", is_flag=True, help="Print lines instead of a live view, as is done when piped.")
def demo(duration: float | None, plain: bool) -> None:
    """See it work. Nothing is needed but this program; Ctrl-C stops it and leaves nothing behind.

    A radio station looks up the albums of the tracks it plays, at a made-up service that is slow and fails every fifth
    call. Two real worker processes do it, on an SQLite file in a temporary folder. Now and then one of them is killed
    with kill -9: watch what becomes of its runs.
    """
    from ..output import can_draw
    from .plain import PlainView, print_line
    from .play import View, play
    from .screen import ScreenView
    from .story import Story
    from .summary import print_summary

    plain = plain or not can_draw()
    story = Story(tell=print_line) if plain else Story()
    view: View = PlainView() if plain else ScreenView()
    wait_for(play(view, story, duration=duration))
    print_summary(story)
