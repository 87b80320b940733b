"""`ostinato subscriptions`: which events start which functions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .failure import note
from .options import connection_options, json_object, json_option, wait_for, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..model.view import SubscriptionView


def start(context: click.Context, parameter: click.Parameter, text: str) -> str | datetime | None:
    """An option's callback: where a subscription begins."""
    from .enqueue import moment

    return text if text in ("now", "beginning") else moment(context, parameter, text)


@click.group(short_help="List, add, enable, disable and remove subscriptions.")
@connection_options
def subscriptions() -> None:
    """List, add, enable, disable and remove subscriptions."""


@subscriptions.command("list")
@json_option
@connection_options
@with_app
def list_subscriptions(app: App, /, as_json: bool) -> None:
    """List all subscriptions, and where they come from."""
    from .output import print_json

    found = wait_for(app.subscriptions.list())
    if as_json:
        print_json([_as_json(subscription) for subscription in found])
    elif found:
        _show_all(found)
    else:
        note("no subscriptions; declare one with app.subscribe and start a worker, or: ostinato subscriptions add")


@subscriptions.command("add")
@click.argument("glob")
@click.argument("function")
@click.option("--filter", "condition", metavar="CEL", help="Only events that it is true for: event.payload.delta > 5")
@click.option("--map", "recipe", metavar="JSON", callback=json_object, help='The input: {"sku": "$.entity_id"}')
@click.option("--name", help="Its name (FUNCTION:GLOB).")
@click.option("--ordered", is_flag=True, help="An entity's later events wait behind one that is parked.")
@click.option("--disabled", is_flag=True, help="Start no runs before it is enabled.")
@click.option(
    "--start-at",
    metavar="WHEN",
    default="now",
    show_default=True,
    callback=start,
    help="now, beginning, or a moment like 2027-01-31T09:00:00Z: earlier events are left alone.",
)
@connection_options
@with_app
def add_subscription(
    app: App,
    /,
    glob: str,
    function: str,
    condition: str | None,
    recipe: dict[str, Any] | None,
    name: str | None,
    ordered: bool,
    disabled: bool,
    start_at: Any,
) -> None:
    """Have events start FUNCTION: those whose type GLOB means, like price.* or order.**."""
    added = wait_for(
        app.subscriptions.add(
            glob,
            function,
            filter=condition,
            map=recipe,
            name=name,
            ordered=ordered,
            enabled=not disabled,
            start_at=start_at,
        )
    )
    click.echo(f"{added.name} {added.state}")


@subscriptions.command("enable")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connection_options
@with_app
def enable_subscriptions(app: App, /, names: Sequence[str]) -> None:
    """Let subscriptions start runs, from now on. What was recorded while they were disabled is over."""
    wait_for(_each(app, names, app.subscriptions.enable))


@subscriptions.command("disable")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connection_options
@with_app
def disable_subscriptions(app: App, /, names: Sequence[str]) -> None:
    """Stop subscriptions from starting runs until they are enabled, also when workers are started meanwhile."""
    wait_for(_each(app, names, app.subscriptions.disable))


@subscriptions.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connection_options
@with_app
def remove_subscriptions(app: App, /, names: Sequence[str]) -> None:
    """Remove subscriptions, and what is parked for them."""
    wait_for(_remove(app, names))


async def _each(app: App, names: Sequence[str], verb: Any) -> None:
    """A line for each; the first that is not there ends it."""
    async with app:
        for name in dict.fromkeys(names):
            subscription = await verb(name)
            click.echo(f"{name} {subscription.state}")


async def _remove(app: App, names: Sequence[str]) -> None:
    async with app:
        for name in dict.fromkeys(names):
            removed = await app.subscriptions.remove(name)
            click.echo(f"{name} removed" + (f", with {removed.parked} parked" if removed.parked else ""))
            if removed.declared_in_code:
                note(f"{removed.origin} declares {name}: a worker that starts brings it back; disable keeps it off")


# --- words ----------------------------------------------------------------------------------------------------------


def _as_json(subscription: SubscriptionView) -> dict[str, Any]:
    from msgspec import to_builtins

    return {**to_builtins(subscription), "state": subscription.state}


def _show_all(found: Sequence[SubscriptionView]) -> None:
    from .output import as_json, cut, show, table

    columns = ("subscription", "on", "function", "state", "parked", "filter", "map", "origin")
    made = table(*columns, right=("parked",), flexible=("filter", "map", "origin"))
    for subscription in found:
        recipe = "-" if subscription.mapper is None else " ".join(as_json(subscription.mapper).split())
        made.add_row(
            subscription.name,
            subscription.glob,
            subscription.function + ("" if subscription.function_known else " (unknown)"),
            _state(subscription),
            str(subscription.parked or "-"),
            cut(subscription.filter or "-"),
            cut(recipe),
            cut(subscription.origin),
        )
    show(made)


def _state(subscription: SubscriptionView) -> Text:
    from rich.text import Text

    return Text(subscription.state, "green" if subscription.enabled else "yellow")
