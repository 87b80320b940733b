"""`ostinato runs`: looking at runs, and steering them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .failure import complain, note
from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..model.view import RunView

STATES = ["held", "ready", "running", "completed", "failed", "cancelled"]
PAGE = 500


@click.group(short_help="List, show, retry and cancel runs.")
@connection_options
def runs() -> None:
    """List, show, retry and cancel runs."""


@runs.command("list")
@click.option("--function", help="Runs of this function.")
@click.option("--queue", help="Runs of this queue.")
@click.option("--state", type=click.Choice(STATES), help="Runs in this state.")
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


@runs.command("retry")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All runs that the options below name, instead of IDs.")
@click.option("--state", type=click.Choice(["failed", "cancelled"]), default="failed", show_default=True)
@click.option("--function", help="Only runs of this function.")
@click.option("--queue", help="Only runs of this queue.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many, the newest first.")
@connection_options
@with_app
def retry_runs(app: App, /, ids: Sequence[str], everything: bool, limit: int | None, **filters: Any) -> None:
    """Let failed or cancelled runs go again, with a fresh budget of attempts."""
    if bool(ids) == everything:
        raise click.UsageError("name runs by their IDs, or all of a kind: --all [--function NAME]")
    if everything:
        retried, refused = wait_for(_retry_all(app, limit, filters))
        click.echo(f"{retried} {_runs(retried)} will go again")
        if refused:
            note(f"{refused} cannot: other runs hold their keys")
        return
    _report(ids, wait_for(_retry(app, ids)), "will go again")


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


async def _retry_all(app: App, limit: int | None, filters: dict[str, Any]) -> tuple[int, int]:
    """Retries page by page; answers how many go again and how many cannot."""
    seen = retried = 0
    before = None
    async with app:
        while limit is None or seen < limit:
            size = PAGE if limit is None else min(PAGE, limit - seen)
            page = [run.id for run in await app.runs.list(limit=size, before=before, **filters)]
            if not page:
                break
            retried += len(await app.runs.retry_many(page))
            seen, before = seen + len(page), page[-1]
    return retried, seen - retried


@runs.command("cancel")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", default="cancelled by request", show_default=True, help="Kept with the run.")
@connection_options
@with_app
def cancel_runs(app: App, /, ids: Sequence[str], reason: str) -> None:
    """Cancel runs: waiting ones at once, running ones by asking their worker."""
    _report(ids, wait_for(_cancel(app, ids, reason)), "cancelled")


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
    given = [f"{name} {value}" for name, value in filters.items() if value]
    return f" with {', '.join(given)}" if given else ""


def _runs(number: int) -> str:
    return "run" if number == 1 else "runs"
