"""The command line: `ostinato`. One file per command group, imported when the group is asked for."""

from __future__ import annotations

import click

from .. import __version__
from .lazy import Lazy, LazyGroup
from .options import connection_options


class Program(LazyGroup):
    """The whole program: what Ostinato raises becomes one line and exit code 1, whichever command raised it."""

    def invoke(self, context: click.Context) -> object:
        from .failure import reported

        with reported(context):
            return super().invoke(context)


@click.group(
    cls=Program,
    commands_at={
        "demo": Lazy(".demo:demo", "See it work: an app, its workers and a live view, in this terminal."),
        "worker": Lazy(".worker:worker", "Work: claim runs and execute them until told to stop."),
        "enqueue": Lazy(".enqueue:enqueue", "Enqueue a run of a function."),
        "record": Lazy(".events:record", "Record an event."),
        "runs": Lazy(".runs:runs", "List, show, retry, cancel and purge runs."),
        "events": Lazy(".events:events", "Record, list, show, trace and follow events."),
        "queues": Lazy(".queues:queues", "List, show, pause, resume and purge queues."),
        "schedules": Lazy(".schedules:schedules", "List, show, pause, resume and fire schedules."),
        "subscriptions": Lazy(".subscriptions:subscriptions", "List, add, enable, disable and remove subscriptions."),
        "drainers": Lazy(
            ".drainers:drainers", "List, show, drain, reset and remove drainers; see, retry and discard what is parked."
        ),
        "workers": Lazy(".workers:workers", "See who works."),
        "top": Lazy(".top:top", "Watch queues, workers and failures, live."),
        "migrate": Lazy(".migrate:migrate", "Install the tables, and keep them up to date."),
        "doctor": Lazy(".doctor:doctor", "Look for what is wrong, and say what to do about it."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="A setting is taken from a flag, else from the App's arguments, else from the environment (OSTINATO_…), "
    "else from [tool.ostinato] in pyproject.toml.",
)
@connection_options
@click.version_option(__version__, prog_name="ostinato", message="%(prog)s %(version)s")
def main() -> None:
    """Durable work for the database you already have."""
