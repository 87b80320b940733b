"""Steps that wait: for a time, for an event, for another run; and the one that records an event."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec import json, structs

from ...clock import Duration, seconds, utc
from ...codec import sorted_json
from ...errors import ConfigError, InvalidOption, StepMisused, UnknownFunction
from ...model import matching
from ...model.change import RunInserted
from ...model.event import Event
from ...model.glob import checked
from ...model.run import Reason
from ...model.schedule import micros
from ...model.step import LONGEST_SLEEP, Kind, Memo, Status
from ..ledger import recording
from .callees import LONGEST_INPUT
from .steps import Step, Steps, failed

PAGE = 500


async def sleep(steps: Steps, name: str, delay: float, *, key: str | None = None) -> None:
    """Returns when the time has come, however many workers have come and gone."""
    step = await steps.find(name, _apart(key, b"s"), Kind.SLEEP)
    await _sleep(steps, step, delay)


async def _sleep(steps: Steps, step: Step, delay: float) -> None:
    memo = step.memo
    if memo is not None and memo.status == Status.COMPLETED:
        return
    if memo is None and delay > 0:
        with steps.suspension:
            await steps.save(step, Status.PENDING, delay=delay)
    if (delay if memo is None else steps.remaining(memo)) > 0:
        await steps.suspension.wait(Reason.SLEEP, step.id)
    with steps.suspension:
        await steps.save(step, Status.COMPLETED, output="null")
    steps.completed(step)


def _apart(key: str | None, otherwise: bytes) -> bytes:
    """What makes a step different from others of its name and kind."""
    return otherwise if key is None else otherwise[:1] + b"k" + key.encode()


def duration(given: Duration, *, what: str) -> float:
    """Seconds to sleep or to wait, up to a year."""
    try:
        amount = seconds(given, what=what)
    except ConfigError as error:
        raise InvalidOption(str(error)) from error
    if amount > LONGEST_SLEEP:
        raise InvalidOption(f"{what} {given!r} is longer than a year")
    return amount


async def sleep_until(steps: Steps, name: str, moment: datetime, *, key: str | None = None) -> None:
    """The moment is compared with the database's clock, once."""
    try:
        wanted = utc(moment, what="the moment to sleep until")
    except ConfigError as error:
        raise InvalidOption(str(error)) from error
    step = await steps.find(name, _apart(key, b"s"), Kind.SLEEP, json.encode(wanted.isoformat()).decode())
    delay = 0.0
    if step.memo is None:
        with steps.suspension:
            now = datetime.fromtimestamp(await steps.database_time() / 1_000_000, UTC)
        delay = duration(max(0.0, (wanted - now).total_seconds()), what="the time until")
    await _sleep(steps, step, delay)


async def wait_for(
    steps: Steps,
    name: str,
    event_type: str,
    *,
    match: str | Mapping[str, Any] | None,
    timeout: Duration | None,
    since: datetime | Duration | None,
    key: str | None = None,
) -> Event | None:
    """The first event of the type that matches; None when the time is over."""
    glob = checked(event_type)
    matches = matching.text_of(match)
    limit = None if timeout is None else duration(timeout, what="timeout")
    apart = _apart(key, f"e{glob}\n{matches}".encode())
    step = await steps.find(name, apart, Kind.EVENT, json.encode([glob, matching.shown(match)]).decode())
    if step.memo is not None and step.memo.status == Status.COMPLETED:
        return _event_in(step.memo)
    with steps.suspension:
        memo = await _waited(steps, step, _Wanted(glob, matches, limit, since))
    if memo.status != Status.COMPLETED:
        await steps.suspension.wait(Reason.EVENT, step.id)
    return _event_in(memo)


class _Wanted(NamedTuple):
    """What is waited for."""

    glob: str
    matches: str | None
    limit: float | None
    since: datetime | Duration | None


async def _waited(steps: Steps, step: Step, wanted: _Wanted) -> Memo:
    """A step that waits is *running* until it has looked back, and pending from then on: a worker that dies between
    leaves that to the next. The drainer finds either."""
    memo = step.memo
    if memo is None:
        glob, matches, limit, _ = wanted
        moment = await _since(steps, wanted.since)
        fields: dict[str, Any] = {
            "awaits": glob,
            "wild": "*" in glob,
            "matches": matches,
            "delay": limit,
            "since": moment,
        }
        await steps.save(step, Status.RUNNING, **fields)
    if memo is None or memo.status == Status.RUNNING:
        memo = await _look_back(steps, step, wanted.glob, wanted.matches)
    remaining = steps.remaining(memo)
    if memo.status == Status.COMPLETED or (memo.status == Status.PENDING and remaining > 0):
        return memo
    if remaining > 0:
        delay = None if remaining == float("inf") else remaining
        await steps.save(step, Status.PENDING, delay=delay)
        return memo
    await steps.save(step, Status.COMPLETED, output="null")
    return await steps.reread(step)  # the event may have come at the last moment


def _event_in(memo: Memo) -> Event | None:
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
                await steps.meet(step, event)
                if (memo := await steps.reread(step)).status == Status.COMPLETED:
                    return memo
        after = page[-1].sequence_no
    return memo


async def send(
    steps: Steps,
    name: str,
    event_type: str,
    payload: Any,
    options: recording.RecordOptions,
    *,
    key: str | None = None,
) -> str:
    """Records an event once, in the commit that remembers that it was; answers its id."""
    event = recording.one(steps.door, event_type, payload, options)
    if event.run_id != steps.run_id:
        raise StepMisused("run.send() outside of the run that it belongs to")
    given = sorted_json([event_type, payload])
    shown = given.decode() if len(given) <= LONGEST_INPUT else None
    step = await steps.find(name, _apart(key, b"r" + given), Kind.SEND, shown)
    if step.memo is not None:
        return json.decode(step.memo.output or "null", type=str)
    output = json.encode(event.id).decode()
    with steps.suspension:
        await steps.save(step, Status.COMPLETED, output=output, others=[event])
        if event.idempotency_key is not None:  # what was recorded before under the key stands for it
            output = (await steps.reread(step)).output or "null"
    steps.completed(step)
    return json.decode(output, type=str)


async def invoke(steps: Steps, name: str, child: RunInserted, given: bytes, *, key: str | None = None) -> Any:
    """The result of another function's run, which is started once and waited for."""
    if child.key is not None:
        raise InvalidOption(
            f"step {name!r}: run.invoke() starts a run of its own, once; it takes no key=, which may find another's"
        )
    shown = bytes(child.input).decode() if len(bytes(child.input)) <= LONGEST_INPUT else None
    step = await steps.find(name, _apart(key, b"i%b\n%b" % (child.function.encode(), given)), Kind.INVOKE, shown)
    memo = step.memo
    if memo is None:
        with steps.suspension:
            child = structs.replace(child, parent_run=steps.run_id, parent_step=step.id)
            try:
                await steps.save(step, Status.PENDING, child=child.id, others=[child])
            except UnknownFunction:
                raise await steps.unknown(child.function) from None
    elif memo.status == Status.FAILED:
        raise failed(name, memo)
    if memo is None or memo.status == Status.PENDING:
        await steps.suspension.wait(Reason.CHILD, step.id)
    return json.decode(memo.output or "null")
