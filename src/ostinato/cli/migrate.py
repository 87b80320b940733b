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


@migrate.command()
@click.option(
    "--producer", "producers", metavar="ROLE", multiple=True, help="A role that may enqueue, and nothing else."
)
@click.option("--worker", "workers", metavar="ROLE", multiple=True, help="A role that may do all that workers do.")
@click.option("--reader", "readers", metavar="ROLE", multiple=True, help="A role that may look at everything.")
@click.option("--print", "only_print", is_flag=True, help="Print the SQL, and execute nothing.")
@connection_options
@click.pass_context
def grant(
    context: click.Context,
    producers: tuple[str, ...],
    workers: tuple[str, ...],
    readers: tuple[str, ...],
    only_print: bool,
) -> None:
    """Give roles of the database what they need, and no more. PostgreSQL only.

    Each option may be given several times. Run it as the owner of the schema, and again after `migrate up` has added
    something: granting twice changes nothing. `ostinato doctor` tells when a role lacks something.

    \b
      ostinato migrate grant --producer web --worker jobs --reader grafana
    """
    if not (producers or workers or readers):
        raise click.UsageError("name a role: --producer ROLE, --worker ROLE or --reader ROLE", context)
    migrations = app_of(context).migrations()
    if only_print:
        click.echo(migrations.grants(producers=producers, workers=workers, readers=readers), nl=False)
        return
    wait_for(migrations.grant(producers=producers, workers=workers, readers=readers))
    for roles, what in ((producers, "enqueue"), (workers, "work"), (readers, "read")):
        for role in roles:
            click.echo(f"{role} may {what}")


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
