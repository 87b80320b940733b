"""What a doctor may ask of either database. A database adds what it knows of itself and who may use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import json

from ..model.diagnosis import FileFacts, MissingGrant, QueueHealth, ServerFacts, StrandedRuns
from . import flows
from .flows import Call, Flow, Row

if TYPE_CHECKING:
    from .base import FlowStore


class FlowDiagnosis(ABC):
    def __init__(self, store: FlowStore) -> None:
        self._flows = store

    @abstractmethod
    async def database(self, *, long_transaction: float) -> ServerFacts | FileFacts: ...

    @abstractmethod
    async def missing_grants(self) -> list[MissingGrant] | None:
        """What roles lack; None where there are none."""

    async def now(self) -> float:
        return float((await self._read("database_time"))[0][0])

    async def queues(self) -> list[QueueHealth]:
        return [json.decode(row[0], type=QueueHealth) for row in await self._read("queue_health")]

    async def stranded(self) -> list[StrandedRuns]:
        return [StrandedRuns(*row) for row in await self._read("stranded_runs")]

    async def undeclared(self) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._read("undeclared_functions")}

    async def forget(self, *, runs: Sequence[str], function: str, queue: str, worker: str | None) -> None:
        await self._flows.write(_forgetting(runs, function=function, queue=queue, worker=worker))

    async def _read(self, block: str, **arguments: object) -> Sequence[Row]:
        return await self._flows.read(flows.reading(block, **arguments))


def _forgetting(runs: Sequence[str], *, function: str, queue: str, worker: str | None) -> Flow[None]:
    yield Call("forget_runs", {"ids": flows.encoded(runs)})
    yield Call("forget_function", {"function": function})
    yield Call("forget_queue", {"queue": queue})
    yield Call("forget_worker", {"worker": worker or ""})
