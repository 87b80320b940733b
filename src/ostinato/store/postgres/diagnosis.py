"""What a PostgreSQL server says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import json
from msgspec.structs import replace

from ...model.diagnosis import MissingGrant, OpenTransaction, ServerFacts
from .. import flows
from ..diagnosis import FlowDiagnosis
from . import grants

if TYPE_CHECKING:
    from .store import PostgresStore


class PostgresDiagnosis(FlowDiagnosis):
    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._store = store

    async def database(self, *, long_transaction: float) -> ServerFacts:
        facts = json.decode((await self._read("database_facts"))[0][0], type=ServerFacts)
        rows = await self._read("open_transactions", older_than=long_transaction)
        transactions = [json.decode(row[0], type=OpenTransaction) for row in rows]
        return replace(facts, transactions=transactions, pooled=self._store.pooled)

    async def missing_grants(self) -> list[MissingGrant]:
        rows = await self._read("missing_grants", expected=flows.encoded(grants.expected()), meant="[]")
        return [MissingGrant(*row) for row in rows]
