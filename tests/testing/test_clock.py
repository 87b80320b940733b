"""The test clock: one for Python, SQL functions and triggers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ostinato import App, ConfigError
from ostinato.telemetry import LeaseLost, WorkerBuried
from ostinato.testing import Bind, Clock, Drain, Probe

NOW = {"sqlite": "ostinato_now()", "postgresql": "ostinato.micros(ostinato.clock())"}
TRIGGERS = {
    "sqlite": [
        "create table logged (at integer)",
        "create trigger log_note after insert on notes begin insert into logged values (ostinato_now()); end",
    ],
    "postgresql": [
        "create table logged (at bigint)",
        """create function log_note() returns trigger language plpgsql as $$ begin
               insert into logged values (ostinato.micros(ostinato.clock())); return null;
           end $$""",
        "create trigger log_note after insert on notes for each row execute function log_note()",
    ],
}
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
A_MOMENT = timedelta(seconds=30)


def from_micros(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


async def sql_time(app: App) -> datetime:
    """What SQL functions see."""
    async with app.transaction() as tx:
        return from_micros(await tx.fetchval(f"select {NOW[app.settings.dialect]}"))


async def trigger_time(app: App) -> datetime:
    """What a trigger on the user's own table sees."""
    async with app.transaction() as tx:
        for statement in TRIGGERS[app.settings.dialect]:
            await tx.execute(statement)
        await tx.execute("insert into notes values ('x')")
        return from_micros(await tx.fetchval("select at from logged"))


async def engine_time(app: App) -> datetime:
    """What the engine writes."""

    @app.function
    async def any_function() -> None: ...

    return (await app.runs.get((await any_function.enqueue()).id)).created_at


@pytest.mark.parametrize("what", [sql_time, trigger_time, engine_time])
async def test_everybody_sees_it(ostinato_app: App, ostinato_clock: Clock, what):
    """It shows the time; put forward, it shows that, to all alike."""
    assert abs(ostinato_clock.now() - datetime.now(UTC)) < A_MOMENT

    ostinato_clock.advance("1h 30m")

    before = ostinato_clock.now()
    seen = await what(ostinato_app)
    assert before <= seen <= ostinato_clock.now()
    assert timedelta(0) <= seen - datetime.now(UTC) - timedelta(hours=1.5) + A_MOMENT < 2 * A_MOMENT


async def test_open_connections_see_it_too(ostinato_app: App, ostinato_clock: Clock):
    """Also those that have prepared their statements before."""
    async with ostinato_app:
        first = await sql_time(ostinato_app)
        ostinato_clock.advance("1d")
        assert timedelta(days=1) <= await sql_time(ostinato_app) - first < timedelta(days=1) + A_MOMENT


async def test_it_can_stand_still(ostinato_app: App, ostinato_clock: Clock):
    """Until it is put forward, by exactly that."""
    ostinato_clock.move_to(NEW_YEAR)
    ostinato_clock.freeze()
    frozen = ostinato_clock.now()

    assert frozen == await sql_time(ostinato_app) == await engine_time(ostinato_app)
    assert NEW_YEAR <= frozen < NEW_YEAR + A_MOMENT
    ostinato_clock.advance("250ms")
    assert frozen + timedelta(milliseconds=250) == ostinato_clock.now() == await sql_time(ostinato_app)


async def test_it_can_be_put_to_a_moment_and_back(ostinato_app: App, ostinato_clock: Clock):
    """In the past, too; a naive moment is refused."""
    for moment in (NEW_YEAR, datetime(2001, 1, 1, tzinfo=UTC)):
        ostinato_clock.move_to(moment)
        assert moment <= await sql_time(ostinato_app) < moment + A_MOMENT
    with pytest.raises(ConfigError, match="has no time zone"):
        ostinato_clock.move_to(datetime(2001, 1, 1))  # noqa: DTZ001


async def test_live_workers_keep_their_leases(ostinato_app: App, ostinato_clock: Clock, ostinato_probe: Probe):
    """They would have renewed them meanwhile."""
    async with ostinato_app.worker() as worker:
        ostinato_clock.advance("1h")

        (seen,) = await ostinato_app.workers.list()
        assert (worker.id, True) == (seen.id, seen.alive)
        assert seen.expires_at > ostinato_clock.now()
    assert [] == [*ostinato_probe.seen(LeaseLost), *ostinato_probe.seen(WorkerBuried)]


async def test_leases_may_run_out(ostinato_app: App, ostinato_clock: Clock):
    """For tests of what happens then."""
    async with ostinato_app.worker():
        ostinato_clock.advance("1h", renewing=False)

        (seen,) = await ostinato_app.workers.list()
        assert not seen.alive


async def test_apps_with_a_schema_of_their_own_see_it(ostinato_bind: Bind, ostinato_url: str, ostinato_clock: Clock):
    """Whether they were bound before it was put forward or after."""
    early = ostinato_bind(App(ostinato_url, schema="early"))
    ostinato_clock.advance("1d")
    late = ostinato_bind(App(ostinato_url, schema="late"))

    for app in (early, late):
        assert await engine_time(app) - datetime.now(UTC) > timedelta(days=1) - A_MOMENT
        assert ["any_function"] == [ran.function for ran in await Drain(app, ostinato_clock)()]
