"""`ostinato schedules`: which functions are started when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from .failure import note
from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from rich.text import Text

    from ..app import App
    from ..model.view import ScheduleView

SHOWN = 5


@click.group(short_help="List, show, pause, resume and fire schedules.")
@connection_options
def schedules() -> None:
    """List, show, pause, resume and fire schedules."""


@schedules.command("list")
@json_option
@connection_options
@with_app
def list_schedules(app: App, /, as_json: bool) -> None:
    """List all schedules, with their next slots in their own time zones."""
    from .output import print_json

    found = wait_for(app.schedules.list())
    if as_json:
        print_json([_as_json(schedule, 1) for schedule in found])
    elif found:
        _show_all(found)
    else:
        note("no schedules; declare one with @app.cron and start a worker: ostinato worker module:app")


@schedules.command("show")
@click.argument("name")
@click.option("--next", "count", type=click.IntRange(0, 1000), default=SHOWN, show_default=True, help="So many slots.")
@json_option
@connection_options
@with_app
def show_schedule(app: App, /, name: str, count: int, as_json: bool) -> None:
    """Show everything that is known of a schedule, and its next slots."""
    from .output import facts, print_json, show

    schedule = wait_for(app.schedules.get(name))
    if as_json:
        print_json(_as_json(schedule, count))
    else:
        show(facts(_facts(schedule, count)))


@schedules.command("pause")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connection_options
@with_app
def pause_schedules(app: App, /, names: Sequence[str]) -> None:
    """Stop schedules from firing until they are resumed, also when workers are started meanwhile."""
    wait_for(_each(app, names, app.schedules.pause))


@schedules.command("resume")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connection_options
@with_app
def resume_schedules(app: App, /, names: Sequence[str]) -> None:
    """Let paused schedules go on from their next slots. What came while they were paused is over."""
    wait_for(_each(app, names, app.schedules.resume))


async def _each(app: App, names: Sequence[str], verb: Any) -> None:
    """A line for each; the first that is not there ends it."""
    from .words import ago

    async with app:
        for name in dict.fromkeys(names):
            schedule = await verb(name)
            following = "".join(f", next {_local(slot)} ({ago(slot)})" for slot in schedule.upcoming(1))
            click.echo(f"{name} {schedule.state}{following}")


@schedules.command("fire")
@click.argument("name")
@connection_options
@with_app
def fire_schedule(app: App, /, name: str) -> None:
    """Start a run now, as the schedule would, print its id, and leave the schedule as it is."""
    click.echo(wait_for(app.schedules.fire(name)).id)


# --- words ----------------------------------------------------------------------------------------------------------


def _as_json(schedule: ScheduleView, count: int) -> dict[str, Any]:
    from msgspec import to_builtins

    slots = [slot.isoformat() for slot in schedule.upcoming(count)]
    return {**to_builtins(schedule, enc_hook=str), "state": schedule.state, "upcoming": slots}


def _show_all(found: Sequence[ScheduleView]) -> None:
    from .output import cut, show, table

    made = table("schedule", "function", "when", "zone", "state", "next", "last", flexible=("function", "last"))
    for schedule in sorted(found, key=lambda each: (each.state, each.next_at)):
        made.add_row(
            schedule.name,
            cut(schedule.function),
            schedule.expression,
            schedule.tz,
            _state(schedule),
            _next(schedule),
            cut(_last(schedule)),
        )
    show(made)


def _facts(schedule: ScheduleView, count: int) -> Iterator[tuple[str, Any]]:
    from .output import as_json
    from .words import ago, moment, span

    yield "schedule", schedule.name
    yield "function", schedule.function
    if schedule.queue is not None:
        yield "queue", schedule.queue
    yield "when", f"{schedule.expression}: {schedule.cron.explained()}, {schedule.tz}"
    yield "state", _state(schedule)
    if schedule.state == "undeclared":
        yield "why", "no worker that declares it is alive; start one, or leave it: it is forgotten after 30 days"
    for place, slot in enumerate(schedule.upcoming(count)):
        yield "" if place else "next", f"{_local(slot)} ({ago(slot)})"
    yield "last", _last(schedule)
    yield "missed slots", _rule(schedule)
    if schedule.jitter:
        yield "jitter", f"up to {span(schedule.jitter)} after the slot"
    if schedule.priority:
        yield "priority", str(schedule.priority)
    if schedule.input:
        yield "input", as_json(schedule.input)
    yield "declared by", schedule.origin
    yield "declared", moment(schedule.declared_at)


def _state(schedule: ScheduleView) -> Text:
    from rich.text import Text

    colours = {"active": "green", "paused": "yellow", "undeclared": "dim"}
    return Text(schedule.state, colours[schedule.state])


def _next(schedule: ScheduleView) -> str:
    from .words import ago

    return "".join(f"{_local(slot)} ({ago(slot)})" for slot in schedule.upcoming(1)) or "-"


def _last(schedule: ScheduleView) -> str:
    from .words import ago

    if schedule.last_slot is None:
        return "-"
    slot = schedule.last_slot.astimezone(schedule.cron.zone)
    state = schedule.last_state.value if schedule.last_state else "removed by retention"
    return f"{_local(slot)} ({ago(slot)}): run {schedule.last_run_id}, {state}"


def _rule(schedule: ScheduleView) -> str:
    from .words import span

    within = f"if it is at most {span(schedule.catch_up, units=1)} ago"
    return {"skip": "skipped", "once": f"the latest is made up for, {within}", "all": f"each is made up for, {within}"}[
        schedule.missed
    ]


def _local(slot: datetime) -> str:
    """A slot in its own zone."""
    return f"{slot:%a %Y-%m-%d %H:%M} {slot.tzname()}"
