"""What is enqueued with conn= shares the fate of the caller's transaction, in every library."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from ostinato import App
from ostinato.errors import QueueFull, UnknownFunction
from tests.engine.databases import Database, notes, states
from tests.integrations.libraries import Library
from tests.integrations.scenes import Scene, play

AWKWARD = "100 % of 'Ünïcödé' \\ \"quotes\" %s %(id)s :id $1 ? {} 🎵"


def recorded(database: Database) -> list[str]:
    return [row[0] for row in database.query("select id from ostinato_events order by sequence_no")]


def keys(database: Database) -> list[Any]:
    return [row[0] for row in database.query("select key from ostinato_keys order by key")]


async def test_a_commit_keeps_all_of_it(app: App, database: Database, library: Library):
    """One run, many, and one with a key, and events, with the user's row."""
    events: list[str] = []

    async def work(scene: Scene) -> list[str]:
        await scene.note("mine")
        events.append(await scene.record({"text": AWKWARD}, entity=("order", AWKWARD), idempotency_key="once"))
        assert await scene.record(idempotency_key="once") == events[0]
        events.extend(await scene.record_many([{"payload": 1}, {"source": "b"}], ordered=True, entity=("order", "1")))
        assert recorded(database) == []  # as others see it
        handles = [await scene.enqueue("mail", {"to": "Ada"}), *await scene.enqueue_many([{"to": "Bo"}, {"to": "Cy"}])]
        handles.append(await scene.enqueue("mail", {"to": "Di"}, key="di"))
        assert all(handle.created for handle in handles)
        assert database.query("select count(*) from ostinato_runs") == [(0,)]  # as others see it
        await scene.commit()
        return [handle.id for handle in handles]

    ids = await play(library, app, work)
    assert [(await app.runs.get(run_id)).input["to"] for run_id in ids] == ["Ada", "Bo", "Cy", "Di"]
    assert await states(app) == {"ready": 4}
    assert notes(database) == ["mine"]
    assert keys(database) == ["di"]
    assert recorded(database) == events
    event = await app.events.get(events[0])
    assert (event.payload, event.entity) == ({"text": AWKWARD}, ("order", AWKWARD))


async def test_a_rollback_leaves_nothing_behind(app: App, database: Database, library: Library):
    """No run, no event, no key and no row; and the key is free."""

    async def work(scene: Scene) -> None:
        await scene.note("mine")
        await scene.record(idempotency_key="k")
        await scene.record_many([{}, {}])
        await scene.enqueue()
        await scene.enqueue_many([{}, {}])
        await scene.enqueue(key="k")
        await scene.rollback()

    await play(library, app, work)
    assert (await states(app), notes(database), keys(database), recorded(database)) == ({}, [], [], [])
    assert (await app.enqueue("mail", key="k")).created


async def test_a_rollback_to_a_savepoint_leaves_nothing_behind(app: App, database: Database, library: Library):
    """What was before it, and after it, stays."""

    events: list[str] = []

    async def work(scene: Scene) -> list[str]:
        await scene.note("before")
        before = await scene.enqueue(key="before")
        events.append(await scene.record("before"))
        await scene.savepoint()
        await scene.note("inside")
        await scene.record("inside", idempotency_key="k")
        await scene.enqueue()
        await scene.enqueue_many([{}, {}])
        inside = await scene.enqueue(key="k")
        await scene.undo()
        after = await scene.enqueue(key="k")
        assert after.created
        assert after.id != inside.id
        events.append(await scene.record("after", idempotency_key="k"))
        await scene.commit()
        return [before.id, after.id]

    kept = await play(library, app, work)
    assert kept == sorted(run.id for run in await app.runs.list())
    assert notes(database) == ["before"]
    assert keys(database) == ["before", "k"]
    assert recorded(database) == events


async def test_enqueuing_can_be_the_first_thing_in_a_transaction(app: App, database: Database, library: Library):
    """Nothing was executed before it, and a rollback undoes it all the same."""

    async def work(scene: Scene) -> None:
        await scene.enqueue()
        await scene.enqueue(key="k")
        await scene.rollback()

    await play(library, app, work)
    assert (await states(app), keys(database)) == ({}, [])


async def test_a_key_that_is_taken_gives_the_run_that_holds_it(app: App, library: Library):
    """Whether it was taken by somebody else, in the same transaction, or within one bulk."""
    holder = await app.enqueue("mail", key="taken")

    async def work(scene: Scene) -> None:
        found = await scene.enqueue(key="taken")
        assert (found.id, found.created) == (holder.id, False)
        first = await scene.enqueue(key="mine")
        again = await scene.enqueue(key="mine")
        assert (again.id, again.created) == (first.id, False)
        one, other = await scene.enqueue_many([{}, {}], key="bulk")
        assert (other.id, one.created, other.created) == (one.id, True, False)
        await scene.commit()

    await play(library, app, work)
    assert await states(app) == {"ready": 3}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay": "1h", "priority": -600, "timeout": 2.5},
        {"run_at": datetime(2100, 1, 1, 12, tzinfo=UTC), "priority": 600},
        {"key": AWKWARD, "unique": "1d", "metadata": {"why": AWKWARD}},
        {"queue": "other", "metadata": {"n": [1, None, True, 0.5]}},
    ],
    ids=["plain", "delay", "moment", "key", "queue"],
)
async def test_a_run_is_the_same_as_any_other(app: App, library: Library, options: Any):
    """With every option and awkward text, whatever the driver does to parameters."""
    given = {"to": AWKWARD, "body": "\n\t\x7f" * 3}

    async def work(scene: Scene) -> str:
        handle = await scene.enqueue("mail", given, **options)
        await scene.commit()
        return str(handle.id)

    run = await app.runs.get(await play(library, app, work))
    if "key" in options:
        assert run.key == AWKWARD
        options = {**options, "key": "another"}
    other = await app.runs.get((await app.enqueue("mail", given, **options)).id)
    for field in ("function", "queue", "state", "reason", "priority", "timeout", "input", "metadata", "invoked_by"):
        assert getattr(run, field) == getattr(other, field), field
    assert run.input == given
    if "run_at" in options:
        assert run.run_at == other.run_at


async def test_many_is_one_call(app: App, library: Library):
    """Two thousand runs, all or none."""

    async def work(scene: Scene) -> int:
        handles = await scene.enqueue_many([{"to": str(number)} for number in range(2_000)])
        await scene.commit()
        return len(handles)

    assert await play(library, app, work) == 2_000
    assert await states(app) == {"ready": 2_000}


async def test_a_function_that_nobody_knows_is_refused_by_name(app: App, library: Library):
    """The error is ours, and not the driver's."""

    async def work(scene: Scene) -> None:
        with pytest.raises(UnknownFunction, match=r"no function is named 'mial'; did you mean 'mail'\?"):
            await scene.enqueue("mial")
        await scene.rollback()

    await play(library, app, work)
    assert await states(app) == {}


async def test_a_queue_that_is_full_is_refused(app: App, database: Database, library: Library):
    """The error is ours, and not the driver's."""
    database.query("insert into ostinato_queues (name, max_waiting) values ('small', 2)")

    async def work(scene: Scene) -> None:
        await scene.enqueue(queue="small")
        with pytest.raises(QueueFull, match=r'^queue "small" may hold 2 waiting runs, has 1 and was given 2 more; try'):
            await scene.enqueue_many([{}, {}], queue="small")
        await scene.rollback()

    await play(library, app, work)
    assert await states(app) == {}
