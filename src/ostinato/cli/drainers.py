"""`ostinato drainers`: who reads the ledger, how far, and what could not be dealt with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from .failure import note
from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from ..app import App
    from ..model.drainer import Drained, DrainerView, ParkedView
    from ..model.event import Event


@click.group(short_help="List, show, drain, reset and remove drainers; see, retry and discard what is parked.")
@connection_options
def drainers() -> None:
    """List, show, drain, reset and remove drainers of the ledger; see, retry and discard what is parked; replay events;
    read them from outside."""


# --- looking --------------------------------------------------------------------------------------------------------


@drainers.command("list")
@json_option
@connection_options
@with_app
def list_drainers(app: App, /, as_json: bool) -> None:
    """List all drainers, with how far they are and what holds them up."""
    from .output import print_json

    found = wait_for(app.drainers.list())
    if as_json:
        print_json(found)
    elif found:
        _show_all(found)
    else:
        note("no drainers; a worker makes the built-in one when it starts: ostinato worker module:app")


@drainers.command("show")
@click.argument("name")
@json_option
@connection_options
@with_app
def show_drainer(app: App, /, name: str, as_json: bool) -> None:
    """Show everything that is known of a drainer."""
    from .output import facts, print_json, show

    drainer = wait_for(app.drainers.get(name))
    if as_json:
        print_json(drainer)
    else:
        show(facts(_facts(drainer)))


# --- draining and moving --------------------------------------------------------------------------------------------


@drainers.command("drain")
@click.argument("name", required=False)
@json_option
@connection_options
@with_app
def drain(app: App, /, name: str | None, as_json: bool) -> None:
    """Drain here and now until nothing is left: one drainer, or all that the app has.

    The built-in one can be drained by anybody, others with the --app that declares them. Ends with 1 if it halts.
    """
    from .failure import Failure
    from .output import print_json

    drained = wait_for(app.drainers.drain(name))
    if as_json:
        print_json(_as_json(drained))
    else:
        click.echo(_told(drained))
    if drained.error is not None:
        raise Failure(f"halted on event {drained.halted_on_event_id}: {drained.error}")


@drainers.command("reset")
@click.argument("name")
@click.option(
    "--to", required=True, metavar="PLACE", help="beginning, now, a moment like 2026-11-16T12:00Z, or a token."
)
@click.option("--dry-run", is_flag=True, help="Only say how many events would be read from there.")
@connection_options
@with_app
def reset(app: App, /, name: str, to: str, dry_run: bool) -> None:
    """Have a drainer go on from elsewhere. Events that it has dealt with before come again.

    The built-in drainer starts no second run for an event; `drainers replay` does.
    """
    done = wait_for(app.drainers.reset(name, _place(to), dry_run=dry_run))
    click.echo(f"{name} {'would read' if done.dry_run else 'reads'} {_counted(done.events)} from there")


@drainers.command("remove")
@click.argument("name")
@connection_options
@with_app
def remove(app: App, /, name: str) -> None:
    """Forget a drainer and how far it was. One that code declares begins anew when a worker with that code starts."""
    wait_for(app.drainers.remove(name))
    click.echo(f"{name} removed")


@drainers.command("replay")
@click.argument("subscription")
@click.option("--since", metavar="TIME|MOMENT", help="Events recorded since, like 10m or 2026-11-16T12:00Z.")
@click.option("--until", metavar="TIME|MOMENT", help="Events recorded before then.")
@click.option("--name", help="A replay of the same name starts no run twice.")
@click.option("--go", is_flag=True, help="Start the runs. Without it, only say how many there would be.")
@json_option
@connection_options
@with_app
def replay(
    app: App, /, subscription: str, since: str | None, until: str | None, name: str | None, go: bool, as_json: bool
) -> None:
    """Give a subscription the events of a time again, whether they have started a run before or not."""
    from .output import print_json

    start, end = since and _moment(since, "--since"), until and _moment(until, "--until")
    done = wait_for(
        app.drainers.replay(subscription, since=start or None, until=end or None, name=name, dry_run=not go)
    )
    if as_json:
        print_json(_as_json(done))
        return
    verb = "would start" if done.dry_run else "started"
    click.echo(f"{verb} {done.runs} of {done.function} for {_counted(done.events)}, {done.refused} refused")
    for refusal in done.refusals:
        note(f"{refusal.event_id} {refusal.code}: {refusal.message}")
    if done.dry_run:
        note("nothing was started; add --go to do it")


# --- parked events --------------------------------------------------------------------------------------------------


@drainers.command("parked")
@click.argument("subscription", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@json_option
@connection_options
@with_app
def parked(app: App, /, subscription: str | None, limit: int, as_json: bool) -> None:
    """List events that subscriptions could not be given, and why."""
    from .output import print_json

    found = wait_for(app.drainers.parked(subscription, limit=limit))
    if as_json:
        print_json(found)
    elif found:
        _show_parked(found)
    else:
        note("nothing is parked")


@drainers.command("retry")
@click.argument("subscription", required=False)
@click.option("--event", metavar="ID", help="Only this one, and in an ordered subscription those of its entity.")
@json_option
@connection_options
@with_app
def retry(app: App, /, subscription: str | None, event: str | None, as_json: bool) -> None:
    """Give parked events to their subscriptions again, in order: all, those of a subscription, or one."""
    from .output import print_json

    drained = wait_for(app.drainers.retry_parked(subscription, event=event))
    if as_json:
        print_json(_as_json(drained))
    else:
        click.echo(f"{drained.processed} let go, {len(drained.triggered)} runs started, {drained.parked} still parked")


@drainers.command("discard")
@click.argument("subscription")
@click.option("--event", metavar="ID", help="Only this one. What waits behind it follows.")
@connection_options
@with_app
def discard(app: App, /, subscription: str, event: str | None) -> None:
    """Take parked events of a subscription away. They are not started; in the ledger they stay."""
    click.echo(f"{wait_for(app.drainers.discard_parked(subscription, event=event))} discarded")


# --- reading from outside -------------------------------------------------------------------------------------------


@drainers.command("add")
@click.argument("name")
@click.option("--on", default="**", show_default=True, metavar="GLOB", help="Which events, like invoice.*")
@click.option("--from", "start", default="beginning", show_default=True, metavar="PLACE", help="Or now, or a moment.")
@connection_options
@with_app
def add(app: App, /, name: str, on: str, start: str) -> None:
    """Make a drainer that is read from outside, with `drainers read` and `drainers ack`."""
    begin = start if start in ("beginning", "now") else _moment(start, "--from")
    drainer = wait_for(app.drainers.add(name, on=on, start_at=begin))
    click.echo(f"{name} {drainer.position}")


@drainers.command("read")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@json_option
@connection_options
@with_app
def read(app: App, /, name: str, limit: int, as_json: bool) -> None:
    """Print the next events of a drainer, and the token that acknowledges them."""
    from .output import print_json

    batch = wait_for(app.drainers.read(name, limit))
    if as_json:
        print_json({"events": batch.events, "token": batch.token})
    elif batch.events:
        _show_events(batch.events)
        note(f"acknowledge them: ostinato drainers ack {name} {batch.token}")
    else:
        note("nothing to read")


@drainers.command("ack")
@click.argument("name")
@click.argument("token")
@connection_options
@with_app
def acknowledge(app: App, /, name: str, token: str) -> None:
    """Say that what was read with this token has been dealt with."""
    wait_for(app.drainers.acknowledge(name, token))
    click.echo(f"{name} acknowledged")


# --- words ----------------------------------------------------------------------------------------------------------


def _place(text: str) -> str | datetime:
    """`beginning`, `now` and tokens as they are; what looks like a moment is one."""
    return _moment(text, "--to") if text[:4].isdecimal() and text[4:5] == "-" else text


def _moment(text: str, option: str) -> datetime:
    """A moment, or how long ago."""
    from ..clock import seconds
    from ..errors import ConfigError

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - timedelta(seconds=seconds(text, what=option))
        except ConfigError as error:
            raise click.BadParameter(
                f"{text!r} is no moment; write it like 2026-11-16T12:00Z, or 10m for ten minutes ago", param_hint=option
            ) from error
    return moment if moment.tzinfo is not None else moment.astimezone()


def _as_json(value: Any) -> Any:
    """Named tuples as objects."""
    from msgspec import to_builtins

    fields = to_builtins(value, enc_hook=str)
    for name in ("triggered", "refusals"):
        if name in fields:
            fields[name] = [each._asdict() for each in getattr(value, name)]
    return fields


def _counted(events: int) -> str:
    from ..model.drainer import MOST_LAG

    return "1 event" if events == 1 else f"{MOST_LAG} events or more" if events >= MOST_LAG else f"{events} events"


def _told(drained: Drained) -> str:
    told = f"{_counted(drained.processed)} processed, {len(drained.triggered)} runs started, {drained.parked} parked"
    return told + (", and another process drains" if drained.skipped_due_to_lock else "")


def _show_all(found: Sequence[DrainerView]) -> None:
    from .output import cut, show, table
    from .words import ago

    columns = ("drainer", "events", "lag", "processed", "parked", "last drained", "state", "declared by")
    made = table(*columns, right=("lag", "processed", "parked"), flexible=("state", "declared by"))
    for drainer in found:
        made.add_row(
            drainer.name,
            drainer.glob,
            drainer.lag_in_words,
            str(drainer.events_processed_total),
            str(drainer.parked),
            ago(drainer.last_drained_at) if drainer.last_drained_at else "-",
            cut(_state(drainer)),
            cut(drainer.origin),
        )
    show(made)


def _state(drainer: DrainerView) -> str:
    if drainer.error is None:
        return "ok"
    return f"halted on {drainer.halted_on}: {drainer.error}" if drainer.halted_on else f"halted: {drainer.error}"


def _facts(drainer: DrainerView) -> Iterator[tuple[str, Any]]:
    from .words import moment

    yield "drainer", drainer.name
    yield "events", drainer.glob
    yield "declared by", drainer.origin
    yield "position", drainer.position
    yield "lag", drainer.lag_in_words
    yield "processed", str(drainer.events_processed_total)
    yield "last drained", moment(drainer.last_drained_at)
    yield "parked", str(drainer.parked)
    yield "state", _state(drainer)
    if drainer.error is not None:
        yield "failures", f"{drainer.failures} in a row"
        yield "next try", moment(drainer.retry_at)
    yield "created", moment(drainer.created_at)
    yield "token", drainer.token


def _show_events(events: Sequence[Event]) -> None:
    from .output import as_json, cut, show, table
    from .words import ago

    made = table("event", "type", "entity", "recorded", "payload", flexible=("payload",))
    for event in events:
        entity = f"{event.entity_type} {event.entity_id}" if event.entity is not None else "-"
        payload = " ".join(as_json(event.payload).split())
        made.add_row(event.id, event.type, entity, ago(event.recorded_at), cut(payload))
    show(made)


def _show_parked(found: Sequence[ParkedView]) -> None:
    from .output import cut, show, table
    from .words import ago

    made = table("subscription", "event", "type", "entity", "parked", "why", flexible=("why",))
    for each in found:
        made.add_row(
            each.subscription,
            each.event_id,
            each.event_type or "removed by retention",
            f"{each.entity_type} {each.entity_id}" if each.entity_id is not None else "-",
            ago(each.parked_at),
            cut(f"{each.code}: {each.message}"),
        )
    show(made)
