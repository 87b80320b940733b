"""What an SQLite file says of itself, and what the system says of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import json
from msgspec.structs import replace

from ...model.diagnosis import FileFacts, MissingGrant
from ..diagnosis import FlowDiagnosis

if TYPE_CHECKING:
    from .store import SqliteStore

_MOUNTS = Path("/proc/self/mountinfo")


class SqliteDiagnosis(FlowDiagnosis):
    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self._path = Path(store.path)

    async def database(self, *, long_transaction: float) -> FileFacts:
        """SQLite does not tell who has a transaction open; a write-ahead log that grows does."""
        facts = json.decode((await self._read("database_facts"))[0][0], type=FileFacts)
        log = self._path.with_name(f"{self._path.name}-wal")
        return replace(
            facts,
            path=str(self._path),
            log_bytes=log.stat().st_size if log.exists() else 0,
            file_system=file_system_of(self._path),
        )

    async def missing_grants(self) -> list[MissingGrant] | None:
        """There are no roles: who may write to the file may do everything."""
        return None


def file_system_of(path: Path) -> str | None:
    """The kind of file system that a file is on, where the system tells (Linux does)."""
    if not _MOUNTS.exists():
        return None
    place, kinds = path.resolve(), {}
    for line in _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        mounted, _, source = line.partition(" - ")
        kinds[Path(_unescaped(mounted.split()[4]))] = source.split()[0]
    return next((kinds[folder] for folder in (place, *place.parents) if folder in kinds), None)


def _unescaped(text: str) -> str:
    """A blank is written as \\040 there."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
