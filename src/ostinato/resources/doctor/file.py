"""Checks of an SQLite file. Each looks at the facts and answers with findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...model.diagnosis import FileFacts
from .findings import Finding, error, note, ok, warning

LAST_WITH_THE_WAL_BUG = (3, 51, 2)
LARGE_LOG = 128 << 20
NETWORKED = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "fuse.sshfs",
    "fuse.s3fs",
    "davfs",
}

Check = Callable[[FileFacts], Iterator[Finding]]


def version(facts: FileFacts) -> Iterator[Finding]:
    number = tuple(int(part) for part in facts.version.split(".")[:3])
    if number <= LAST_WITH_THE_WAL_BUG:
        yield warning(
            "library",
            f"SQLite {facts.version} has a bug by which processes that write at the same moment may in rare cases "
            "damage the file when the write-ahead log is reset",
            "use SQLite 3.51.3 or newer, or let one process alone write",
        )
    else:
        yield ok("library", f"SQLite {facts.version}")


def journal(facts: FileFacts) -> Iterator[Finding]:
    if facts.journal_mode != "wal":
        yield error(
            "journal",
            f"the journal is {facts.journal_mode!r}: readers and the writer wait for each other",
            "run: pragma journal_mode = wal",
        )
    elif facts.log_bytes > LARGE_LOG:
        yield warning(
            "journal",
            f"the write-ahead log has {facts.log_bytes >> 20:,} MiB: an open reader keeps it from being reset",
            "end reads that stay open; then run: pragma wal_checkpoint(truncate)",
        )
    else:
        yield ok("journal", f"a write-ahead log of {facts.log_bytes / (1 << 20):.1f} MiB")


def place(facts: FileFacts) -> Iterator[Finding]:
    size = f"{facts.bytes / (1 << 20):.1f} MiB"
    if facts.file_system is None:
        yield note("file", f"{facts.path}, {size}; the kind of its file system cannot be told")
    elif facts.file_system in NETWORKED:
        yield error(
            "file",
            f"{facts.path} is on a network file system ({facts.file_system}), where its locks fail",
            "move it to a local disk, or use PostgreSQL",
        )
    else:
        yield ok("file", f"{facts.path}, {size}, on {facts.file_system}")


CHECKS: tuple[Check, ...] = (version, journal, place)
