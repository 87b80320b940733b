"""An overview as a screen. Colours are the terminal's own sixteen, so that it reads well on any background."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...config import redacted
from ...model.run import State
from ..output import UNLIMITED, cut, table
from ..words import COLOURS, ago, span
from .rooms import share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...errors import StoreError
    from ...model.view import FailureView, Overview, QueueView, WorkerView

T = TypeVar("T")

SPARKS = "▁▂▃▄▅▆▇█"
HISTORY = 30
FRAME = 9
"""Lines that are there whatever is shown: the sums, three headings, two headers, and blank ones."""


class Scene:
    """What has been seen so far, and what is in the way of seeing more."""

    def __init__(self, url: str, interval: float) -> None:
        self.url, self.interval = redacted(url), interval
        self.overview: Overview | None = None
        self.trouble: StoreError | None = None
        self.took = 0.0
        self.speeds: deque[float] = deque(maxlen=HISTORY)
        """Completions per second, from look to look."""

    def seen(self, overview: Overview) -> None:
        self.overview, self.trouble = overview, None
        self.speeds.append(Rates(overview).of(State.COMPLETED))


class Rates:
    """How many runs end per second, by queue and state, and all together."""

    def __init__(self, overview: Overview) -> None:
        self._seconds = max(overview.seconds, 0.001)
        self._counts: Counter[tuple[str | None, State]] = Counter()
        for ended in overview.ended:
            self._counts[ended.queue, ended.state] += ended.count
            self._counts[None, ended.state] += ended.count

    def of(self, state: State, queue: str | None = None) -> float:
        return self._counts[queue, state] / self._seconds


# --- the whole


def draw(scene: Scene, *, width: int, height: int) -> RenderableType:
    """The screen of a terminal, filled and not overfilled."""
    assert scene.overview is not None
    lines = [_title(scene), *([_trouble(scene.trouble)] if scene.trouble else []), Text()]
    body = _body(scene.overview, scene.speeds, width=width - 2, height=height - len(lines))
    return Padding(Group(*lines, *body), (0, 1))


def plain(overview: Overview, url: str, *, width: int) -> RenderableType:
    """The same once, as long as it takes."""
    return Group(Text(f"{redacted(url)}  {_clock(overview.until)}"), Text(), *_body(overview, (), width=width))


def _body(overview: Overview, speeds: Sequence[float], *, width: int, height: int = UNLIMITED) -> list[RenderableType]:
    wanted = [len(overview.queues), len(overview.workers), len(overview.failures)]
    queues, workers, failures = share(height - FRAME, wanted)
    return [
        _sums(overview, speeds, width),
        Text(),
        *_queues(overview, queues),
        Text(),
        *_workers(overview, workers),
        Text(),
        *_failures(overview, failures),
    ]


# --- the parts


def _title(scene: Scene) -> RenderableType:
    assert scene.overview is not None
    made = Table.grid(expand=True)
    made.add_column(ratio=1)
    made.add_column(justify="right", no_wrap=True)
    left = Text(no_wrap=True, overflow="ellipsis").append("ostinato top", "bold").append(f"  {scene.url}", "dim")
    right = Text.assemble(
        "  ", (_clock(scene.overview.until), "bold"), (f"  every {scene.interval:g} s  q quits", "dim")
    )
    made.add_row(left, right)
    return made


def _trouble(error: StoreError) -> Text:
    return _line(f"not up to date: {error}", "red")


def _sums(overview: Overview, speeds: Sequence[float], width: int) -> Text:
    """Everything in one line, and on a wide terminal how the speed has changed."""
    rates, queues = Rates(overview), overview.queues
    numbers = {
        State.READY: _sum([queue.ready for queue in queues], overview.counted_to),
        State.HELD: _sum([queue.held for queue in queues], overview.counted_to),
        State.RUNNING: f"{sum(queue.running for queue in queues):,}",
        State.COMPLETED: f"{_rate(rates.of(State.COMPLETED))}/s",
        State.FAILED: f"{_rate(rates.of(State.FAILED))}/s",
    }
    parts = [Text.assemble((number, f"bold {COLOURS[state]}"), f" {state}") for state, number in numbers.items()]
    line = Text("   ", no_wrap=True, overflow="ellipsis").join(parts)
    if len(speeds) > 1 and (room := width - len(line) - 3) >= 7:
        line.append("   ").append(_sparks(list(speeds)[-room:]), "green")
    return line


def _queues(overview: Overview, room: int) -> list[RenderableType]:
    if not overview.queues:
        return [_heading("queues"), _line("none yet: no worker, function or run has named one", "dim")]
    rates = Rates(overview)
    numbers = ("ready", "held", "running", "done/s", "failed/s", "waited")
    made = table("queue", *numbers, right=numbers, flexible=("queue",))
    for queue in _shown(overview.queues, room):
        made.add_row(*_queue(queue, rates, overview.counted_to))
    return [_heading("queues"), made, *_more(overview.queues, room)]


def _queue(queue: QueueView, rates: Rates, counted_to: int) -> list[Text]:
    name = cut(printable(queue.name))
    if queue.paused:
        name.append(" paused", "yellow")
    failed = rates.of(State.FAILED, queue.name)
    unserved = queue.ready and not queue.slots and not queue.paused
    return [
        name,
        _number(queue.ready, counted_to, "blue"),
        _number(queue.held, counted_to, "yellow"),
        Text(f"{queue.running:,}/{queue.slots:,}", "red" if unserved else "cyan" if queue.running else "dim"),
        _speed(rates.of(State.COMPLETED, queue.name), "green"),
        _speed(failed, "red"),
        Text("" if queue.longest_wait is None else span(max(0.0, queue.longest_wait), units=1)),
    ]


def _shown(queues: Sequence[QueueView], room: int) -> Sequence[QueueView]:
    """All in the order of their names, or when there is no room for all, those with the most to do."""
    if len(queues) <= room:
        return queues
    busiest = sorted(queues, key=lambda queue: (-queue.running - queue.ready, -queue.held, queue.name))
    return busiest[: max(0, room - 1)]


def _workers(overview: Overview, room: int) -> list[RenderableType]:
    if not overview.workers:
        return [_heading("workers"), _line("nobody works; start a worker: ostinato worker module:app", "dim")]
    made = table("worker", "state", "running", "queues", "renewed", right=("running",), flexible=("worker", "queues"))
    for worker in _first(overview.workers, room):
        made.add_row(*_worker(worker, overview.until))
    return [_heading("workers"), made, *_more(overview.workers, room)]


def _worker(worker: WorkerView, now: datetime) -> list[Text]:
    queues = ", ".join(f"{name}:{slots}" for name, slots in worker.queues.items())
    return [
        cut(printable(worker.name)),
        _condition(worker),
        Text(f"{worker.running:,}/{sum(worker.queues.values()):,}", "cyan" if worker.running else "dim"),
        cut(printable(queues)),
        Text(ago(worker.renewed_at, now)),
    ]


def _condition(worker: WorkerView) -> Text:
    if not worker.alive:
        return Text("expired", "red")
    return Text("stopping", "yellow") if worker.stopping else Text("alive", "green")


def _failures(overview: Overview, room: int) -> list[RenderableType]:
    if not overview.failures:
        return [_heading("latest failures"), _line("none", "dim")]
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True)
    made.add_column(overflow="ellipsis", max_width=24)
    made.add_column(overflow="ellipsis")
    for failure in overview.failures[:room]:
        made.add_row(*_failure(failure, overview.until))
    return [_heading("latest failures"), made]


def _failure(failure: FailureView, now: datetime) -> list[Text]:
    error = f"{failure.error.code}: {failure.error.message}" if failure.error else "no reason was kept"
    message = cut(printable(error))
    message.stylize("red")
    return [Text(ago(failure.ended_at, now), "dim"), Text(failure.id), cut(printable(failure.function)), message]


# --- small things


def _heading(title: str) -> Text:
    return Text(title, "bold")


def _line(text: str, style: str) -> Text:
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _first(things: Sequence[T], room: int) -> Sequence[T]:
    return things if len(things) <= room else things[: max(0, room - 1)]


def _more(things: Sequence[object], room: int) -> list[RenderableType]:
    """The line that stands for those without room."""
    return [] if len(things) <= room else [_line(f"and {len(things) - max(0, room - 1):,} more", "dim")]


def _sum(counts: Sequence[int], counted_to: int) -> str:
    return f"{sum(counts):,}{'+' if any(count >= counted_to for count in counts) else ''}"


def _number(number: int, counted_to: int, colour: str) -> Text:
    return Text(f"{number:,}{'+' if number >= counted_to else ''}", colour if number else "dim")


def _speed(rate: float, colour: str) -> Text:
    return Text(_rate(rate), colour if rate else "dim")


def _rate(rate: float) -> str:
    return "0" if not rate else f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"


def _sparks(speeds: Sequence[float]) -> str:
    highest = max(*speeds, 1.0)
    return "".join(SPARKS[min(7, int(speed * 8 / highest))] for speed in speeds)


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"


def printable(text: str) -> str:
    """The first line of a text, without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text.partition("\n")[0])
