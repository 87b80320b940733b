"""`ostinato runs`: looking at runs, and steering them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from . import bulk
from .bulk import bulk_options, filter_options, state_option, yes_option
from .failure import complain, note
from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..model.view import RunView

STATES = ["held", "ready", "running", "completed", "failed", "cancelled"]


@click.group(short_help="List, show, retry, cancel and purge runs.")
@connection_options
def runs() -> None:
    """List, show, retry, cancel and purge runs."""


@runs.command("list")
@filter_options()
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@click.option("--before", metavar="ID", help="Runs older than this one: the next page.")
@json_option
@connection_options
@with_app
def list_runs(app: App, /, as_json: bool, limit: int, **filters: Any) -> None:
    """List runs, the newest first."""
    from .output import print_json
    from .run_views import run_as_json, show_runs

    found = wait_for(app.runs.list(limit=limit, **filters))
    if as_json:
        print_json([run_as_json(run) for run in found])
        return
    if not found:
        note("no runs" + _described(filters))
        return
    show_runs(found)
    if len(found) == limit:
        note(f"older ones: --before {found[-1].id}")


@runs.command("show")
@click.argument("run_id", metavar="ID")
@json_option
@connection_options
@with_app
def show_run(app: App, /, run_id: str, as_json: bool) -> None:
    """Show everything that is known of a run."""
    from .output import print_json
    from .run_views import run_as_json, show_everything

    run, served = wait_for(_run_and_service(app, run_id))
    if as_json:
        print_json({**run_as_json(run), "served": served})
    else:
        show_everything(run, served=served)


async def _run_and_service(app: App, run_id: str) -> tuple[RunView, bool]:
    """The run, and whether anybody works on its queue."""
    async with app:
        run = await app.runs.get(run_id)
        workers = await app.workers.list()
    return run, any(worker.alive and not worker.stopping and run.queue in worker.queues for worker in workers)


all_option = click.option("--all", "everything", is_flag=True, help="All runs, or all that the options below leave.")


@runs.command("retry")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@all_option
@state_option("failed", "cancelled", default="failed")
@filter_options()
@bulk_options
@connection_options
@with_app
def retry_runs(app: App, /, ids: Sequence[str], **given: Any) -> None:
    """Let failed or cancelled runs go again, with a fresh budget of attempts.

    \b
      ostinato runs retry 01K9Z6Q2F3M8W5T7R1Y4X0V6B2
      ostinato runs retry --function enrich --code TimeoutError --newer-than 1h --dry-run
    """
    if _by_ids(ids, given):
        _report(ids, wait_for(_retry(app, ids)), "will go again")
    else:
        bulk.carry_out(app, app.runs.retry_where, bulk.RETRY, **given)


async def _retry(app: App, ids: Sequence[str]) -> dict[str, str]:
    """Retries runs; answers those that cannot be, and why."""
    from ..errors import OstinatoError

    refused: dict[str, str] = {}
    async with app:
        retried = set(await app.runs.retry_many(list(dict.fromkeys(ids))))
        for run_id in set(ids) - retried:
            try:
                await app.runs.retry(run_id)
            except OstinatoError as error:
                refused[run_id] = str(error)
    return refused


@runs.command("cancel")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--reason", default="cancelled by request", show_default=True, help="Kept with the run.")
@all_option
@state_option("held", "ready", "running", default="all three")
@filter_options()
@bulk_options
@yes_option
@connection_options
@with_app
def cancel_runs(app: App, /, ids: Sequence[str], reason: str, yes: bool, **given: Any) -> None:
    """Cancel runs: waiting ones at once, running ones by asking their worker.

    \b
      ostinato runs cancel 01K9Z6Q2F3M8W5T7R1Y4X0V6B2 --reason "not needed"
      ostinato runs cancel --queue mail --state ready --older-than 1d
    """
    if _by_ids(ids, given):
        _report(ids, wait_for(_cancel(app, ids, reason)), "cancelled")
    else:
        bulk.carry_out(app, app.runs.cancel_where, bulk.CANCEL, yes=yes, reason=reason, **given)


async def _cancel(app: App, ids: Sequence[str], reason: str) -> dict[str, str]:
    """Cancels runs; answers those that cannot be, and why."""
    from ..errors import OstinatoError

    refused: dict[str, str] = {}
    async with app:
        cancelled = set(await app.runs.cancel(list(dict.fromkeys(ids)), reason=reason))
        for run_id in set(ids) - cancelled:
            try:
                refused[run_id] = f"run {run_id} is {(await app.runs.get(run_id)).state.value} already"
            except OstinatoError as error:
                refused[run_id] = str(error)
    return refused


@runs.command("purge")
@all_option
@state_option("completed", "failed", "cancelled", "held", "ready", default="all that have ended")
@filter_options()
@bulk_options
@yes_option
@connection_options
@with_app
def purge_runs(app: App, /, **given: Any) -> None:
    """Delete runs that have ended, with their attempts; waiting ones only if --state names them.

    \b
      ostinato runs purge --state completed --older-than 1d
    """
    _by_ids((), given)
    bulk.carry_out(app, app.runs.purge, bulk.PURGE, **given)


def _by_ids(ids: Sequence[str], given: dict[str, Any]) -> bool:
    """Whether runs are named by their IDs, and not by what they are. It must be one of the two."""
    given["state"] = given["state"] or None
    bulk_only = [name for name, value in given.items() if value is not None and value is not False]
    narrowing = [name for name in bulk_only if name not in ("limit", "dry_run", "as_json", "yes")]
    if bool(ids) == bool(narrowing) or (ids and bulk_only):
        raise click.UsageError("name runs by their IDs, or all of a kind: --all, or options like --function NAME")
    return bool(ids)


def _report(ids: Sequence[str], refused: dict[str, str], done: str) -> None:
    """A line for each run; exit code 1 if any could not."""
    for run_id in dict.fromkeys(ids):
        if run_id in refused:
            complain(refused[run_id])
        else:
            click.echo(f"{run_id} {done}")
    if refused:
        click.get_current_context().exit(1)


def _described(filters: dict[str, Any]) -> str:
    from .words import span

    shown = {name.replace("_", " "): value for name, value in filters.items() if value is not None}
    given = [f"{name} {span(value) if isinstance(value, float) else value}" for name, value in shown.items()]
    return f" with {', '.join(given)}" if given else ""
