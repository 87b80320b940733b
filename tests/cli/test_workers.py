"""`ostinato workers`."""

from __future__ import annotations

import signal

from tests.cli.conftest import Cli
from tests.cli.processes import worker


def test_nobody_works(cli: Cli):
    """An empty list says how to start a worker."""
    result = cli("workers", "list")
    assert (0, "") == (result.exit_code, result.stdout)
    assert "start a worker: ostinato worker module:app" in result.stderr
    assert cli.reads("workers", "list") == []


def test_who_works(url: str, cli: Cli):
    """A line for each worker: who, on what, and since when."""
    with worker(url, "--queues", "mail:2") as working:
        shown = cli.does("workers", "list")
        assert all(piece in shown for piece in ("alive", "mail:2", f":{working.process.pid} "))
        (seen,) = cli.reads("workers", "list")
        assert ({"mail": 2}, True, 0) == (seen["queues"], seen["alive"], seen["running"])


def test_who_has_worked(url: str, cli: Cli):
    """Those that ended are shown when asked for."""
    with worker(url) as working:
        working.signal(signal.SIGTERM)
        assert working.ended() == 0
    assert cli.reads("workers", "list") == []
    assert "ended" in cli.does("workers", "list", "--all")
