"""`ostinato workers`: who works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..model.view import WorkerView


@click.group(short_help="See who works.")
@connection_options
def workers() -> None:
    """See who works."""


@workers.command("list")
@click.option("--all", "everyone", is_flag=True, help="Those too that have ended or died lately.")
@json_option
@connection_options
@with_app
def list_workers(app: App, /, everyone: bool, as_json: bool) -> None:
    """List the workers that have a lease."""
    from .failure import note
    from .output import print_json

    found = wait_for(app.workers.list(dead=everyone))
    if as_json:
        print_json(found)
    elif found:
        _show(found)
    else:
        note("nobody works on this database; start a worker: ostinato worker module:app")


def _show(found: Sequence[WorkerView]) -> None:
    from .output import cut, show, table
    from .words import ago

    made = table(
        "worker",
        "process",
        "state",
        "running",
        "queues",
        "started",
        "renewed",
        right=("running",),
        flexible=("process", "queues"),
    )
    for worker in found:
        queues = ", ".join(f"{name}:{number}" for name, number in worker.queues.items())
        made.add_row(
            worker.id,
            cut(worker.name),
            _state(worker),
            str(worker.running),
            cut(queues),
            ago(worker.started_at),
            ago(worker.renewed_at),
        )
    show(made)


def _state(worker: WorkerView) -> Text:
    from rich.text import Text

    if worker.dead_at is not None:
        return Text("ended" if worker.stopping else "dead", "dim" if worker.stopping else "red")
    if not worker.alive:
        return Text("expired", "red")
    return Text("stopping", "yellow") if worker.stopping else Text("alive", "green")
