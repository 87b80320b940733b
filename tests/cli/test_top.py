"""`ostinato top`: what it shows, whatever there is to show, and how it ends."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import termios
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import json
from rich.console import Console

from ostinato import App
from ostinato.cli.top.rooms import share
from ostinato.cli.top.screen import Scene, draw
from ostinato.cli.top.watching import _look
from ostinato.errors import StoreUnavailable
from ostinato.model.run import State
from ostinato.model.view import EndedCount, FailureView, Overview, QueueView, RunError, WorkerView
from tests.cli.conftest import Cli
from tests.cli.processes import environment, program, worker
from tests.cli.test_demo import LEAVE_OTHER_SCREEN

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
ENTER_OTHER_SCREEN = b"\x1b[?1049h"


# --- once


def test_it_shows_everything_once(url: str, cli: Cli):
    """Queues with what waits and how fast it is done, workers, and the latest failures."""
    with worker(url):
        for _ in range(3):
            cli("enqueue", "greet", '{"name": "ann"}', "--wait")
        cli("enqueue", "refuse", "--wait")
        cli.does("enqueue", "greet", "--delay", "1h")
        shown = cli.does("top", "--once")
        overview = cli.reads("top")
    assert re.search(r"^0 ready   1 held   0 running   [\d.]+/s completed   [\d.]+/s failed$", shown, re.MULTILINE)
    assert re.search(r"^default +0 +1 +0/7 +[\d.]+ +0$", shown, re.MULTILINE)
    assert re.search(r"^mail +0 +0 +0/3 +0 +[\d.]+$", shown, re.MULTILINE)
    assert re.search(r" alive +0/10 .*default:7", shown)
    assert re.search(r"(now|ago)  \w{26}  refuse  fatal: we do not do that\n$", shown)
    assert [queue["name"] for queue in overview["queues"]] == ["default", "mail"]
    assert [failure["function"] for failure in overview["failures"]] == ["refuse"]
    assert [each["alive"] for each in overview["workers"]] == [True]


def test_it_shows_an_empty_database(empty_url: str):
    """And what to do about it."""
    cli = Cli(empty_url)
    cli.does("migrate", "up")
    shown = cli.does("top", "--once")
    for piece in (
        "0 ready   0 held   0 running   0/s completed   0/s failed\n",
        "none yet: no worker, function or run has named one\n",
        "nobody works; start a worker: ostinato worker module:app\n",
        "latest failures\nnone\n",
    ):
        assert piece in shown


def test_it_shows_no_password(sqlite_database: str):
    """Neither in the title nor in an error."""
    url = "postgresql://ann:secret@127.0.0.1:1/radio"
    assert "secret" not in shown(a_scene(an_overview(), url=url), 80, 24)
    assert "secret" not in Cli(url).fails("top", "--once")


def test_piped_it_ends_by_itself(url: str):
    """There is nobody to press q."""
    with program("top", "--database-url", url) as top:
        assert top.ended() == 0
    assert "latest failures" in top.output
    assert "\x1b" not in top.output


def test_the_interval_has_a_lower_bound(cli: Cli):
    """Nobody reads faster than that."""
    assert "must be at least 0.1 s" in cli.fails("top", "--interval", "10ms", code=2)


# --- live


def press_q(terminal: int, _: int) -> None:
    os.write(terminal, b"q")


def press_control_c(terminal: int, _: int) -> None:
    os.write(terminal, b"\x03")


def terminate(_: int, pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize("end", [press_q, press_control_c, terminate])
def test_it_ends_when_told_to(url: str, end: Callable[[int, int], None]):
    """With exit code 0, and the terminal as it was: its first screen, and what is typed is shown again."""
    pid, terminal = pty.fork()
    if pid == 0:
        env = {**environment(), "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
        command = [sys.executable, "-m", "ostinato.cli", "top", "--interval", "200ms", "--database-url", url]
        os.execve(sys.executable, command, env)
    screens = b""
    while screens.count(b"latest failures") < 2:  # it has looked again
        screens += os.read(terminal, 65536)
    assert not termios.tcgetattr(terminal)[3] & termios.ICANON
    end(terminal, pid)
    screens += rest(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert termios.tcgetattr(terminal)[3] & termios.ICANON
    os.close(terminal)
    screen, left, after = screens.partition(LEAVE_OTHER_SCREEN)
    assert ENTER_OTHER_SCREEN in screen
    assert left
    assert b"Traceback" not in screens
    assert after.strip(b"\r\n") in (b"", b"\x1b[?25h")


def rest(terminal: int) -> bytes:
    """What comes until the program has ended."""
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass  # Linux says so when the other side is closed
    return shown


async def test_an_outage_is_shown(tmp_path: Any):
    """With what was seen before, until the database can be asked again."""
    scene = a_scene(an_overview(queues=[QueueView(name="default", ready=7)]))
    await _look(App("postgresql://127.0.0.1:1/radio"), scene)
    assert isinstance(scene.trouble, StoreUnavailable)
    text = shown(scene, 80, 24)
    assert "not up to date: " in text
    assert "default" in text
    app = App(f"sqlite:///{tmp_path}/radio.db")
    await app.migrations().up()
    await _look(app, scene)
    assert "not up to date" not in shown(scene, 80, 24)


# --- the screen


def an_overview(**parts: Any) -> Overview:
    empty: dict[str, Any] = {"queues": [], "workers": [], "failures": [], "ended": []}
    return Overview(since=NOW - timedelta(seconds=2), until=NOW, counted_to=100_000, **{**empty, **parts})


def a_scene(overview: Overview, *, url: str = "sqlite:///radio.db") -> Scene:
    scene = Scene(url, 1.0)
    for _ in range(40):
        scene.seen(overview)
    return scene


def much() -> Overview:
    """More of everything than a terminal has room for, and texts of all sorts."""
    return an_overview(
        queues=[
            *(
                QueueView(name=f"queue-{n}", ready=n * 999, held=n, running=n, slots=9, longest_wait=7.0**n)
                for n in range(9)
            ),
            QueueView(name="default", ready=100_000, paused=True, longest_wait=0.1),
            QueueView(name="q" * 100, ready=100_000, held=100_000),
        ],
        workers=[a_worker(f"host-{number}.example.org:12345", running=number) for number in range(12)],
        failures=[a_failure("it\x1b[2Jfailed 失敗しました " * 20) for _ in range(10)],
        ended=[EndedCount("default", State.COMPLETED, 123_456), EndedCount("queue-1", State.FAILED, 3)],
    )


def a_worker(name: str, **fields: Any) -> WorkerView:
    worker: dict[str, Any] = {"id": "W", "name": name, "queues": {"default": 10, "mail": 5}, "lease": 30.0}
    worker |= {"alive": True, "stopping": False, "running": 0}
    worker |= dict.fromkeys(("started_at", "renewed_at", "expires_at"), NOW)
    return WorkerView(**{**worker, **fields})


def a_failure(message: str) -> FailureView:
    error = RunError("ValueError", message)
    return FailureView(id="0" * 26, function="f" * 60, queue="q", attempt=1, ended_at=NOW, error=error)


def lines(scene: Scene, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=sys.stderr)
    rendered = console.render_lines(draw(scene, width=width, height=height), pad=False)
    assert all(sum(segment.cell_length for segment in line) <= width for line in rendered)
    return ["".join(segment.text for segment in line).rstrip() for line in rendered]


def shown(scene: Scene, width: int, height: int) -> str:
    return "\n".join(lines(scene, width, height))


@pytest.mark.parametrize("overview", [an_overview(), much()], ids=["nothing", "much"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 16), (140, 40), (200, 60)])
def test_the_screen_fits(overview: Overview, width: int, height: int):
    """Whatever the terminal's size and the database's, no line is folded and none is too many."""
    scene = a_scene(overview)
    scene.trouble = StoreUnavailable("the database cannot be reached")
    drawn = lines(scene, width, height)
    assert len(drawn) <= height
    for heading in ("queues", "workers", "latest failures"):
        assert f" {heading}" in drawn


def test_much_is_shown_by_how_much_there_is_to_do():
    """Those with the most in them first, and how many there are besides."""
    text = shown(a_scene(much()), 80, 24)
    assert "default paused" in text
    assert "100,000+" in text
    assert "and 8 more" in text or "and 7 more" in text
    assert "queue-0 " not in text


def test_rates_are_per_second():
    """Of each queue and of all together, over the time between two looks."""
    ended = [
        EndedCount("a", State.COMPLETED, 5),
        EndedCount("b", State.COMPLETED, 300),
        EndedCount("b", State.FAILED, 1),
    ]
    queues = [QueueView(name="a", running=2, slots=4), QueueView(name="b")]
    drawn = lines(a_scene(an_overview(queues=queues, ended=ended)), 80, 24)
    assert " a          0     0      2/4     2.5         0" in drawn
    assert " b          0     0      0/0     150       0.5" in drawn
    assert drawn[2].startswith(" 0 ready   0 held   2 running   152/s completed   0.5/s failed")


def test_a_terminal_obeys_no_message():
    """What an error says is shown, not done."""
    assert "\x1b" not in shown(a_scene(much()), 140, 40)


@pytest.mark.parametrize(
    ("room", "wanted", "given"),
    [
        (30, [2, 3, 4], [2, 3, 4]),
        (10, [2, 30, 30], [2, 4, 4]),
        (9, [30, 30, 30], [3, 3, 3]),
        (10, [0, 1, 30], [1, 1, 8]),
        (-5, [5, 5, 5], [1, 1, 1]),
    ],
)
def test_lines_are_shared_fairly(room: int, wanted: list[int], given: list[int]):
    """Nobody gets more than it wants while another wants for some."""
    assert share(room, wanted) == given


def test_json_is_one_snapshot(cli: Cli):
    """For scripts, even without --once."""
    overview = json.decode(cli.does("top", "--json"))
    assert set(overview) == {"since", "until", "queues", "ended", "workers", "failures", "counted_to"}
