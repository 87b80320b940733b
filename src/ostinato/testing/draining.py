"""Executing what is due, here and now, in place of a worker that does so beside the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from msgspec import json

import ostinato
from ostinato.app import App
from ostinato.clock import Duration, seconds, utc
from ostinato.config import DEFAULT_CONCURRENCY
from ostinato.engine.active import Active
from ostinato.engine.intake import Intake
from ostinato.engine.service import AT_ONCE
from ostinato.engine.worker import FORCED_PATIENCE, Worker, first_of
from ostinato.errors import ConfigError, OstinatoError, RunFailed, UnknownFunction
from ostinato.ids import new_id
from ostinato.model.outcome import (
    Cancelled,
    Done,
    Failed,
    GivenBack,
    Interrupted,
    Settled,
    Stop,
    Suspended,
    Unknown,
    next_delay,
)
from ostinato.model.run import START, Claimed, Reason, State
from ostinato.store.ports import Ended

from .aside import running_loop
from .clock import Clock

_WAITS = {
    Reason.SLEEP: "it sleeps",
    Reason.EVENT: "it waits for an event",
    Reason.CHILD: "it waits for another run",
    Reason.STEP_RETRY: "it waits for a step's next try",
}

LIMIT = 1000
LOOK_AGAIN = 0.010
LEASE = 100 * 365 * 86400.0
"""Nobody renews it."""

_OURS = str(Path(ostinato.__file__).parent)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a run, and what became of it."""

    run_id: str
    function: str
    attempt: int
    input: Any
    state: State
    """Of the run, after this attempt: `held` when it will be tried again, or waits for something."""
    output: Any = None
    error: BaseException | None = None
    """What the handler raised."""
    message: str | None = None


class Drain:
    """Executes everything that is due, with the app's functions, middleware and lifespans, and then returns.

    ran = await drain()
    assert ["enrich", "notify"] == [attempt.function for attempt in ran]

    What the handlers enqueue is executed too, and so are retries without delay. Runs that are due later stay, unless
    `until` says how far to put the clock forward: `await drain(until="1h")`. Queues and their concurrency are as in a
    worker, except that a queue that the app does not serve is served, too. Plain functions call `drain.sync()`.
    """

    def __init__(self, app: App, clock: Clock | None = None) -> None:
        self._app, self._clock = app, clock

    async def __call__(
        self, *, until: Duration | datetime | None = None, check: bool = False, limit: int = LIMIT
    ) -> list[Attempt]:
        """What was executed, in the order of the starts.

        `until`: a moment, or a time from now; the clock is put from what is due next to the next, and in the end there.
        `check`: raises the first failure, as the handler raised it (`RetryAfter` and `Cancel` are none).
        `limit`: attempts, after which something seems to go on for ever.
        """
        __tracebackhide__ = True
        return _told(await self._drained(until, limit), check=check)

    def sync(
        self, *, until: Duration | datetime | None = None, check: bool = False, limit: int = LIMIT
    ) -> list[Attempt]:
        """The same for tests that are plain functions."""
        __tracebackhide__ = True
        if running_loop() is not None:
            raise OstinatoError("drain.sync() would stop the event loop it is called in; write `await drain()` there")
        return _told(asyncio.run(self._drained(until, limit)), check=check)

    async def _drained(self, until: Duration | datetime | None, limit: int) -> tuple[list[Active], dict[str, Ended]]:
        target = self._target(until)
        async with self._app._site.store() as store:
            hand = self._app._make_worker(store, Hand)
            assert isinstance(hand, Hand)
            async with hand.at_work():
                await hand.work_off(limit)
                while target is not None and await self._put_forward(hand, target):
                    await hand.work_off(limit)
            return hand.attempts, await store.views.outcomes(list({each.claimed.id for each in hand.attempts}))

    # --- time

    def _target(self, until: Duration | datetime | None) -> datetime | None:
        if until is None:
            return None
        if self._clock is None:
            raise ConfigError("until= puts the clock forward; give the drain the clock of the test: Drain(app, clock)")
        if isinstance(until, datetime):
            return utc(until, what="until")
        return self._clock.now() + timedelta(seconds=seconds(until, what="until"))

    async def _put_forward(self, hand: Hand, target: datetime) -> bool:
        """Puts the clock to what is due next, or to the target if that comes first; whether there is more to do."""
        assert self._clock is not None
        wait = await hand.next_due()
        left = (target - await asyncio.to_thread(self._clock.now)).total_seconds()
        if wait is not None and wait <= left:
            await asyncio.to_thread(self._clock.advance, wait)
            return True
        if left > 0:
            await asyncio.to_thread(self._clock.move_to, target)
        return False


class Hand(Worker):
    """A worker that is moved by hand: nobody renews its lease, it listens to nothing, and never waits for work."""

    attempts: list[Active]

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """With a lease, and with the app's resources open."""
        async with AsyncExitStack() as stack:
            self._build(await self._open_resources(stack))
            await self._declare()
            self.attempts, self.id = [], new_id()
            await self._store.register(self.id, name=self.name, queues=self._concurrency, lease=LEASE)
            self._floor.open()
            try:
                yield
            finally:
                await self._lay_down(self.id)

    async def work_off(self, limit: int) -> None:
        """Until nothing is ready, and nothing held is due."""
        while True:
            quiet = self._floor.empty.is_set()
            if not await self._take() and quiet:
                return
            if len(self.attempts) > limit:
                names = ", ".join(sorted({each.claimed.function for each in self.attempts[-10:]}))
                raise OstinatoError(
                    f"{limit} attempts were executed, and there is more to do (the last were of {names}); does a "
                    "function enqueue itself for ever? If that many are expected, give a higher limit="
                )
            await self._some_progress()

    async def next_due(self) -> float | None:
        """Seconds until something held or scheduled is due."""
        waits = [await self._store.next_due(queue) for queue in await self._queues()]
        waits.append(await self._store.next_overdue())
        names = list(self._registry.schedules)
        planned = await self._store.planned(names, len(names)) if names else []
        slots = [each.wait for each in planned if not each.is_due]  # one that is due by now cannot be fired
        return min([wait for wait in waits if wait is not None] + slots, default=None)

    def begin(self, claimed: Sequence[Claimed], owner: str) -> bool:
        begun = super().begin(claimed, owner)
        self.attempts += [self._floor.running[run.id, run.lease_no] for run in claimed]
        return begun

    # --- inside

    async def _take(self) -> bool:
        """Starts what may start; whether there was anything."""
        if self._registry.schedules:
            while await self._timetable.tick() == AT_ONCE:
                pass
        await self._drain_the_ledger()
        await self._overdue.tick()
        return any([await self._take_from(queue) for queue in await self._queues()])

    async def _drain_the_ledger(self) -> None:
        for draining in self._drainings:
            drained = await draining.to_the_end()
            if drained.error is not None:
                raise OstinatoError(
                    f"drainer {draining.name!r} cannot go on past event {drained.halted_on_event_id}: {drained.error}"
                )

    async def _take_from(self, queue: str) -> bool:
        if await self._store.next_due(queue) == 0:
            await self._store.release_due(queue, LIMIT)
        intake = self._intakes[queue]
        assert isinstance(intake, Grip)
        assert self.id is not None
        return await intake.take(self.id)

    async def _queues(self) -> list[str]:
        """Those that something waits in."""
        waiting = {
            count.queue for count in await self._store.views.counts() if count.state in (State.READY, State.HELD)
        }
        for queue in waiting - self._intakes.keys():
            self._intakes[queue] = self._intake(queue, DEFAULT_CONCURRENCY)
        return sorted(waiting)

    async def _some_progress(self) -> None:
        """Until all has ended and is settled; or a moment, since what still runs may have enqueued something."""
        await first_of(self._floor.empty, timeout=LOOK_AGAIN)
        if self._floor.empty.is_set():
            await self._floor.committer.settled()
            await self._floor.stragglers.settled()

    async def _lay_down(self, worker: str) -> None:
        self._floor.stop_all(Stop.SHUTDOWN)
        await first_of(self._floor.empty, timeout=FORCED_PATIENCE)
        self._floor.give_back_the_stubborn()
        await first_of(self._floor.committer.idle, timeout=FORCED_PATIENCE)
        await self._store.retire(worker)
        await self._floor.close()

    def _intake(self, queue: str, slots: int) -> Grip:
        return Grip(
            queue,
            slots,
            owner=self,
            store=self._store,
            wakeups=self._wakeups,
            telemetry=self._telemetry,
            poll=self._settings.poll,
        )


class Grip(Intake):
    """An intake that takes when it is told to."""

    async def take(self, owner: str) -> bool:
        """Claims what is ready, as far as there is room; whether there was anything."""
        suspect = self._suspect
        await self._look_for_a_suspect(owner, patience=0.0)
        found = self._suspect is not None and self._suspect != suspect
        free = self._free
        return bool(free > 0 and await self._claim(free, owner, START)) or found


# --- telling ----------------------------------------------------------------------------------------------------------


def _told(drained: tuple[Sequence[Active], dict[str, Ended]], *, check: bool) -> list[Attempt]:
    __tracebackhide__ = True
    attempts, ended = drained
    if check:
        _raise_the_first(attempts)
    return [_attempt(active, ended.get(active.claimed.id)) for active in attempts]


def _attempt(active: Active, ended: Ended | None) -> Attempt:
    claimed, outcome = active.claimed, active.outcome
    state, error, message = State.RUNNING, None, None
    match outcome:
        case Done() | Settled():
            state = State.COMPLETED
        case Cancelled(reason):
            state, message = State.CANCELLED, reason
        case Failed():
            state = State.FAILED if next_delay(claimed, outcome, active.retry) is None else State.HELD
            error, message = outcome.error, outcome.message
        case Interrupted(why):
            state, message = State.HELD, why
        case Suspended():
            state, message = State.HELD, _WAITS[outcome.reason]
        case Unknown():
            state, message = State.HELD, f"no function is named {claimed.function!r} here"
        case GivenBack():
            state = State.READY
    output = json.decode(ended.output) if ended is not None and ended.output and state is State.COMPLETED else None
    return Attempt(
        claimed.id, claimed.function, claimed.attempt, json.decode(claimed.input), state, output, error, message
    )


def _raise_the_first(attempts: Sequence[Active]) -> None:
    __tracebackhide__ = True
    for active in attempts:
        match active.outcome:
            case Failed(code="retry_after"):
                pass
            case Failed() as failed:
                _raise(active, failed)
            case Interrupted(message):
                _raise(active, Failed("store_unavailable", message))
            case Unknown():
                raise UnknownFunction(
                    f"run {active.claimed.id} is of {active.claimed.function!r}, which the app does not have; is the "
                    "module that declares it imported?"
                )


def _raise(active: Active, failed: Failed) -> NoReturn:
    """Raises what the handler raised, with the run it was in, and without our own frames above the handler's."""
    __tracebackhide__ = True
    run = active.claimed
    where = f"in run {run.id} of {run.function!r}, attempt {run.attempt}, input {json.decode(run.input)}"
    if not isinstance(failed.error, Exception) or failed.code in ("timeout", "invalid_input", "unserialisable_result"):
        raise RunFailed(f"{failed.code}: {failed.message}, {where}", run_id=run.id, code=failed.code)
    failed.error.add_note(where)
    raise failed.error.with_traceback(_users(failed.error.__traceback__))


def _users(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not ours."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace
