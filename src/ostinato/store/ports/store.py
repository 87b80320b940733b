"""A database, whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from .care import Diagnosis, Migrations
from .commits import Commits
from .ledger import Ledger
from .signals import Listener, Signal
from .steps import Steps
from .verbs import Verbs
from .views import Views
from .work import Claims, Leases, Schedules


class Store(Commits, Claims, Leases, Verbs, Schedules, Steps, Ledger, Protocol):
    """A database."""

    @property
    def views(self) -> Views: ...

    async def open(self) -> None:
        """Connects, and makes sure that the schema is there."""

    async def warm_up(self) -> None:
        """Opens what a worker will need, so that its first runs do not wait for connections."""

    async def close(self) -> None: ...

    def migrations(self) -> Migrations: ...

    def diagnosis(self) -> Diagnosis: ...

    def listener(self, on_signal: Callable[[Signal], None]) -> Listener: ...

    def keeper(self) -> AbstractAsyncContextManager[Leases]:
        """The leases through a connection of its own, for the event loop of the keeper's thread."""
