"""`ostinato worker --metrics-port`, in processes of its own."""

from __future__ import annotations

import asyncio
import signal
import socket

from tests.cli.processes import program, worker
from tests.engine.databases import Database
from tests.metrics.scraping import of, scraped, told

RADIO = "tests.cli.apps.radio:app"


def prepared(database: Database) -> str:
    from ostinato import App

    asyncio.run(App(database.url).migrations().up())
    return database.url


def test_the_flag_serves_metrics_and_health(database: Database):
    """The log says where."""
    args = ("worker", RADIO, "--database-url", prepared(database), "--log-format", "json", "--metrics-port", "0")
    with program(*args) as working:
        url = working.event("metrics_served")["url"]
        identity = working.event("worker_started")["worker_id"]
        assert url.startswith("http://127.0.0.1:")
        assert told(f"{url}/livez")[0] == 200
        assert told(f"{url}/readyz") == (200, {**told(f"{url}/readyz")[1], "worker": identity})
        assert of(asyncio.run(scraped(url)), "job_leases_lost_total") == {}
        working.signal(signal.SIGTERM)
        assert working.ended() == 0


def test_the_environment_is_enough(database: Database):
    """Host and port."""
    settings = {"OSTINATO_METRICS_PORT": "0", "OSTINATO_METRICS_HOST": "0.0.0.0"}
    args = ("worker", RADIO, "--database-url", prepared(database), "--log-format", "json")
    with program(*args, env=settings) as working:
        url = working.event("metrics_served")["url"]
        assert url.startswith("http://0.0.0.0:")
        assert told(f"http://127.0.0.1:{url.rpartition(':')[2]}/livez")[0] == 200


def test_without_the_setting_nothing_is_served(database: Database):
    """No port is opened, and the package is not even imported."""
    with worker(prepared(database)) as working:
        assert "metrics_served" not in working.output


def test_a_port_that_is_taken_is_one_clear_line(database: Database):
    """No traceback, exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        args = ("worker", RADIO, "--database-url", prepared(database), "--log-level", "error", "--metrics-port", port)
        with program(*args) as refused:
            assert refused.ended() == 1
            (line,) = refused.output.splitlines()
    assert line.startswith(f"error: metrics cannot be served on 127.0.0.1:{port}: Address already in use; choose")


def test_without_the_package_the_extra_is_named(database: Database, tmp_path_factory):
    """A worker that cannot do what it is told does not start."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "prometheus_client.py").write_text("raise ModuleNotFoundError(name='prometheus_client')\n")
    args = ("worker", RADIO, "--database-url", prepared(database), "--log-level", "error", "--metrics-port", "0")
    with program(*args, env={"PYTHONPATH": str(folder)}) as refused:
        assert refused.ended() == 1
        assert refused.output == "error: metrics need prometheus-client: pip install 'ostinato[metrics]'\n"
