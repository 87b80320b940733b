"""The two dialects are twins: the same blocks and parameters, the same tables, columns and indexes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ostinato.store.postgres.store import load_blocks as postgres_blocks
from ostinato.store.sqlite.store import load_blocks as sqlite_blocks
from tests.store.databases import Database, SqliteDatabase, only_postgres

POSTGRES = {name: set(block.parameters) for name, block in postgres_blocks("ostinato").items()}
SQLITE = {name: set(block.parameters) for name, block in sqlite_blocks("ostinato").items()}

ONLY_POSTGRES = {"arm", "disarm", "still_open", "probe", "ring", "insert_run"}
"""Bells: on SQLite everybody sees commits."""

ONLY_POSTGRES |= {"open_transactions", "missing_grants"}
"""SQLite has no roles, and does not tell who has a transaction open."""

ONLY_SQLITE = {"targets", "count_waiting", "drop_old_keys", "take_keys", "force_keys", "key_holders", "set_terms"}
"""Inserting is one function on PostgreSQL and a flow of its own on SQLite."""

ONLY_SQLITE |= {"claimable", "claimed", "stamp_versions", "completable", "fenced_runs"}
"""Claiming, saving steps and completing are one statement on PostgreSQL, and several on SQLite, each with one row."""

ONLY_POSTGRES |= {"take_drainer", "events_between", "window", "events_in_window", "restored_window", "adopt_ledger"}
ONLY_POSTGRES |= {"set_lineage", "count_between", "count_in_window", "peek_drainer"}
ONLY_SQLITE |= {"events_after", "count_after", "used_event_keys"}
"""Reading the ledger in order is by snapshots on PostgreSQL, and by number on SQLite, where there is one writer."""

OTHER_PARAMETERS = {"insert_runs": {"ring"}, "insert_events": {"ring", "plain"}}
OTHER_FLOWS = {"claim", "complete_runs"}

TYPES = {
    "text": "text",
    "jsonb": "text",
    "boolean": "integer",
    "smallint": "integer",
    "integer": "integer",
    "bigint": "integer",
    "timestamp with time zone": "integer",
    "double precision": "real",
    "xid": "xid",
    "xid8": "xid",
    "oid": "oid",
}
"""How PostgreSQL's types are kept on SQLite."""

Columns = dict[str, list[tuple[str, str, bool]]]
Indexes = dict[str, tuple[list[str], str | None]]


def test_blocks_have_the_same_names():
    """A block of one dialect has its twin, except for those declared here."""
    assert set(POSTGRES) - ONLY_POSTGRES == set(SQLITE) - ONLY_SQLITE
    assert set(POSTGRES) >= ONLY_POSTGRES
    assert set(SQLITE) >= ONLY_SQLITE


@pytest.mark.parametrize("name", sorted((set(POSTGRES) & set(SQLITE)) - OTHER_FLOWS))
def test_blocks_take_the_same_parameters(name: str):
    """So that the flows can be written once."""
    assert POSTGRES[name] ^ SQLITE[name] == OTHER_PARAMETERS.get(name, set())


@pytest.fixture
async def twin(tmp_path: Path) -> SqliteDatabase:
    """A SQLite database beside the one under test."""
    twin = SqliteDatabase(f"sqlite:///{tmp_path}/twin.db")
    await twin.open()
    await twin.close()
    return twin


@only_postgres
async def test_tables_have_the_same_columns(database: Database, twin: SqliteDatabase):
    """Of the kind that stands for the other's, and as optional, in whichever order suits the database."""
    theirs = await columns_of_sqlite(twin)
    assert theirs.pop("retention") == [("at_work", "integer", False)]  # a setting of the session on PostgreSQL
    assert theirs.pop("subscriptions_changes") == [("number", "integer", False)]  # a sequence on PostgreSQL
    mine = await columns_of_postgres(database)
    mine["events"].remove(("xid", "xid", False))  # the transaction that recorded it
    assert mine.pop("ledger")  # whose transactions those are
    assert mine == theirs


@only_postgres
async def test_tables_have_the_same_indexes(database: Database, twin: SqliteDatabase):
    """On the same columns, for the same rows."""
    mine = await indexes_of_postgres(database)
    assert mine.pop("events_xid") == (["xid", "sequence_no"], None)
    assert mine == await indexes_of_sqlite(twin)


@only_postgres
def test_steps_have_the_same_numbers_and_names(database: Database, twin: SqliteDatabase):
    """A migration of one dialect has its twin."""
    mine, theirs = ({step.version: step.name for step in each.migrations().steps} for each in (database, twin))  # type: ignore[attr-defined]

    assert mine == theirs


# --- what the databases say of themselves ---------------------------------------------------------------------------


async def columns_of_postgres(database: Database) -> Columns:
    rows = await database.query(
        "select table_name, column_name, data_type, is_nullable = 'YES' from information_schema.columns "
        "where table_schema = 'ostinato' and table_name <> 'migrations' order by table_name, column_name"
    )
    found: Columns = {}
    for table, column, kind, optional in rows:
        found.setdefault(table, []).append((column, TYPES[kind], optional))
    return found


async def columns_of_sqlite(database: Database) -> Columns:
    rows = await database.query(
        "select m.name, c.name, c.type, c.'notnull' = 0 from sqlite_master m join pragma_table_info(m.name) c "
        "where m.type = 'table' and m.name not in ('ostinato_migrations', 'sqlite_sequence') order by m.name, c.name"
    )
    found: Columns = {}
    for table, column, kind, optional in rows:
        found.setdefault(table.removeprefix("ostinato_"), []).append((column, kind.lower(), bool(optional)))
    return found


async def indexes_of_postgres(database: Database) -> Indexes:
    rows = await database.query(
        "select indexname, indexdef from pg_indexes where schemaname = 'ostinato' and indexname not like '%_pkey'"
    )
    return {name: definition(text.replace("::text", "")) for name, text in rows}


async def indexes_of_sqlite(database: Database) -> Indexes:
    rows = await database.query("select name, sql from sqlite_master where type = 'index' and sql is not null")
    return {name.removeprefix("ostinato_"): definition(text) for name, text in rows}


def definition(text: str) -> tuple[list[str], str | None]:
    """The columns of an index, and the condition of a partial one."""
    match = re.search(r"\(([\w, ]+)\)(?: where (.+))?$", text, re.IGNORECASE)
    assert match is not None
    condition = match[2] and re.sub(r"[()]", "", match[2]).lower()
    return match[1].split(", "), condition
