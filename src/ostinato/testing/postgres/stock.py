"""Copies of a template that were used and are as they were: handing one out again costs a third of making another."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..aside import aside
from .statements import connection

LARGEST = 4 << 20
"""Bytes of tables and indexes; a larger one is not worth emptying, and its size could be seen by a test."""

_CATALOGS = (
    "pg_class", "pg_attribute", "pg_proc", "pg_type", "pg_constraint", "pg_trigger", "pg_index", "pg_namespace",
    "pg_rewrite", "pg_policy", "pg_statistic_ext", "pg_default_acl", "pg_extension", "pg_db_role_setting",
)  # fmt: skip

_TABLES = """
select format('%I.%I', nspname, relname) from pg_class c join pg_namespace n on n.oid = relnamespace
where relkind in ('r', 'p') and nspname not in ('pg_catalog', 'information_schema', 'pg_toast') order by 1
"""
_SEQUENCES = """
select format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value), last_value is not null
from pg_sequences
"""
_SIZE = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0) from pg_class c join pg_namespace n on n.oid = relnamespace
where relkind = 'r' and nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
"""
_ALONE = """
select count(pg_terminate_backend(pid, 1000)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""
_LEFT = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


class Origin(Struct, frozen=True):
    """What a copy looks like when nobody has used it: its print, and how it gets there again."""

    print: str
    """The number and the transactions of all rows that say what there is, and of those that the template has."""
    asking: str
    emptying: str


class Stock:
    """The copies of one server that wait for their next user, by template."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}
        self._waiting: dict[str, list[str]] = {}

    def take(self, template: str) -> str | None:
        """A copy that is as new, if there is one."""
        waiting = self._waiting.get(template)
        return waiting.pop() if waiting else None

    def note(self, template: str, dsn: str) -> None:
        """Looks at a new copy, once for each template."""
        if template not in self._origins:
            self._origins[template] = aside(_origin(dsn))

    def put_back(self, template: str, name: str, dsn: str) -> bool:
        """Empties a copy that was used and keeps it; False if something else than rows of its tables has changed."""
        if not aside(_restored(dsn, self._origins[template])):
            return False
        self._waiting.setdefault(template, []).append(name)
        return True

    def forget(self, template: str) -> list[str]:
        """The copies of a template that nobody will ask for any more."""
        self._origins.pop(template, None)
        return self._waiting.pop(template, [])


async def _origin(dsn: str) -> Origin:
    async with connection(dsn) as here:
        tables = [row[0] for row in await here.fetch(_TABLES)]
        full = [table for table in tables if await here.fetchval(f"select exists (select from {table})")]
        sequences = await here.fetch(_SEQUENCES)
        asking = f"select concat_ws(' ', {', '.join(_print_of(name) for name in (*_CATALOGS, *full))})"
        empty = [f"delete from {table}" for table in tables if table not in full]
        start = [f"select setval('{name}', {value}, {str(called).lower()})" for name, value, called in sequences]
        emptying = "; ".join(["set session_replication_role = replica", *empty, *start])
        return Origin(await here.fetchval(asking), asking, emptying)


def _print_of(relation: str) -> str:
    return f"(select count(*) || ':' || coalesce(sum(xmin::text::bigint), 0) from {relation})"


async def _restored(dsn: str, origin: Origin) -> bool:
    import asyncpg

    try:
        async with connection(dsn) as here:
            if not await _is_alone(here) or await here.fetchval(_SIZE) > LARGEST:
                return False
            if await here.fetchval(origin.asking) != origin.print:
                return False
            await here.execute(origin.emptying)
            return True
    except (asyncpg.PostgresError, OSError):  # it is gone, or belongs to one who may not empty it
        return False


async def _is_alone(here: Any) -> bool:
    await here.fetchval(_ALONE)
    return not await here.fetchval(_LEFT)
