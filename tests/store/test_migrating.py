"""Making the schema and bringing it up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ostinato.errors import NotMigrated
from tests.store.databases import Database
from tests.store.samples import DECLARED, a_run, accepted

Make = Callable[[], Database]


@pytest.fixture
def empty(make_empty: Make) -> Database:
    """A database without a schema."""
    return make_empty()


async def works(database: Database) -> None:
    """A store can be opened on the database and used."""
    store = await database.another()
    await store.declare([DECLARED], [])
    await accepted(store, a_run())
    await database.close()


async def test_an_empty_database_is_brought_up_to_date(empty: Database):
    """Every step is applied once, and remembered."""
    migrations = empty.migrations()
    assert {None} == {step.applied_at for step in await migrations.status()}

    applied = await migrations.up()

    assert applied[0] == "0001 runs"
    assert await migrations.up() == []
    assert [True] * len(applied) == [step.checksum_matches for step in await migrations.status()]
    assert await migrations.verify() == []
    await works(empty)


async def test_installers_take_turns(empty: Database):
    """Of several at the same moment each step is applied by one, and all come back when everything is there."""
    installers = [empty.migrations() for _ in range(4)]

    answers = await asyncio.gather(*(installer.up() for installer in installers))

    applied = [name for answer in answers for name in answer]
    assert len(applied) == len(set(applied)) == len(await installers[0].status())
    assert await installers[0].verify() == []


async def test_the_script_does_the_same(empty: Database):
    """Applied by the user's own tools, it is as good as `up`."""
    migrations = empty.migrations()

    async with empty.connection() as connection:
        if empty.dialect == "sqlite":
            connection.executescript(migrations.sql())
        else:
            await connection.execute(migrations.sql())

    assert await migrations.verify() == []
    assert await migrations.up() == []
    await works(empty)


async def test_what_is_missing_is_told(empty: Database):
    """Verifying names what is not applied, and the remedy."""
    (first, *_) = await empty.migrations().verify()

    assert first == "0001 runs is not applied; run `ostinato migrate up`"


async def test_a_changed_step_is_told(empty: Database):
    """A step that was applied with another content than is shipped is a difference."""
    migrations = empty.migrations()
    await migrations.up()
    await empty.query("update ostinato_migrations set checksum = 'x' where version = 1")

    assert await migrations.verify() == ["0001 runs was applied with another content than this version ships"]
    assert (await migrations.status())[0].checksum_matches is False


async def test_a_newer_schema_is_told_and_still_works(empty: Database):
    """Steps are additive, so that old code runs on a new schema."""
    migrations = empty.migrations()
    await migrations.up()
    await empty.query("insert into ostinato_migrations (version, name, checksum) values (9999, 'future', 'x')")

    assert await migrations.verify() == ["9999 future was applied by a newer version of Ostinato than this one"]
    await works(empty)


async def test_a_store_without_tables_says_so(empty: Database):
    """Using a database that was never brought up to date names the remedy."""
    store = empty.new_store()

    with pytest.raises(NotMigrated, match="ostinato migrate up"):
        await store.commit([a_run(queue="default")])
    with pytest.raises(NotMigrated, match="ostinato migrate up"):
        await store.views.counts()

    await store.close()
