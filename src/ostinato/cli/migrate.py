"""`ostinato migrate`: the tables, installed and kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import app_of, connection_options, existing_app_of, json_option, wait_for, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..store.ports import MigrationView


@click.group(short_help="Install the tables, and keep them up to date.")
@connection_options
def migrate() -> None:
    """Install Ostinato's tables, and keep them up to date.

    Steps are numbered and only ever add. Code of the version before goes on running on the new schema, so migrate
    first, then deploy. An SQLite file is migrated when it is opened.
    """


@migrate.command()
@connection_options
@click.pass_context
def up(context: click.Context) -> None:
    """Apply the steps that are missing. Any number of processes may do so at once."""
    applied = wait_for(app_of(context).migrations().up())
    for name in applied:
        click.echo(f"applied {name}")
    if not applied:
        click.echo("nothing to do: the schema is up to date")


@migrate.command()
@json_option
@connection_options
@with_app
def status(app: App, /, as_json: bool) -> None:
    """Show which steps are applied."""
    from .output import print_json

    steps = wait_for(app.migrations().status())
    if as_json:
        print_json(steps)
    else:
        _show(steps)


@migrate.command()
@connection_options
@click.pass_context
def sql(context: click.Context) -> None:
    """Print all steps as one script, for those who apply it with their own tools."""
    click.echo(app_of(context).migrations().sql(), nl=False)


@migrate.command()
@json_option
@connection_options
@click.pass_context
def verify(context: click.Context, as_json: bool) -> None:
    """Compare what is applied with what this version ships; exit with 1 if they differ."""
    from .output import print_json

    differences = wait_for(existing_app_of(context).migrations().verify())
    if as_json:
        print_json({"differences": differences})
    else:
        click.echo("\n".join(differences) or "the schema is as this version ships it")
    if differences:
        context.exit(1)


def _show(steps: list[MigrationView]) -> None:
    from .output import show, table

    made = table("step", "name", "applied", "content")
    for step in steps:
        made.add_row(f"{step.version:04}", step.name, step.applied_at or "-", _content(step))
    show(made)
    missing = sum(step.applied_at is None for step in steps)
    if missing:
        click.echo(f"\n{missing} to apply: ostinato migrate up")


def _content(step: MigrationView) -> str:
    if step.applied_at is None:
        return "not applied"
    if step.checksum_matches is None:
        return "of a newer version"
    return "as shipped" if step.checksum_matches else "differs"
