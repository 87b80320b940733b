"""Verbs for many runs: the options that say which, the question before it is done, and what is said after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .failure import Failure, note
from .options import duration, json_option, wait_for

if TYPE_CHECKING:
    from ..app import App
    from ..model.view import BulkOutcome, RunView

Command = Callable[..., Any]
Verb = Callable[..., Awaitable["BulkOutcome"]]


class Words(NamedTuple):
    """What a verb says."""

    question: str
    """`cancel`, for `cancel 3 runs?`; empty if it need not be asked."""
    done: str
    would: str
    left: str


CANCEL = Words(
    "cancel", "cancelled", "would be cancelled", "are changing just now; say it again if they are still there"
)
RETRY = Words("", "will go again", "would go again", "cannot: other runs hold their keys")
PURGE = Words("delete", "deleted", "would be deleted", "are changing just now; say it again if they are still there")


# --- options


def filter_options(*names: str) -> Callable[[Command], Command]:
    """Those of --function, --queue, --key, --code, --older-than and --newer-than that are named; all, if none is."""

    def decorate(command: Command) -> Command:
        for name in reversed(names or tuple(_FILTERS)):
            command = click.option(f"--{name}", **_FILTERS[name])(command)
        return command

    return decorate


_FILTERS: dict[str, dict[str, Any]] = {
    "function": {"help": "Only runs of this function."},
    "queue": {"help": "Only runs of this queue."},
    "key": {"help": "Only runs with this key."},
    "code": {"help": "Only runs whose last error has this code, like ValueError."},
    "older-than": {
        "callback": duration,
        "metavar": "TIME",
        "help": "Only runs that ended, or were created if they have not ended, longer ago, like 1d.",
    },
    "newer-than": {"callback": duration, "metavar": "TIME", "help": "Only runs that did so since."},
}


def state_option(*states: str, default: str) -> Callable[[Command], Command]:
    return click.option(
        "--state",
        multiple=True,
        type=click.Choice(states),
        help=f"Only runs in this state; may be repeated ({default}).",
    )


def bulk_options(command: Command) -> Command:
    """--limit, --dry-run and --json."""
    command = json_option(command)
    command = click.option("--dry-run", is_flag=True, help="Only say how many there are, and show some.")(command)
    return click.option("--limit", type=click.IntRange(min=1), help="At most so many, the oldest first.")(command)


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


# --- doing it


def carry_out(
    app: App, verb: Verb, words: Words, *, yes: bool = False, dry_run: bool = False, as_json: bool = False, **given: Any
) -> None:
    """Does it to all runs that are meant, once somebody has agreed."""
    if dry_run:
        _say_what_would_be(app, wait_for(_ask(verb, dry_run=True, **given)), words, as_json=as_json)
        return
    if words.question and not yes:
        _make_sure(wait_for(_ask(verb, dry_run=True, **given)), words)
    _say_what_was_done(wait_for(_ask(verb, **given)), words, as_json=as_json)


async def _ask(verb: Verb, **given: Any) -> BulkOutcome:
    return await verb(**given)


def _make_sure(found: BulkOutcome, words: Words) -> None:
    """Goes on only after a yes. Without anybody to ask, --yes must be said."""
    if found.count and not click.confirm(f"{words.question} {counted(found.count)}?", err=True):
        raise Failure("nothing was changed")


def _say_what_was_done(outcome: BulkOutcome, words: Words, *, as_json: bool) -> None:
    from .output import print_json

    if as_json:
        print_json(outcome)
        return
    click.echo(f"{counted(outcome.count)} {words.done}")
    if outcome.left:
        note(f"{outcome.left:,} {words.left}")


def _say_what_would_be(app: App, outcome: BulkOutcome, words: Words, *, as_json: bool) -> None:
    from .output import print_json
    from .run_views import show_runs

    if as_json:
        print_json(outcome)
        return
    click.echo(f"{counted(outcome.count)} {words.would}")
    if runs := wait_for(_runs(app, outcome.sample)):
        if outcome.count > len(runs):
            note(f"the first {len(runs)}:")
        show_runs(runs)


async def _runs(app: App, ids: Sequence[str]) -> list[RunView]:
    """The runs that are still there."""
    from ..errors import UnknownRun

    found = []
    async with app:
        for run_id in ids:
            try:
                found.append(await app.runs.get(run_id))
            except UnknownRun:
                continue
    return found


def counted(number: int) -> str:
    return f"{number:,} {'run' if number == 1 else 'runs'}"
