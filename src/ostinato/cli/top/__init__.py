"""`ostinato top`: queues, workers and failures at a glance, live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import connection_options, duration, json_option, wait_for, with_app

if TYPE_CHECKING:
    from ...app import App

SHORTEST = 0.1


@click.command(short_help="Watch queues, workers and failures, live.")
@click.option(
    "--interval", callback=duration, default="1s", show_default=True, metavar="TIME", help="How often to look."
)
@click.option("--once", is_flag=True, help="Print one view and end, as is done when piped.")
@json_option
@connection_options
@with_app
def top(app: App, /, interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, workers and failures. q or Ctrl-C ends it.

    Rates are those since the last look; with --once and --json, those of the last ten seconds. Runs that have ended
    are not counted again and again, so it may stay open beside millions of them.
    """
    from ..output import can_draw, console, print_json, show
    from .screen import plain
    from .watching import watch

    if interval < SHORTEST:
        raise click.BadParameter(f"must be at least {SHORTEST:g} s", param_hint="'--interval'")
    if as_json:
        print_json(wait_for(app.queues.overview()))
    elif once or not can_draw():
        show(plain(wait_for(app.queues.overview()), app.settings.url, width=console().width))
    else:
        wait_for(watch(app, interval))
