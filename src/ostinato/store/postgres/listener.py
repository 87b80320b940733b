"""The ear of a process on PostgreSQL: one connection that listens, and says on which topics somebody sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ...errors import OstinatoError
from ...ids import new_id
from ..ports import CancelAsked, EventsRecorded, ListenerChanged, Rung, RunsEnded, SchedulesChanged, Signal
from ..sql import Block
from .errors import translated
from .pool import Connection

_HEARTBEAT = 10.0
_ANSWER = 5.0
_PROBE = 2.0
_LONGEST_PAUSE = 10.0


class PostgresListener:
    """Listens on the schema's channel and reconnects by itself.

    Its connection is never inside a transaction: an idle one would pin the notification queue for everybody.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        on_signal: Callable[[Signal], None],
        *,
        channel: str,
        blocks: Mapping[str, Block],
        probe: Callable[[str], Awaitable[None]],
    ) -> None:
        self._connect, self._on_signal, self._channel = connect, on_signal, channel
        self._blocks, self._send_probe = blocks, probe
        self._connection: Connection | None = None
        self._busy = asyncio.Lock()
        self._armed: dict[str, str | None] = {}
        """Topics → the transaction below which all must have ended; None once they have."""
        self._probed: asyncio.Future[None] | None = None
        self._token = ""
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.working = False

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_listening(), name="ostinato listener")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # --- topics

    async def arm(self, topic: str) -> bool:
        connection = self._connection
        if not self.working or connection is None:
            return False
        try:
            if topic not in self._armed:
                awaited = await self._ask("arm", topic)
            else:
                awaited = self._armed[topic]
                if awaited is not None and not await self._ask("still_open", awaited):
                    awaited = None
        except (OstinatoError, TimeoutError):
            self._lost.set()
            return False
        if connection is not self._connection:
            return False
        self._armed[topic] = awaited
        return awaited is None

    async def disarm(self, topic: str) -> None:
        if topic in self._armed:
            del self._armed[topic]
            with contextlib.suppress(OstinatoError, TimeoutError):
                await self._ask("disarm", topic)

    async def _ask(self, block: str, argument: str) -> Any:
        async with self._busy:
            with translated():
                if self._connection is None:
                    raise ConnectionError("the listener is not connected")
                return await self._connection.fetchval(self._blocks[block].text, argument, timeout=_ANSWER)

    # --- the connection

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
                failures = 0
                await self._stay()
                self._say(False, "the listening connection was lost")
            except (OstinatoError, OSError, TimeoutError) as error:
                failures += 1
                self._say(False, str(error))
            finally:
                await self._hang_up()
            await asyncio.sleep(random.uniform(0.5, 1) * min(0.1 * 2**failures, _LONGEST_PAUSE))

    async def _listen(self) -> None:
        self._lost.clear()
        connection = await self._connect()
        self._connection = connection
        connection.add_termination_listener(lambda _: self._lost.set())
        with translated():
            await connection.add_listener(self._channel, self._heard)
        if await self._probe():
            self._say(True, "listening")
        else:
            self._say(
                False, "notifications do not arrive: is this a pooler in transaction mode? Set OSTINATO_LISTEN_URL"
            )

    async def _stay(self) -> None:
        """Until the connection is lost; a silent one is asked for an answer, since TCP may not tell."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT):
                    await self._lost.wait()
                    return
            await self._ask("still_open", "0")

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._armed.clear()
        if connection is not None:
            connection.terminate()

    async def _probe(self) -> bool:
        """Whether a notification sent to ourselves arrives. Through pgbouncer it does not, without any error."""
        self._probed = asyncio.get_running_loop().create_future()
        self._token = new_id()
        await self._send_probe(self._token)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE):
                await self._probed
                return True
        return False

    def _say(self, working: bool, why: str) -> None:
        if working or self.working or why:
            self.working = working
            self._on_signal(ListenerChanged(working, why))

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        kind, _, rest = payload.partition(":")
        match kind:
            case "q":
                self._on_signal(Rung(rest))
            case "r":
                self._on_signal(RunsEnded(tuple(rest.split(","))))
            case "c":
                self._on_signal(CancelAsked())
            case "e":
                self._on_signal(EventsRecorded())
            case "s":
                self._on_signal(SchedulesChanged())
            case "p" if rest == self._token and self._probed and not self._probed.done():
                self._probed.set_result(None)
