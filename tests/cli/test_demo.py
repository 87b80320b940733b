"""`ostinato demo`: the whole story, and how it ends."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from ostinato.cli.demo.crew import Crew
from ostinato.cli.demo.screen import draw
from ostinato.cli.demo.story import Story
from tests.cli.processes import environment, program

LEAVE_OTHER_SCREEN = b"\x1b[?1049l"


def test_it_tells_its_story(tmp_path: Path):
    """Work, retries, a failure, a priority, a schedule, a kill and a rescue, and nothing left behind."""
    with program("demo", "--plain", "--duration", "15", env={"TMPDIR": str(tmp_path)}) as demo:
        assert demo.ended() == 0
    for told in (
        "24 tracks come in",
        "the weekly chart is scheduled",
        "completed at attempt 1",
        "503 too busy, try later; again in",
        "failed for good: The Neighbours",
        "a listener wants",
        "kill -9 of worker",
        "has run out: its",
        "worker 3 starts",
        "One worker was killed with kill -9",
        ": none was lost, none written twice",
    ):
        assert told in demo.output, demo.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_when_told_to(tmp_path: Path, number: signal.Signals):
    """Ctrl-C ends everything within two seconds, with exit code 0 and nothing left behind."""
    with program("demo", "--plain", env={"TMPDIR": str(tmp_path)}) as demo:
        demo.until("completed at attempt")
        began = time.monotonic()
        demo.signal(number)
        assert demo.ended() == 0
        assert time.monotonic() - began < 2
    assert "runs were enqueued" in demo.output
    assert list(tmp_path.iterdir()) == []


def test_its_workers_go_with_it(tmp_path: Path):
    """Killed itself, the demo leaves no worker behind."""
    with program("demo", "--plain", env={"TMPDIR": str(tmp_path)}) as demo:
        line = demo.until("worker 2 starts (pid ")
        demo.process.kill()
        wait_until_gone(int(line.partition("(pid ")[2].partition(")")[0]))


def test_a_terminal_is_given_back_as_it_was(tmp_path: Path):
    """On a terminal it draws on the other screen, leaves it at the end, and prints the summary."""
    pid, terminal = pty.fork()
    if pid == 0:
        env = {**environment(), "TERM": "xterm-256color", "TMPDIR": str(tmp_path), "COLUMNS": "80", "LINES": "24"}
        os.execve(sys.executable, [sys.executable, "-m", "ostinato.cli", "demo", "--duration", "3"], env)
    shown = all_of(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    screen, left, after = shown.partition(LEAVE_OTHER_SCREEN)
    assert b"ostinato demo" in screen
    assert left
    assert b"runs were enqueued" in after


@pytest.mark.parametrize(("width", "height"), [(80, 24), (50, 16), (140, 40), (200, 60)])
def test_the_screen_fits(width: int, height: int):
    """Whatever the terminal's size, no line is folded and none is too many."""
    story = Story()
    for turn in range(100):
        story.happened(f"something happened that takes quite a few words to tell, for the {turn}th time")
    console = Console(width=width, height=height, file=sys.stderr)
    lines = console.render_lines(draw(console, story, Crew("sqlite:///radio.db", story)), pad=False)
    assert len(lines) <= height
    assert all(sum(segment.cell_length for segment in line) <= width for line in lines)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 15
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def all_of(terminal: int) -> bytes:
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:
        pass  # Linux says so when the other side is closed
    os.close(terminal)
    return shown
