"""Steps that wait: for a time, for an event, for another run; and the one that records an event."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import json

from ...clock import Duration, seconds, utc
from ...errors import ConfigError, InvalidOption, StepMisused
from ...model import matching
from ...model.change import EventRecorded, RunInserted
from ...model.event import Event
from ...model.glob import checked
from ...model.run import Reason
from ...model.schedule import micros
from ...model.step import LONGEST_SLEEP, Kind, Memo, Status
from ..ledger import recording
from .steps import Step, Steps, failed

PAGE = 500


async def sleep(steps: Steps, name: str, delay: float, until: str | None = None) -> None:
    """Returns when the time has come, however many workers have come and gone."""
    step = await steps.find(name, b"s", Kind.SLEEP, until)
    if step.memo is None:
        await _begin(steps, step, delay=delay)
        if delay > 0:
            await steps.suspension.wait(Reason.SLEEP)
    elif step.memo.status == Status.COMPLETED:
        return
    elif steps.remaining(step.memo) > 0:
        await steps.suspension.wait(Reason.SLEEP)
    await _end(steps, step, "null")


def duration(given: Duration, *, what: str) -> float:
    """Seconds to sleep or to wait, up to a year."""
    try:
        amount = seconds(given, what=what)
    except ConfigError as error:
        raise InvalidOption(str(error)) from error
    if amount > LONGEST_SLEEP:
        raise InvalidOption(f"{what} {given!r} is longer than a year")
    return amount


async def sleep_until(steps: Steps, name: str, moment: datetime) -> None:
    """The moment is compared with the database's clock, once."""
    try:
        wanted = utc(moment, what="the moment to sleep until")
    except ConfigError as error:
        raise InvalidOption(str(error)) from error
    now = datetime.fromtimestamp(await steps.database_time() / 1_000_000, UTC)
    delay = duration(max(0.0, (wanted - now).total_seconds()), what="the time until")
    await sleep(steps, name, delay, json.encode(wanted.isoformat()).decode())


async def wait_for(
    steps: Steps,
    name: str,
    event_type: str,
    *,
    match: str | Mapping[str, Any] | None,
    timeout: Duration | None,
    since: datetime | Duration | None,
) -> Event | None:
    """The first event of the type that matches; None when the time is over."""
    glob = checked(event_type)
    matches = matching.text_of(match)
    limit = None if timeout is None else duration(timeout, what="timeout")
    step = await steps.find(name, f"e{glob}".encode(), Kind.EVENT, json.encode([glob, match]).decode())
    memo = step.memo
    if memo is None:
        moment = await _since(steps, since)
        fields = {"awaits": glob, "wild": "*" in glob, "matches": matches, "delay": limit, "since": moment}
        await _begin(steps, step, **fields)
        memo = await _look_back(steps, step, glob, matches)
    if memo.status == Status.PENDING and steps.remaining(memo) <= 0:
        await steps.save(step, Status.COMPLETED, output="null")
        memo = await steps.reread(step)  # the event may have come at the last moment
    if memo.status == Status.PENDING:
        await steps.suspension.wait(Reason.EVENT)
    return json.decode(memo.output or "null", type=Event | None)


async def _since(steps: Steps, since: datetime | Duration | None) -> int | None:
    """From which moment on, in microseconds; None for when the run started."""
    if since is None:
        return None
    try:
        if isinstance(since, datetime):
            return micros(utc(since, what="since"))
        return await steps.database_time() - round(1_000_000 * seconds(since, what="since"))
    except ConfigError as error:
        raise InvalidOption(str(error)) from error


async def _look_back(steps: Steps, step: Step, glob: str, matches: str | None) -> Memo:
    """An event that was recorded before the wait was. From now on the drainer finds it; either gives it once."""
    memo = await steps.reread(step)
    accepts, after = matching.compiled(matches), 0
    assert memo.since is not None
    while page := await steps.earlier(glob, since=memo.since, after=after, limit=PAGE):
        for event in page:
            if accepts(event) and not steps.has_used(event.id):
                await steps.save(step, Status.COMPLETED, output=json.encode(event).decode(), event_id=event.id)
                return await steps.reread(step)
        after = page[-1].sequence_no
    return memo


async def send(steps: Steps, name: str, event_type: str, payload: Any, options: recording.RecordOptions) -> str:
    """Records an event once, in the commit that remembers that it was; answers its id."""
    event = recording.one(steps.door, event_type, payload, options)
    given = json.encode([event_type, json.decode(event.payload)]).decode()
    step = await steps.find(name, b"r", Kind.SEND, given if len(given) <= 4096 else None)
    if step.memo is not None:
        return json.decode(step.memo.output or "null", type=str)
    output = json.encode(event.id).decode()
    steps.suspension.begin()
    try:
        await steps.save(step, Status.COMPLETED, output=output, others=[_under_the_run(event, steps)])
    finally:
        steps.suspension.end()
    steps.completed(step, output)
    return event.id


def _under_the_run(event: EventRecorded, steps: Steps) -> EventRecorded:
    """Recorded only if the run's fence holds."""
    if event.run_id != steps.run_id:
        raise StepMisused("run.send() outside of the run that it belongs to")
    return event


async def invoke(steps: Steps, name: str, child: RunInserted) -> Any:
    """The result of another function's run, which is started once and waited for."""
    step = await steps.find(name, b"i" + child.function.encode(), Kind.INVOKE, bytes(child.input).decode())
    memo = step.memo
    if memo is None:
        await _begin(steps, step, child=child.id, others=[_child_of(child, steps, step)])
        await steps.suspension.wait(Reason.CHILD)
    assert memo is not None
    if memo.status == Status.FAILED:
        raise failed(name, memo)
    if memo.status == Status.PENDING:
        await steps.suspension.wait(Reason.CHILD)
    return json.decode(memo.output or "null")


def _child_of(child: RunInserted, steps: Steps, step: Step) -> RunInserted:
    fields = {field: getattr(child, field) for field in child.__struct_fields__}
    return RunInserted(**{**fields, "parent_run": steps.run_id, "parent_step": step.id})


async def _begin(steps: Steps, step: Step, **fields: Any) -> None:
    """Writes down that it waits, and for what."""
    steps.suspension.begin()
    try:
        await steps.save(step, Status.PENDING, **fields)
    finally:
        steps.suspension.end()


async def _end(steps: Steps, step: Step, output: str) -> None:
    steps.suspension.begin()
    try:
        await steps.save(step, Status.COMPLETED, output=output)
    finally:
        steps.suspension.end()
    steps.completed(step, output)
