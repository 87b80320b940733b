"""Through pgbouncer in transaction mode: everything works by polling, the doctor says so, and a direct address for
listening brings wake-ups back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ostinato import App, Retry, Run
from ostinato.errors import RunCancelled, RunFailed
from ostinato.resources.doctor import Finding, Level
from ostinato.store.ports import ListenerChanged, Signal, queue_topic
from ostinato.store.postgres import PostgresStore
from ostinato.telemetry import ListeningChanged, NotificationReceived, QueueAsleep
from ostinato.testing.postgres import Server
from ostinato.testing.probe import Probe
from tests.system.databases import PostgresDatabase, all_ended, assert_one_effect_each
from tests.system.gates import Gates
from tests.system.log import Log
from tests.system.pgbouncer import Pgbouncer, find_program, pgbouncer
from tests.system.processes import Crew

pytestmark = pytest.mark.skipif(
    find_program() is None, reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)"
)

OUR_SETTINGS = "jit,plan_cache_mode,enable_seqscan,enable_bitmapscan,enable_hashjoin,enable_mergejoin"
BELLS = """
    select count(*) from pg_locks
    where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
"""


@pytest.fixture(scope="module", params=["refusing", "lenient"])
def pooler(request: pytest.FixtureRequest, system_server: Server) -> Iterator[Pgbouncer]:
    """In transaction mode. As it comes it refuses settings of ours; a lenient one was told to swallow them."""
    more = f"ignore_startup_parameters = {OUR_SETTINGS}" if request.param == "lenient" else ""
    with pgbouncer(system_server.dsn(), more=more) as pooler:
        yield pooler


@pytest.fixture
def direct(postgres_database: PostgresDatabase) -> PostgresDatabase:
    """The database, past the pooler."""
    return postgres_database


@pytest.fixture
def database(direct: PostgresDatabase, pooler: Pgbouncer) -> PostgresDatabase:
    """The database, through the pooler."""
    return PostgresDatabase(pooler.url_of(direct.url))


def an_app(url: str, **settings: object) -> App:
    """An app with some functions."""
    app = App(url, queues={"default": 20}, **settings)  # type: ignore[arg-type]

    @app.function
    async def double(n: int) -> int:
        return n * 2

    @app.function(retry=Retry.none())
    async def fail() -> None:
        raise ValueError("out of tune")

    @app.function
    async def wait() -> None:
        await asyncio.Event().wait()

    @app.function
    async def write(run: Run, item: int) -> int:
        async with run.transaction() as tx:
            await tx.execute("insert into effects (run_id, item, lease_no) values ($1, $2, $3)", run.id, item, 1)
        return item

    return app


async def test_everything_works_by_polling(database: PostgresDatabase, direct: PostgresDatabase):
    """Enqueuing one and many, keys, results, failures, transactions on both sides, cancelling and retrying."""
    app = an_app(database.url)
    with Probe(app.telemetry) as probe:
        async with app, app.worker():
            told = await probe.next(ListeningChanged)
            assert not told.working
            assert "OSTINATO_LISTEN_URL" in told.why

            handles = await app.enqueue_many("double", [{"n": n} for n in range(100)])
            handles += await asyncio.gather(*(app.enqueue("double", {"n": n}) for n in range(100, 200)))
            results = await asyncio.gather(*(handle.result(timeout=30) for handle in handles))
            assert [n * 2 for n in range(200)] == results

            first, again = [await app.enqueue("wait", key="k") for _ in range(2)]
            assert (first.id, False) == (again.id, again.created)
            await app.runs.cancel([first.id])
            with pytest.raises(RunCancelled):
                await first.result(timeout=20)

            async with app.transaction() as tx:
                await tx.execute("insert into effects values ($1, $2, $3)", "mine", 0, 0)
                written = [await tx.enqueue("write", {"item": n}) for n in range(1, 20)]
            assert list(range(1, 20)) == [await app.runs.result(run_id, timeout=20) for run_id in written]
            with pytest.raises(RuntimeError, match="undo"):
                await enqueue_and_undo(app)

            with pytest.raises(RunFailed, match="out of tune"):
                await (await app.enqueue("fail")).result(timeout=20)
            later = await app.enqueue("double", {"n": 7}, delay="1h")
            assert await later.cancel()
            await app.runs.retry(later.id)
            assert 14 == await later.result(timeout=20)
    assert not probe.seen(NotificationReceived, channel="queue")
    assert_one_effect_each(direct, list(range(20)))
    assert [(0,)] == direct.query(BELLS)


async def enqueue_and_undo(app: App) -> None:
    async with app.transaction() as tx:
        await tx.enqueue("write", {"item": 99})
        raise RuntimeError("undo")


async def test_processes_share_the_pool(database: PostgresDatabase, direct: PostgresDatabase, log: Log, gates: Gates):
    """Three worker processes and a producer on four connections of the server: each effect once, no trouble."""
    crew = Crew(database, log, gates)
    try:
        for _ in range(3):
            await crew.start("items", queues="default:5")
        async with App(database.url) as app:
            await asyncio.gather(*(app.enqueue("write", {"item": item}) for item in range(150)))
        await all_ended(direct, timeout=30)
    finally:
        await crew.close()
    assert_one_effect_each(direct, list(range(150)))
    assert [] == [line for line in log.lines if line["what"] in ("StoreTroubled", "LeaseLost", "RunFailed")]


async def test_bells_are_never_hung_on_a_pooled_connection(database: PostgresDatabase, direct: PostgresDatabase):
    """A session's lock would stay with a connection that others use: nobody could be sure who sleeps."""
    app = an_app(database.url)
    with Probe(app.telemetry) as probe:
        async with app, app.worker():
            await probe.next(ListeningChanged, working=False)
            await probe.next(QueueAsleep, queue="default")
            assert [(0,)] == direct.query(BELLS)
            handle = await app.enqueue("double", {"n": 1})
            assert 2 == await handle.result(timeout=20)
            assert [(0,)] == direct.query(BELLS)


async def test_a_listener_through_the_pooler_cannot_be_armed(database: PostgresDatabase, direct: PostgresDatabase):
    """It found out that it hears nothing, and takes no lock."""
    heard: asyncio.Queue[Signal] = asyncio.Queue()
    store = PostgresStore(database.url)
    listener = store.listener(heard.put_nowait)
    await listener.start()
    try:
        async with asyncio.timeout(20):
            assert isinstance(changed := await heard.get(), ListenerChanged)
        assert not changed.working
        assert not await listener.arm(queue_topic("default"))
        assert [(0,)] == direct.query(BELLS)
        assert store.pooled
    finally:
        await listener.stop()
        await store.close()


async def test_a_direct_address_brings_wake_ups_back(database: PostgresDatabase, direct: PostgresDatabase):
    """With OSTINATO_LISTEN_URL the work goes through the pooler, and the bell past it."""
    app = an_app(database.url, listen_url=direct.url, poll="60s")
    with Probe(app.telemetry) as probe:
        async with app, app.worker():
            await probe.next(ListeningChanged, working=True)
            while direct.query(BELLS) == [(0,)]:  # noqa: ASYNC110 - it is armed a moment after it has begun to listen
                await asyncio.sleep(0.01)
            handle = await app.enqueue("double", {"n": 21})
            await probe.next(NotificationReceived, channel="queue")
            assert 42 == await handle.result(timeout=20)


async def test_migrating_through_the_pooler(system_server: Server, pooler: Pgbouncer):
    """Installers take turns by a lock that ends with its transaction, so they may come through the pooler."""
    with system_server.temporary_database() as url:
        installers = [App(pooler.url_of(url)).migrations() for _ in range(4)]

        applied = [name for answer in await asyncio.gather(*(each.up() for each in installers)) for name in answer]

        assert len(applied) == len(set(applied)) == len(await installers[0].status())
        assert [] == await installers[0].verify()
        assert [(0,)] == PostgresDatabase(url).query(BELLS)


# --- the doctor -----------------------------------------------------------------------------------------------------


async def about_wakeups(app: App) -> Finding:
    [found] = [finding for finding in await app.doctor.examine() if finding.check == "wake-ups"]
    return found


async def test_the_doctor_says_so(database: PostgresDatabase, direct: PostgresDatabase):
    """It names the pooler, what follows, and the remedy; with the remedy it is content, and without a pooler too."""
    found = await about_wakeups(App(database.url))
    assert Level.WARNING is found.level
    assert "a pooler in transaction mode" in found.seen
    assert "polling" in found.seen
    assert "OSTINATO_LISTEN_URL" in (found.remedy or "")

    healed = await about_wakeups(App(database.url, listen_url=direct.url))
    assert (Level.OK, True) == (healed.level, "OSTINATO_LISTEN_URL" in healed.seen)
    assert "pooler" not in (await about_wakeups(App(direct.url))).seen


async def test_the_doctor_knows_session_mode(system_server: Server, direct: PostgresDatabase):
    """There a session is the client's own, and notifications arrive."""
    with pgbouncer(system_server.dsn(), mode="session", more="default_pool_size = 20") as pooler:
        found = await about_wakeups(App(pooler.url_of(direct.url)))
    assert (Level.OK, True) == (found.level, "a pooler in session mode" in found.seen)


async def test_a_run_goes_through(database: PostgresDatabase, direct: PostgresDatabase):
    """The self-test passes by polling, and by notification with a direct address."""
    polled = await App(database.url).doctor.self_test()
    woken = await App(database.url, listen_url=direct.url).doctor.self_test()

    assert (True, "polling") == (polled.passed, polled.woken_by)
    assert (True, "notification") == (woken.passed, woken.woken_by)
