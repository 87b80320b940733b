"""The keeper of the lease: a thread of its own, so that no handler can starve it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from ..ids import new_id
from ..store.ports import Leases, Store
from ..telemetry import logger

RENEWALS_PER_LEASE = 3
LAST_WORD = 5.0
EXIT_CODE = 70


class Tenant(Protocol):
    """The worker, as its keeper sees it. All of these are called on the worker's event loop."""

    def lease_begun(self, worker: str) -> None: ...

    def lease_renewed(self, worker: str) -> None: ...

    def lease_lost(self, worker: str, why: str) -> None: ...


class Keeper:
    """Registers the worker, renews its lease, and says when it is lost.

    The lease is lost when the database says that the worker was declared dead, or when it could not be renewed in
    time: others will take over its runs. Then the worker takes a new identity. Time is counted from before a renewal
    was sent, so the worker gives up before anybody else can count it out.
    """

    def __init__(
        self,
        store: Store,
        tenant: Tenant,
        *,
        name: str,
        queues: Mapping[str, int],
        lease: float,
        overdue: Callable[[], float | None],
        grace: float,
    ) -> None:
        self._store, self._tenant = store, tenant
        self._name, self._queues, self._lease = name, queues, lease
        self._overdue, self._grace = overdue, grace
        self._loop = asyncio.get_running_loop()
        self._asked: float | None = None
        """When the loop was asked for a sign of life that it has not given yet."""
        self._stopping = False
        self.holds_until: float | None = None
        """Until when the lease is held if it is not renewed, by the monotonic clock; read by any thread."""
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._begun = asyncio.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="ostinato keeper", daemon=True)

    async def start(self) -> None:
        """Until the first lease is there."""
        self._thread.start()
        await self._begun.wait()
        if self._failure is not None:
            raise self._failure

    def announce_stopping(self) -> None:
        """From now on the worker is shown as stopping; its lease is kept until `stop`."""
        self._stopping = True
        self._wake.set()

    async def stop(self) -> None:
        """Gives the lease up."""
        self._ended.set()
        self._wake.set()
        await self._loop.run_in_executor(None, self._thread.join, LAST_WORD)

    # --- the thread

    def _main(self) -> None:
        try:
            asyncio.run(self._keep())
        except BaseException as error:
            self._failure = error
            if not self._ended.is_set():
                logger.exception("the keeper ended; the worker has no lease any more")
            self._tell(self._begun.set)

    async def _keep(self) -> None:
        async with self._store.keeper() as leases:
            first = True
            while not self._ended.is_set():
                worker = new_id()
                if await self._register(leases, worker, insist=first):
                    first = False
                    await self._keep_lease(leases, worker)
                    self.holds_until = None
                    await self._retire(leases, worker)

    async def _register(self, leases: Leases, worker: str, *, insist: bool) -> bool:
        self._sent = time.monotonic()
        try:
            await leases.register(worker, name=self._name, queues=self._queues, lease=self._lease)
        except Exception:
            if insist:
                raise
            self._pause(min(1.0, self._lease / RENEWALS_PER_LEASE))
            return False
        self.holds_until = self._sent + self._lease
        self._tell(self._tenant.lease_begun, worker)
        self._tell(self._begun.set)
        return True

    async def _keep_lease(self, leases: Leases, worker: str) -> None:
        """Renews until the lease is lost or given up."""
        deadline = self._sent + self._lease
        pause = self._lease / RENEWALS_PER_LEASE
        while True:
            self._pause(min(pause, max(0.0, deadline - time.monotonic())))
            if self._ended.is_set():
                return
            self._check_the_loop()
            sent = time.monotonic()
            try:
                async with asyncio.timeout(max(0.1, deadline - sent)):
                    alive = await leases.renew(worker, stopping=self._stopping)
            except Exception as error:  # whatever it is, the keeper must live on: it is the one who can tell
                if time.monotonic() >= deadline:
                    self._tell(self._tenant.lease_lost, worker, f"not renewed in time: {str(error) or 'no answer'}")
                    return
                pause = min(0.5, self._lease / (3 * RENEWALS_PER_LEASE))
                continue
            if not alive:
                self._tell(self._tenant.lease_lost, worker, "declared dead by another worker")
                return
            deadline = self.holds_until = sent + self._lease
            pause = self._lease / RENEWALS_PER_LEASE
            self._tell(self._tenant.lease_renewed, worker)

    async def _retire(self, leases: Leases, worker: str) -> None:
        try:
            async with asyncio.timeout(LAST_WORD):
                await leases.retire(worker)
        except Exception as error:
            logger.warning("worker %s could not say that it is gone (%s); its lease will run out", worker, error)

    def _pause(self, delay: float) -> None:
        self._wake.wait(delay)
        self._wake.clear()

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    # --- the worker's event loop

    def _check_the_loop(self) -> None:
        """Ends the process when a handler that is out of time holds the event loop: nothing else can end it, and its
        run must go on elsewhere."""
        overdue, asked, now = self._overdue(), self._asked, self._loop.time()
        if asked is None:
            self._asked = now
            self._tell(self._answer)
        elif overdue is not None and now > overdue + self._grace and now > asked + self._grace:
            logger.critical(
                "the event loop has not answered for %.0f s past a handler's timeout: ending the process", now - asked
            )
            os._exit(EXIT_CODE)

    def _answer(self) -> None:
        self._asked = None
