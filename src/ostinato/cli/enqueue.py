"""`ostinato enqueue`: a run from the command line."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .options import connection_options, duration, json_object, json_option, seconds_in, wait_for, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..resources.runs import Handle

FOREVER = "forever"


class WaitCommand(click.Command):
    """A command whose `--wait` may stand alone. Its value is only taken from the next word when that can be one."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, list(_with_values(args)))


def _with_values(args: list[str]) -> list[str]:
    joined: list[str] = []
    for word in args:
        if joined and joined[-1] == "--wait":
            takes_word = re.match(r"\d", word) is not None
            joined[-1:] = [f"--wait={word}"] if takes_word else [f"--wait={FOREVER}", word]
        else:
            joined.append(word)
    return [f"--wait={FOREVER}" if word == "--wait" else word for word in joined]


def moment(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    """An option's callback: an instant in ISO 8601, with a time zone."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a moment; write it like 2027-01-31T09:00:00Z") from None
    if at.tzinfo is None:
        raise click.BadParameter(f"{text!r} names no instant without a time zone; add Z or +01:00")
    return at


def patience(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """An option's callback: how long to wait; for ever when `--wait` stands alone."""
    if text is None:
        return None
    return float("inf") if text == FOREVER else seconds_in(text, what="wait")


def object_or_stdin(context: click.Context, param: click.Parameter, text: str) -> Any:
    """An argument's callback: a JSON object, or `-` to read one from stdin."""
    return json_object(context, param, sys.stdin.read() if text == "-" else text)


def key_period(_: click.Context, __: click.Parameter, text: str | None) -> str | float | None:
    """An option's callback: how long a run keeps its key."""
    return text if text in (None, "active", "failed", FOREVER) else seconds_in(text, what="unique")


@click.command(cls=WaitCommand, short_help="Enqueue a run of a function.")
@click.argument("function")
@click.argument("value", metavar="[JSON | -]", default="{}", callback=object_or_stdin)
@click.option("--key", help="Enqueue nothing if a run of the function with this key is there.")
@click.option(
    "--unique", callback=key_period, metavar="active|failed|forever|TIME", help="How long a run keeps its key (active)."
)
@click.option("--force", is_flag=True, default=None, help="Enqueue it whoever holds the key, which passes to it.")
@click.option("--delay", callback=duration, metavar="TIME", help="Not before this has passed, like 30s or 1h 30m.")
@click.option("--run-at", callback=moment, metavar="MOMENT", help="Not before this, like 2027-01-31T09:00:00Z.")
@click.option("--priority", type=click.IntRange(-600, 600), help="Sort as if due this many seconds earlier.")
@click.option("--queue", help="Another queue than the function's.")
@click.option("--timeout", callback=duration, metavar="TIME", help="Another timeout than the function's.")
@click.option(
    "--metadata", callback=json_object, metavar="JSON", help="Notes kept with the run and copied into its logs."
)
@click.option(
    "--wait", callback=patience, metavar="[=SECONDS]", help="Wait for the result and print it; fail if the run does."
)
@json_option
@connection_options
@with_app
def enqueue(
    app: App, /, function: str, value: dict[str, Any], wait: float | None, as_json: bool, **options: Any
) -> None:
    """Enqueue a run of FUNCTION with a JSON object as its input, and print its id.

    The function's code is not needed here: a worker has told the database its name. With --app the input is checked
    against the function's types before anything is written.

    \b
      ostinato enqueue enrich_track '{"track_id": 7}'
      jq -c .track tracks.json | ostinato enqueue enrich_track - --key track:7 --wait=30
    """
    given = {name: value for name, value in options.items() if value is not None}
    wait_for(_enqueue(app, function, value, given, patience=wait, as_json=as_json))


async def _enqueue(
    app: App, function: str, value: Any, options: dict[str, Any], *, patience: float | None, as_json: bool
) -> None:
    async with app:
        handle = await app.enqueue(function, value, source="cli", **options)
        if as_json:
            await _report_as_json(app, handle, patience)
        else:
            await _report(handle, patience, key=options.get("key"))


async def _report(handle: Handle, patience: float | None, *, key: str | None) -> None:
    from .failure import note
    from .output import as_json

    click.echo(handle.id)
    if not handle.created:
        note(f"nothing was enqueued: this run holds the key {key!r}")
    if patience is not None:
        click.echo(as_json(await handle.result(_timeout(patience))))


async def _report_as_json(app: App, handle: Handle, patience: float | None) -> None:
    """One object, printed however the run ends; the exit code says whether there is a result."""
    from ..errors import ResultTimeout, RunEnded
    from .output import print_json

    report: dict[str, Any] = {"id": handle.id, "created": handle.created}
    try:
        if patience is not None:
            report["result"] = await handle.result(_timeout(patience))
    except (RunEnded, ResultTimeout):
        report["error"] = (await app.runs.get(handle.id)).error
        raise
    finally:
        report["state"] = (await app.runs.get(handle.id)).state
        print_json(report)


def _timeout(patience: float) -> float | None:
    return None if patience == float("inf") else patience
