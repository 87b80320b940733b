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
    from .run_views import Everything

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
@click.option("--all-steps", is_flag=True, help="All steps, also of a run that has hundreds.")
@json_option
@connection_options
@with_app
def show_run(app: App, /, run_id: str, all_steps: bool, as_json: bool) -> None:
    """Show everything that is known of a run, with its steps as a waterfall."""
    from .output import print_json
    from .run_views import everything_as_json, show_everything

    found = wait_for(_everything(app, run_id))
    if as_json:
        print_json(everything_as_json(found))
    else:
        show_everything(found, all_steps=all_steps)


async def _everything(app: App, run_id: str) -> Everything:
    """The run, its steps and children, and whether anybody works on its queue."""
    from .run_views import Everything

    async with app:
        run, steps = await app.runs.get(run_id), await app.runs.steps(run_id)
        children = await app.runs.children(run_id) if any(step.child for step in steps) else []
        workers = await app.workers.list()
    served = any(worker.alive and not worker.stopping and run.queue in worker.queues for worker in workers)
    return Everything(run, steps, children, served)


all_option = click.option("--all", "everything", is_flag=True, help="All runs, or all that the options below leave.")


@runs.command("retry")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--from", "from_step", metavar="STEP", help="Begin a new run at this step of an ended one.")
@all_option
@state_option("failed", "cancelled", default="failed")
@filter_options()
@bulk_options
@connection_options
@with_app
def retry_runs(app: App, /, ids: Sequence[str], from_step: str | None, **given: Any) -> None:
    """Let failed or cancelled runs go again, with a fresh budget of attempts.

    With --from, a new run does STEP and all that comes after it again, and remembers what came before. The run may have
    completed. STEP is a name as `runs show` has it, with #2 for the second of that name, or an id.

    \b
      ostinato runs retry 01K9Z6Q2F3M8W5T7R1Y4X0V6B2
      ostinato runs retry 01K9Z6Q2F3M8W5T7R1Y4X0V6B2 --from charge
      ostinato runs retry --function enrich --code TimeoutError --newer-than 1h --dry-run
    """
    if from_step is not None:
        _retry_from(app, ids, from_step, given)
    elif _by_ids(ids, given):
        _report(ids, wait_for(_retry(app, ids)), "will go again")
    else:
        bulk.carry_out(app, app.runs.retry_where, bulk.RETRY, **given)


def _retry_from(app: App, ids: Sequence[str], step: str, given: dict[str, Any]) -> None:
    if not _by_ids(ids, given) or len(ids) > 1:
        raise click.UsageError("--from is about one run: name it by its ID")
    click.echo(wait_for(app.runs.retry(ids[0], from_step=step)).id)


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
