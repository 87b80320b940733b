"""Checks of the schema and of the work in it, the same on both databases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from ...model.diagnosis import MissingGrant, QueueHealth, StrandedRuns
from ...store.ports import MigrationView
from .findings import Finding, counted, error, lasting, note, ok, warning

LARGEST_SKEW = 2.0
RESCUED_WITHIN = 60.0
_SHOWN = 3


def migrations(steps: Sequence[MigrationView], *, automatic: bool) -> Iterator[Finding]:
    missing = [f"{step.version:04} {step.name}" for step in steps if step.applied_at is None]
    newer = [f"{step.version:04} {step.name}" for step in steps if step.applied_at and step.checksum_matches is None]
    changed = [f"{step.version:04} {step.name}" for step in steps if step.checksum_matches is False]
    if missing and automatic:
        yield note("schema", f"{', '.join(missing)} not applied", "that happens when it is next opened to work")
    elif missing:
        yield error("schema", f"{', '.join(missing)} not applied", "ostinato migrate up")
    if changed:
        yield error(
            "schema",
            f"{', '.join(changed)} applied with another content than this version ships",
            "deploy the version that made this schema, and migrate from there",
        )
    if newer:
        yield note("schema", f"{', '.join(newer)} applied by a newer version than this one", "deploy that one here too")
    if not missing and not changed and not newer:
        yield ok("schema", "as this version ships it")


def grants(missing: Sequence[MissingGrant] | None) -> Iterator[Finding]:
    """By role: one line says what it lacks. None: there are no roles."""
    for (role, kind), lacking in groupby(missing or (), key=lambda grant: (grant.role, grant.kind)):
        what = [grant.what for grant in lacking]
        shown = ", ".join(what[:_SHOWN]) + (f" and {len(what) - _SHOWN} more" if len(what) > _SHOWN else "")
        if kind == "nothing":
            yield error("grants", f"the role {role} has no rights to runs", f"ostinato migrate grant --worker {role}")
        else:
            yield error(
                "grants", f"the {kind} {role} lacks {shown}", f"as the owner: ostinato migrate grant --{kind} {role}"
            )
    if missing == []:
        yield ok("grants", "no role lacks anything")


def clock(skew: float, doubt: float) -> Iterator[Finding]:
    """How far the database's clock is ahead of this machine's; `doubt`: how far off the comparison may be."""
    if abs(skew) - doubt > LARGEST_SKEW:
        where = "ahead of" if skew > 0 else "behind"
        yield warning(
            "clock",
            f"the database's clock is {lasting(abs(skew))} {where} this machine's",
            "synchronise both (NTP); leases follow the database's, but ids and instants made here do not",
        )
    else:
        yield ok("clock", f"this machine and the database agree within {max(abs(skew), doubt) * 1000:.0f} ms")


def wakeups(*, hears: bool, why: str, pooled: bool, notify: bool, apart: bool) -> Iterator[Finding]:
    """`apart`: whether there is an address for listening alone."""
    by_polling = "wake-ups come by polling, every second"
    if not notify:
        yield note("wake-ups", "they are switched off: workers poll", "set OSTINATO_NOTIFY=on")
    elif hears and pooled and apart:
        yield ok("wake-ups", "a pooler is between; notifications arrive by OSTINATO_LISTEN_URL")
    elif hears and pooled:
        yield ok("wake-ups", "a pooler in session mode is between; notifications arrive")
    elif hears:
        yield ok("wake-ups", "they arrive")
    elif pooled and not apart:
        yield warning(
            "wake-ups",
            f"a pooler in transaction mode is between (pgbouncer?), which swallows notifications: {by_polling}",
            "set OSTINATO_LISTEN_URL to an address that leads to the server directly",
        )
    else:
        yield warning(
            "wake-ups",
            f"notifications do not arrive ({why}): {by_polling}",
            "set OSTINATO_LISTEN_URL to an address that leads to the server directly, and can be reached from here",
        )


def queues(waiting: Sequence[QueueHealth]) -> Iterator[Finding]:
    found = [*_queues(waiting)]
    yield from found or [ok("queues", f"{counted(sum(each.ready for each in waiting), 'run')} ready, all served")]


def _queues(waiting: Sequence[QueueHealth]) -> Iterator[Finding]:
    for each in waiting:
        amount = counted(each.ready + each.held, "run waits", "runs wait")
        since = f", the oldest for {lasting(each.oldest)}" if each.oldest else ""
        if each.paused:
            yield warning(
                "queues",
                f"{each.queue!r} is paused, and {amount} in it{since}",
                f"ostinato queues resume {each.queue}",
            )
        elif not each.workers:
            yield warning(
                "queues",
                f"nobody works on {each.queue!r}, and {amount} in it{since}",
                f"start a worker that does: ostinato worker module:app --queues {each.queue}",
            )


def stranded(groups: Sequence[StrandedRuns], *, alive: int) -> Iterator[Finding]:
    for group in groups:
        seen = f"{counted(group.runs, 'run')} of the dead worker {group.worker}"
        if not alive:
            yield warning(
                "workers", f"{seen}: nobody lives who could take over", "start a worker: ostinato worker module:app"
            )
        elif group.seconds > RESCUED_WITHIN:
            yield error(
                "workers",
                f"{seen}: left for {lasting(group.seconds)}, although others live",
                "see the workers' logs for store_troubled; restart them",
            )
        else:
            yield note("workers", f"{seen}: about to be taken over")
    if not groups:
        yield ok("workers", f"{counted(alive, 'worker')} alive, none dead with runs")


def functions(undeclared: Mapping[str, int]) -> Iterator[Finding]:
    for name, amount in undeclared.items():
        yield warning(
            "functions",
            f"{counted(amount, 'run')} of {name!r}, which no worker has ever declared",
            "start a worker whose app declares it, or cancel them",
        )
    if not undeclared:
        yield ok("functions", "all that waits is of functions that workers have declared")
