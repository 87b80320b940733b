"""`ostinato events`: recording events, looking at them, and following them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from .enqueue import moment
from .event_matching import match_command
from .failure import note
from .options import connection_options, json_option, seconds_in, wait_for, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..model.event import Event
    from ..model.history import EventCount, Trace, Traced


@click.group(short_help="Record, list, show, trace and follow events.")
@connection_options
def events() -> None:
    """Record, list, show, trace and follow events."""


def json_value(_: click.Context, __: click.Parameter, text: str) -> Any:
    """An argument's callback: any JSON, or `-` to read it from stdin."""
    from msgspec import DecodeError, json

    given = sys.stdin.read() if text == "-" else text
    try:
        return json.decode(given)
    except DecodeError as error:
        shown = given if len(given) <= 60 else given[:59] + "…"
        raise click.BadParameter(f"{shown!r} is not JSON: {error}") from error


def since(context: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    """An option's callback: a moment, or how long ago."""
    from datetime import timedelta

    if text is None or "T" in text:
        return moment(context, param, text)
    return datetime.now(UTC) - timedelta(seconds=seconds_in(text, what="since"))


entity_option = click.option("--entity", nargs=2, metavar="TYPE ID", help="Of this entity, like product 42.")
source_option = click.option("--source", help="From this source.")


# --- recording


@events.command("record")
@click.argument("event_type", metavar="TYPE")
@click.argument("payload", metavar="[JSON | -]", default="{}", callback=json_value)
@click.option("--entity", nargs=2, metavar="TYPE ID", help="What it is about, like product 42.")
@click.option("--key", "idempotency_key", help="Record nothing if an event with this idempotency key is there.")
@click.option("--caused-by", help="What it follows from, like sync:tier=gold or event:ID.")
@click.option("--source", help="Who records it.")
@click.option("--occurred-at", callback=moment, metavar="MOMENT", help="When it happened, like 2027-01-31T09:00:00Z.")
@json_option
@connection_options
@with_app
def record(app: App, /, event_type: str, payload: Any, as_json: bool, **options: Any) -> None:
    """Record an event of TYPE with JSON as its payload, and print its id.

    With --app the payload is checked against what the app declares with app.event.

    \b
      ostinato record price.changed '{"price": 7}' --entity product 42
      jq -c .order order.json | ostinato record order.placed - --key order:7
    """
    from .output import print_json

    event = wait_for(_record(app, event_type, payload, options))
    if as_json:
        print_json(event)
    else:
        click.echo(event.id)


async def _record(app: App, event_type: str, payload: Any, options: dict[str, Any]) -> Event:
    async with app:
        return await app.events.get(await app.record(event_type, payload, **options))


# --- looking


@events.command("recent")
@click.argument("glob", required=False)
@entity_option
@source_option
@click.option(
    "--since", callback=since, metavar="TIME|MOMENT", help="Recorded since, like 10m or 2027-01-31T09:00:00Z."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@json_option
@connection_options
@with_app
def recent_events(app: App, /, glob: str | None, as_json: bool, **filters: Any) -> None:
    """List the latest events, the last one first; those whose type matches GLOB, like 'price.*'."""
    from .output import print_json

    found = wait_for(app.events.recent(glob, **filters))
    if as_json:
        print_json(found)
    elif found:
        _show_all(found)
    else:
        note("no events")


@events.command("show")
@click.argument("event_id", metavar="ID")
@json_option
@connection_options
@with_app
def show_event(app: App, /, event_id: str, as_json: bool) -> None:
    """Show an event with its payload."""
    from .output import as_json as text_of
    from .output import facts, print_json, show

    event = wait_for(app.events.get(event_id))
    if as_json:
        print_json(event)
    else:
        show(facts(_facts(event)))
        click.echo(f"\npayload\n{text_of(event.payload)}")


@events.command("types")
@json_option
@connection_options
@with_app
def list_types(app: App, /, as_json: bool) -> None:
    """List the types of events by source: how many, and when the last was recorded.

    Of each type the latest 10,000 are counted; a + says that there may be more, also from other sources.
    """
    from .output import print_json

    found = wait_for(app.events.types())
    if as_json:
        print_json(found)
    elif found:
        _show_types(found)
    else:
        note('no events; record one: ostinato record greeting.sent \'{"to": "Ada"}\'')


@events.command("trace")
@click.argument("event_id", metavar="ID")
@json_option
@connection_options
@with_app
def trace_event(app: App, /, event_id: str, as_json: bool) -> None:
    """Show what an event follows from, and the events and runs that follow from it."""
    from .output import print_json

    trace = wait_for(app.events.trace(event_id))
    if as_json:
        print_json(trace)
    else:
        _show_trace(trace)


# --- following


@events.command("tail")
@click.argument("glob", default="**")
@entity_option
@source_option
@click.option("--token", help="Go on after this, which --json prints with each event, instead of from now on.")
@click.option("--from-beginning", is_flag=True, help="Begin with the first event there is.")
@click.option("--limit", type=click.IntRange(min=1), help="End after so many.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line, with the token to go on from.")
@connection_options
@with_app
def tail_events(app: App, /, glob: str, from_beginning: bool, limit: int | None, as_json: bool, **filters: Any) -> None:
    """Follow events as they are recorded, those whose type matches GLOB, until Ctrl-C.

    None is left out, whatever commits late. Give the last token again to go on where it ended.
    """
    try:
        wait_for(_tail(app, glob, "beginning" if from_beginning else "now", limit, as_json, filters))
    except KeyboardInterrupt:
        return


async def _tail(app: App, glob: str, start_at: str, limit: int | None, as_json: bool, filters: dict[str, Any]) -> None:
    async with app:
        following = app.events.follow(glob, start_at=start_at, **filters)
        await following.begin()
        note(f"following {glob}; Ctrl-C ends it")
        count = 0
        try:
            async for event in following:
                click.echo(_as_line(event, following.token) if as_json else _in_words(event))
                count += 1
                if count == limit:
                    return
        finally:
            await following.aclose()


events.add_command(match_command)


# --- words ----------------------------------------------------------------------------------------------------------


def _as_line(event: Event, token: str | None) -> str:
    from msgspec import json, to_builtins

    return json.encode({**to_builtins(event), "token": token}).decode()


def _in_words(event: Event) -> str:
    entity = " ".join(event.entity or ())
    return "  ".join(
        filter(None, [f"{event.recorded_at:%H:%M:%S}", event.id, event.type, entity, _short(event.payload)])
    )


def _short(payload: Any) -> str:
    from msgspec import json

    return json.encode(payload).decode()


def _show_all(found: Sequence[Event]) -> None:
    from .output import cut, show, table
    from .words import ago

    made = table("event", "type", "entity", "source", "recorded", "payload", flexible=("payload",))
    for event in found:
        entity = " ".join(event.entity or ("-",))
        made.add_row(
            event.id, event.type, entity, event.source or "-", ago(event.recorded_at), cut(_short(event.payload))
        )
    show(made)


def _facts(event: Event) -> Iterator[tuple[str, Any]]:
    from .words import moment as in_words

    yield "event", event.id
    yield "type", event.type
    if event.entity is not None:
        yield "entity", " ".join(event.entity)
    for name in ("source", "caused_by", "run_id", "idempotency_key"):
        if (value := getattr(event, name)) is not None:
            yield name.replace("_", " ").removesuffix(" id"), value
    yield "occurred", in_words(event.occurred_at)
    yield "recorded", in_words(event.recorded_at)
    yield "number", str(event.sequence_no)


def _show_types(found: Sequence[EventCount]) -> None:
    from .output import show, table
    from .words import ago

    made = table("type", "source", "events", "last", right=("events",))
    for each in found:
        made.add_row(each.type, each.source or "-", each.in_words, ago(each.last_seen))
    show(made)


def _show_trace(trace: Trace) -> None:
    for depth, each in enumerate(trace.ancestors):
        click.echo(_step(each, depth))
    below = len(trace.ancestors)
    click.echo(_step(trace.event, below) + "  <")
    for each in trace.descendants:
        click.echo(_step(each, below + each.depth))
    if trace.truncated:
        note("and more; what is further away is not shown")


def _step(each: Traced, depth: int) -> str:
    state = "" if each.state is None else f", {each.state}"
    return f"{'  ' * depth}{each.kind} {each.name}  {each.id}  {each.at:%Y-%m-%d %H:%M:%S}{state}"
