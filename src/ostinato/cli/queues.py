"""`ostinato queues`: what waits where, and stopping and clearing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from . import bulk
from .bulk import bulk_options, filter_options, state_option, yes_option
from .failure import complain, note
from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..model.view import FunctionView, QueueView, WorkerView


@click.group(short_help="List, show, pause, resume and purge queues.")
@connection_options
def queues() -> None:
    """List, show, pause, resume and purge queues."""


# --- looking


@queues.command("list")
@json_option
@connection_options
@with_app
def list_queues(app: App, /, as_json: bool) -> None:
    """List the queues, with what waits and runs in them."""
    from .output import print_json

    found = wait_for(app.queues.list())
    if as_json:
        print_json(found)
    elif found:
        _show(found)
    else:
        note("no queues: no worker, function or run has named one")


@queues.command("show")
@click.argument("name")
@json_option
@connection_options
@with_app
def show_queue(app: App, /, name: str, as_json: bool) -> None:
    """Show a queue, the functions whose runs go there, and the workers that serve it."""
    from .output import facts, print_json, show

    queue, functions, workers = wait_for(_with_context(app, name))
    if as_json:
        from msgspec import to_builtins

        served_by = [worker.id for worker in workers]
        print_json(
            {**to_builtins(queue), "functions": [function.name for function in functions], "served_by": served_by}
        )
    else:
        show(facts(_facts(queue, functions, workers)))


async def _with_context(app: App, name: str) -> tuple[QueueView, list[FunctionView], list[WorkerView]]:
    async with app:
        queue = await app.queues.get(name)
        functions = [function for function in await app.workers.functions() if function.queue == name]
        workers = [worker for worker in await app.workers.list() if worker.alive and name in worker.queues]
    return queue, functions, workers


def _facts(
    queue: QueueView, functions: Sequence[FunctionView], workers: Sequence[WorkerView]
) -> Iterator[tuple[str, Any]]:
    from .words import span

    yield "queue", queue.name
    yield "state", _state(queue)
    yield "ready", f"{queue.ready:,}"
    if queue.longest_wait is not None:
        yield "longest wait", span(max(0.0, queue.longest_wait))
    yield "held", f"{queue.held:,}"
    yield "running", f"{queue.running:,} of {queue.slots:,} slots"
    if queue.max_waiting is not None:
        yield "may hold", f"{queue.max_waiting:,} waiting runs"
    if functions:
        yield "functions", ", ".join(function.name for function in functions)
    for worker in workers:
        yield "worker", f"{worker.id} ({worker.name}), {worker.queues[queue.name]} slots"


def _show(found: Sequence[QueueView]) -> None:
    from .output import cut, show, table
    from .words import span

    made = table(
        *("queue", "state", "ready", "held", "running", "slots", "waited", "cap"),
        right=("ready", "held", "running", "slots", "waited", "cap"),
        flexible=("queue",),
    )
    for queue in found:
        made.add_row(
            cut(queue.name),
            _state(queue),
            f"{queue.ready:,}",
            f"{queue.held:,}",
            f"{queue.running:,}",
            f"{queue.slots:,}",
            "" if queue.longest_wait is None else span(max(0.0, queue.longest_wait), units=1),
            "" if queue.max_waiting is None else f"{queue.max_waiting:,}",
        )
    show(made)


def _state(queue: QueueView) -> Text:
    from rich.text import Text

    if queue.paused:
        return Text("paused", "yellow")
    return Text("served", "green") if queue.slots else Text("nobody works on it", "red" if queue.ready else "dim")


# --- stopping


@queues.command("pause")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--create", is_flag=True, help="Also if nothing has named the queue yet.")
@connection_options
@with_app
def pause_queues(app: App, /, names: Sequence[str], create: bool) -> None:
    """Let no run of these queues start until they are resumed. What runs goes on."""

    async def pause(name: str) -> bool:
        return await app.queues.pause(name, create=create)

    _each(app, names, pause, done="is paused", not_needed="was paused already")


@queues.command("resume")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connection_options
@with_app
def resume_queues(app: App, /, names: Sequence[str]) -> None:
    """Let the runs of paused queues start again."""
    _each(app, names, app.queues.resume, done="goes on", not_needed="was not paused")


def _each(
    app: App, names: Sequence[str], verb: Callable[[str], Awaitable[bool]], *, done: str, not_needed: str
) -> None:
    """A line for each queue; exit code 1 if one is not there."""
    from ..errors import ConfigError, UnknownQueue

    async def all_of_them() -> bool:
        failed = False
        async with app:
            for name in dict.fromkeys(names):
                try:
                    click.echo(f"{name} {done if await verb(name) else not_needed}")
                except (UnknownQueue, ConfigError) as error:
                    complain(str(error))
                    failed = True
        return failed

    if wait_for(all_of_them()):
        click.get_current_context().exit(1)


# --- clearing


@queues.command("purge")
@click.argument("name")
@state_option("completed", "failed", "cancelled", "held", "ready", default="all that have ended")
@filter_options("function", "older-than", "newer-than")
@bulk_options
@yes_option
@connection_options
@with_app
def purge_queue(app: App, /, name: str, state: Sequence[str], **given: Any) -> None:
    """Delete runs of a queue that have ended, with their attempts; waiting ones only if --state names them.

    \b
      ostinato queues purge mail --older-than 7d --dry-run
      ostinato queues purge mail --state ready --state held
    """

    async def purge(**options: Any) -> Any:
        return await app.queues.purge(name, **options)

    bulk.carry_out(app, purge, bulk.PURGE, state=state or None, **given)
