"""A worker's own HTTP server: metrics, and whether it is alive and ready."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from ostinato import App, ConfigError
from ostinato.engine.worker import Worker
from ostinato.observability import health
from ostinato.telemetry import LeaseLost, MetricsServed, WorkerStarted
from ostinato.testing.postgres import Server
from ostinato.testing.probe import Probe
from tests.engine.databases import Database
from tests.metrics.conftest import MakeApp
from tests.metrics.scraping import asked, fetch, of, scraped, told

WELL = {"loop": "ok", "worker": "ok", "lease": "ok", "database": "ok", "schema": "ok"}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is asked each time, so that a test need not wait."""
    monkeypatch.setattr(health, "DATABASE_KEPT_FOR", 0.0)


@asynccontextmanager
async def served(app: App, **options: Any) -> AsyncIterator[tuple[Worker, str]]:
    async with app.worker() as worker:
        with app.serve_metrics(worker, port=0, **options) as server:
            yield worker, server.url


async def until(question: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """The first wanted answer, asked again and again from a thread."""
    deadline = time.monotonic() + 15
    while not wanted(answer := await asyncio.to_thread(question)):
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.02)
    return answer


# --- well


async def test_a_worker_that_works_is_alive_and_ready(app: App):
    """Each check is named, and the worker too."""
    async with served(app) as (worker, url):
        assert await asked(f"{url}/livez") == (200, {"status": "ok", "worker": worker.id, "checks": {"loop": "ok"}})
        for path in ("readyz", "healthz"):
            assert await asked(f"{url}/{path}") == (200, {"status": "ok", "worker": worker.id, "checks": WELL})


async def test_metrics_are_served(app: App):
    """Also those of a run that ended a moment ago."""

    @app.function
    async def enrich() -> None: ...

    async with served(app) as (_, url):
        await (await enrich.enqueue()).result(timeout=10)
        found = await until(lambda: of(asyncio.run(scraped(url)), "job_completed_total"), bool)
    assert found == {"enrich/success": 1}


async def test_head_has_no_body_and_other_paths_are_missing(app: App):
    async with served(app) as (_, url):
        assert await asyncio.to_thread(fetch, f"{url}/livez", method="HEAD") == (200, b"")
        status, body = await asked(f"{url}/elsewhere")
        assert (status, body["error"]) == (
            404,
            "there is nothing at /elsewhere; there are /metrics, /livez, /readyz, /healthz",
        )
        assert (await asked(f"{url}/livez?probe=1"))[0] == 200


async def test_settings_are_enough(make_app: MakeApp):
    """An embedded worker serves when the app's settings say so, says where, and stops with it."""
    app = make_app(metrics_port=0)
    with Probe(app.telemetry) as probe:
        async with app.worker():
            url = (await probe.next(MetricsServed)).url
            assert url.startswith("http://127.0.0.1:")
            assert (await asked(f"{url}/livez"))[0] == 200
        with pytest.raises(OSError, match="refused"):
            fetch(f"{url}/livez")


async def test_the_address_can_be_chosen(app: App):
    """IPv6 too."""
    async with app.worker() as worker:
        with app.serve_metrics(worker, port=0, host="::1") as server:
            assert server.url == f"http://[::1]:{server.port}"
            assert (await asked(f"{server.url}/livez"))[0] == 200


async def test_it_can_be_served_again(app: App):
    """What was closed opens again, connections included."""
    async with app.worker() as worker:
        for _ in range(2):
            with app.serve_metrics(worker, port=0) as server:
                assert (await asked(f"{server.url}/readyz"))[0] == 200


# --- a port that cannot be had


async def test_a_port_that_is_taken_is_a_clear_error(make_app: MakeApp):
    """Before anything is claimed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        app = make_app(metrics_port=port)
        with Probe(app.telemetry) as probe:
            with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use; choose another"):
                async with app.worker():
                    pass
            assert probe.seen(WorkerStarted) == []


@pytest.mark.parametrize("port", [-1, 65536, "http", 1.5, True])
def test_what_is_no_port_is_refused(port: Any):
    with pytest.raises(ConfigError, match=r"metrics_port=.* must be a port from 1 to 65535, or 0 for any"):
        App("sqlite:///x.db", metrics_port=port)


# --- not alive


async def test_an_event_loop_that_is_blocked_is_not_alive(app: App):
    """The answer comes from beside it; once it goes on, all is well again."""
    async with served(app, loop_limit="300ms") as (_, url):
        assert told(f"{url}/livez")[0] == 200
        deadline, status = time.monotonic() + 15, 200
        while status == 200:  # blocking, as a handler might
            status, body = told(f"{url}/livez")
            ready = told(f"{url}/readyz")
            assert time.monotonic() < deadline
        assert (status, ready[0]) == (503, 503)
        assert body["status"] == "failing"
        assert "the event loop has not answered for 0." in body["checks"]["loop"]
        assert {name for name, found in ready[1]["checks"].items() if found != "ok"} == {"loop"}

        await until(lambda: told(f"{url}/livez")[0], lambda status: status == 200)


async def test_metrics_are_served_while_the_event_loop_is_blocked(app: App):
    async with served(app) as (_, url):
        assert fetch(f"{url}/metrics")[0] == 200


# --- not ready


async def test_a_worker_that_stops_is_not_ready(app: App):
    """While what runs may still end, nothing new should be expected of it."""
    begun, go = asyncio.Event(), asyncio.Event()

    @app.function
    async def linger() -> None:
        begun.set()
        await go.wait()

    app.configure(shutdown_grace=30)
    async with served(app) as (worker, url):
        await linger.enqueue()
        await begun.wait()
        worker.stop()
        status, body = await asked(f"{url}/readyz")
        assert (status, body["checks"]) == (503, {**WELL, "worker": "the worker is stopping"})
        assert (await asked(f"{url}/livez"))[0] == 200
        go.set()


async def test_a_worker_that_has_not_started_is_not_ready(make_app: MakeApp):
    """It is being asked as soon as its port is open."""
    app, begun, go = make_app(metrics_port=0), asyncio.Event(), asyncio.Event()

    @app.lifespan
    async def slow() -> AsyncIterator[dict[str, Any]]:
        begun.set()
        await go.wait()
        yield {}

    async def work() -> None:
        async with app.worker():
            pass

    with Probe(app.telemetry) as probe:
        working = asyncio.create_task(work())
        url = (await probe.next(MetricsServed)).url
        await begun.wait()
        status, body = await asked(f"{url}/readyz")
        go.set()
        await working
    assert status == 503
    assert {name for name, found in body["checks"].items() if found != "ok"} == {"worker", "lease"}


async def test_a_worker_without_a_lease_is_not_ready(make_app: MakeApp, database: Database):
    """Declared dead by another, until it has a new identity: which it cannot get while nobody may register."""
    app = make_app(lease="1s")
    with Probe(app.telemetry) as probe:
        async with served(app) as (worker, url):
            await asyncio.to_thread(refuse_registrations, database)
            await asyncio.to_thread(database.query, "update ostinato_workers set dead_at = renewed_at")
            await probe.next(LeaseLost)
            status, body = await asked(f"{url}/readyz")
            assert status == 503
            assert "no lease" in body["checks"]["lease"]
            assert {name for name, found in body["checks"].items() if found != "ok"} == {"lease"}

            await asyncio.to_thread(allow_registrations, database)
            await until(lambda: told(f"{url}/readyz")[0], lambda status: status == 200)
            assert worker.id is not None


def refuse_registrations(database: Database) -> None:
    if database.dialect == "sqlite":
        what = "begin select raise(abort, 'closed'); end"
    else:
        refuse = "create function refuse() returns trigger language plpgsql as "
        database.query(f"{refuse} $$ begin raise exception 'closed'; end $$")
        what = "for each row execute function refuse()"
    database.query(f"create trigger nobody before insert on ostinato_workers {what}")


def allow_registrations(database: Database) -> None:
    database.query("drop trigger nobody" + (" on ostinato_workers" if database.dialect == "postgresql" else ""))


async def test_a_schema_that_is_gone_is_named(app: App, database: Database):
    """The database is there, its tables are not."""
    async with served(app) as (_, url):
        assert (await asked(f"{url}/readyz"))[1]["checks"] == WELL
        await asyncio.to_thread(database.query, rename_runs(database, back=False))
        status, body = await asked(f"{url}/readyz")
        await asyncio.to_thread(database.query, rename_runs(database, back=True))
        assert (status, body["checks"]["database"]) == (503, "ok")
        assert "run `ostinato migrate up`" in body["checks"]["schema"]
        assert (await asked(f"{url}/readyz"))[1]["checks"] == WELL


def rename_runs(database: Database, *, back: bool) -> str:
    if database.dialect == "sqlite":
        names = ("ostinato_gone", "ostinato_runs") if back else ("ostinato_runs", "ostinato_gone")
        return "alter table {} rename to {}".format(*names)
    return "alter table ostinato_gone rename to runs" if back else "alter table ostinato_runs rename to gone"


async def test_a_database_that_cannot_be_reached_is_named(postgres_database: Database, metrics_server: Server):
    """And the worker is ready again when it is back."""
    app = App(postgres_database.url, shutdown_grace="500ms")
    name = postgres_database.url.rpartition("/")[2].partition("?")[0]
    async with served(app) as (_, url):
        assert (await asked(f"{url}/readyz"))[1]["checks"] == WELL
        await asyncio.to_thread(administer, metrics_server, f'alter database "{name}" allow_connections false')
        ended = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
        await asyncio.to_thread(administer, metrics_server, ended)
        status, body = await asked(f"{url}/readyz")
        assert (status, (await asked(f"{url}/livez"))[0]) == (503, 200)
        assert body["checks"]["database"] != "ok"
        assert body["checks"]["schema"] != "ok"

        await asyncio.to_thread(administer, metrics_server, f'alter database "{name}" allow_connections true')
        await until(lambda: told(f"{url}/readyz")[0], lambda status: status == 200)


def administer(server: Server, sql: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(sql.encode())


async def test_the_database_is_asked_once_a_second_at_most(app: App, monkeypatch: pytest.MonkeyPatch):
    """However many ask."""
    monkeypatch.setattr(health, "DATABASE_KEPT_FOR", 60.0)
    asked_for = 0
    touch = health._touch

    async def counted(store: Any) -> None:
        nonlocal asked_for
        asked_for += 1
        await touch(store)

    monkeypatch.setattr(health, "_touch", counted)
    async with served(app) as (_, url):
        for _ in range(5):
            assert (await asked(f"{url}/readyz"))[1]["checks"] == WELL
    assert asked_for == 1
