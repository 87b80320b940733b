"""`ostinato events match`: what events would start, if they were recorded now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from .failure import note
from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..model.view import Match


def events_in(_: click.Context, __: click.Parameter, file: IO[str]) -> list[Any]:
    """An argument's callback: an event as a JSON object, or a list of them."""
    from msgspec import DecodeError, json

    try:
        decoded = json.decode(file.read())
    except (DecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file.name} is not JSON: {error}") from error
    return decoded if isinstance(decoded, list) else [decoded]


@click.command("match")
@click.argument("events", metavar="FILE", type=click.File(encoding="utf-8"), callback=events_in)
@json_option
@connection_options
@with_app
def match_command(app: App, /, events: list[Any], as_json: bool) -> None:
    """Show which subscriptions the events in FILE would start, with which input. Nothing is recorded or started.

    FILE has an event as JSON, like {"type": "price.changed", "payload": {}, "entity": ["product", "42"]}, or a list of
    them; - is stdin.
    """
    from .output import print_json

    found = wait_for(_match(app, events))
    if as_json:
        print_json([{"event": event, "matches": matches} for event, matches in zip(events, found, strict=True)])
        return
    for event, matches in zip(events, found, strict=True):
        if matches:
            _show(matches, event)
        else:
            note(f"{event['type']}: no enabled subscription matches it")


async def _match(app: App, events: list[Any]) -> list[Sequence[Match]]:
    async with app:
        return [await app.subscriptions.match(event) for event in events]


def _show(matches: Sequence[Match], event: dict[str, Any]) -> None:
    from .output import cut, show, table

    made = table("event", "subscription", "function", "outcome", "input", flexible=("input",))
    for match in matches:
        made.add_row(event["type"], match.subscription, match.function, _outcome(match), cut(_detail(match)))
    show(made)


def _detail(match: Match) -> str:
    from .output import as_json

    if match.message is not None:
        return f"{match.code}: {match.message}"
    return "-" if match.input is None else " ".join(as_json(match.input).split())


def _outcome(match: Match) -> Text:
    from rich.text import Text

    colours = {"start": "green", "same run": "green", "filtered": "dim", "parked": "red"}
    return Text(match.outcome, colours[match.outcome])
