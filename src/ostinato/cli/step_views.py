"""The steps of a run as a waterfall: a line for each, on the run's own axis of time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ..model.step import Kind, Status
from ..model.view import labels
from .words import span

if TYPE_CHECKING:
    from rich.text import Text

    from ..model.view import RunView, StepView

COLOURS = {
    Status.PENDING: "yellow",
    Status.RUNNING: "cyan",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
}
EDGE = 15
"""As many steps are shown from the beginning and from the end when there are too many."""
MOST_OPEN = 20
"""And as many of those between that have not completed."""

_NAME, _KIND, _STATUS, _TOOK = (8, 32), 6, 9, 12
_BAR = (10, 60)
_WAITING = (Kind.SLEEP, Kind.EVENT, Kind.INVOKE)


class Line(NamedTuple):
    """A step, and what it is called."""

    label: str
    step: StepView


class Marks(NamedTuple):
    """What bars are drawn with."""

    work: str
    wait: str
    instant: str
    before: str
    ellipsis: str


UNICODE = Marks("█", "░", "▌", "«", "…")
ASCII = Marks("#", ".", "|", "<", "...")


class Waterfall:
    """Draws the steps of a run for a terminal of some width."""

    def __init__(
        self,
        run: RunView,
        steps: Sequence[StepView],
        children: Sequence[RunView] = (),
        *,
        width: int,
        now: datetime | None = None,
        marks: Marks = UNICODE,
    ) -> None:
        self._run, self._marks, self._now = run, marks, now or datetime.now(UTC)
        self._lines = [Line(*pair) for pair in zip(labels(steps), steps, strict=True)]
        self._children: Mapping[str, RunView] = {child.id: child for child in children}
        self._began = run.started_at or min((step.started_at for step in steps), default=run.created_at)
        self._ended = max([self._until, self._began, *(step.ended_at for step in steps if step.ended_at)])
        self._name = min(max([_NAME[0], *(len(line.label) for line in self._lines)]), _NAME[1], max(8, width // 4))
        self._bar = max(_BAR[0], min(_BAR[1], width - self._name - _KIND - _STATUS - _TOOK - 8))

    @property
    def _until(self) -> datetime:
        return self._run.ended_at or self._now

    @property
    def title(self) -> str:
        """How many steps there are, and of what kinds."""
        counts = {status: sum(line.step.status is status for line in self._lines) for status in Status}
        told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        copied = any(self._is_copied(line.step) for line in self._lines)
        return f"steps: {told}" + (f"; {self._marks.before} from run {self._run.copied_from}" if copied else "")

    def draw(self, *, everything: bool = False) -> Iterator[Text]:
        """The lines, from the head to the last step."""
        yield self._head()
        shown = set(range(len(self._lines))) if everything else self._chosen()
        left_out = 0
        for place, line in enumerate(self._lines):
            if place in shown:
                if left_out:
                    yield self._gap(left_out)
                left_out = 0
                yield self._row(line)
                yield from self._details(line.step)
            else:
                left_out += 1
        if left_out:
            yield self._gap(left_out)

    def _chosen(self) -> set[int]:
        """The places of the steps that are shown when not all are: both ends, and what has not completed."""
        count = len(self._lines)
        if count <= 2 * EDGE + MOST_OPEN:
            return set(range(count))
        ends = {*range(EDGE), *range(count - EDGE, count)}
        unfinished = [place for place, line in enumerate(self._lines) if line.step.status is not Status.COMPLETED]
        return ends | set([place for place in unfinished if place not in ends][-MOST_OPEN:])

    # --- lines

    def _head(self) -> Text:
        from rich.text import Text

        length = span(max(0.0, (self._ended - self._began).total_seconds()))
        axis = "0" + length.rjust(self._bar - 1) if len(length) < self._bar else length
        cells = ["step".ljust(self._name), "kind".ljust(_KIND), "status".ljust(_STATUS), axis, "took".rjust(_TOOK)]
        return Text("  ".join(cells), "bold")

    def _row(self, line: Line) -> Text:
        from rich.text import Text

        step = line.step
        row = Text(f"{self._fitted(line.label)}  {step.kind.value.ljust(_KIND)}  ")
        row.append(step.status.value.ljust(_STATUS), COLOURS[step.status])
        row.append("  ").append(self._drawn(step), COLOURS[step.status])
        return row.append(f"  {span(self._took(step)).rjust(_TOOK)}")

    def _fitted(self, label: str) -> str:
        from rich.cells import cell_len, set_cell_size

        if cell_len(label) <= self._name:
            return set_cell_size(label, self._name)
        return set_cell_size(label, self._name - len(self._marks.ellipsis)) + self._marks.ellipsis

    def _gap(self, count: int) -> Text:
        from rich.text import Text

        return Text(f"{self._marks.ellipsis} {count} more; all of them: --all-steps", "dim")

    # --- bars

    def _took(self, step: StepView) -> float:
        return max(0.0, ((step.ended_at or self._until) - step.started_at).total_seconds())

    def _is_copied(self, step: StepView) -> bool:
        """Whether the run was given it by the one that it is a copy of."""
        return self._run.copied_from is not None and step.ended_at is not None and step.ended_at < self._run.created_at

    def _drawn(self, step: StepView) -> str:
        if self._is_copied(step):
            return self._marks.before.ljust(self._bar)
        whole = max((self._ended - self._began).total_seconds(), 1e-6)
        first = self._place((step.started_at - self._began).total_seconds() / whole)
        last = self._place(((step.ended_at or self._until) - self._began).total_seconds() / whole)
        if first == last:
            return (" " * first + self._marks.instant).ljust(self._bar)
        waits = step.kind in _WAITING or step.status is Status.PENDING
        mark = self._marks.wait if waits else self._marks.work
        return (" " * first + mark * (last - first + 1)).ljust(self._bar)

    def _place(self, share: float) -> int:
        return min(self._bar - 1, max(0, int(share * self._bar)))

    # --- what more there is to say

    def _details(self, step: StepView) -> Iterator[Text]:
        from rich.text import Text

        if step.error is not None:
            yield Text(
                f"  {step.error.code}: {_one_line(step.error.message)}", "red", overflow="ellipsis", no_wrap=True
            )
        if said := "; ".join(self._said(step)):
            yield Text(f"  {said}", "dim")

    def _said(self, step: StepView) -> Iterator[str]:
        if step.retry_count:
            yield "1 retry" if step.retry_count == 1 else f"{step.retry_count} retries"
        if step.ended_at is None and self._run.state.ended:
            yield f"not ended, since the run was {self._run.state.value}" if self._cancelled else "not ended"
        elif step.status is Status.PENDING:
            yield self._waits_for(step)
        elif step.kind is Kind.INVOKE and step.child is not None:
            yield self._child(step.child)
        elif step.kind is Kind.EVENT and step.status is Status.COMPLETED:
            yield f"got event {step.event_id}" if step.event_id else f"no {step.awaits} came in time"

    @property
    def _cancelled(self) -> bool:
        return self._run.state.value == "cancelled"

    def _waits_for(self, step: StepView) -> str:
        match step.kind:
            case Kind.SLEEP:
                return f"sleeps until {_clock(step.wake_at, self._now)}, {self._left(step)}"
            case Kind.EVENT:
                matching = f" where {step.matches}" if step.matches else ""
                return f"waits for {step.awaits}{matching}, {self._left(step)}"
            case Kind.INVOKE:
                return f"waits for {self._child(step.child or '?')}"
            case _:
                return f"tried again at {_clock(step.wake_at, self._now)}, {self._left(step)}"

    def _left(self, step: StepView) -> str:
        if step.wake_at is None:
            return "for ever"
        left = (step.wake_at - self._now).total_seconds()
        return f"{span(left, units=1)} left" if left > 0 else "due now"

    def _child(self, run_id: str) -> str:
        child = self._children.get(run_id)
        return f"run {run_id}" + (f" of {child.function}, {child.state.value}" if child else "")


def show_waterfall(
    run: RunView, steps: Sequence[StepView], children: Sequence[RunView], *, everything: bool = False
) -> None:
    """Prints the steps, if there are any."""
    from rich.text import Text

    from .output import console, show

    if not steps:
        return
    marks = UNICODE if "utf" in (sys.stdout.encoding or "").lower() else ASCII
    fall = Waterfall(run, steps, children, width=console().width, marks=marks)
    show(Text(f"\n{fall.title}", "bold"))
    for line in fall.draw(everything=everything):
        show(line)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clock(moment: datetime | None, now: datetime) -> str:
    """When, by the clock; with the day if that is another."""
    if moment is None:
        return "?"
    at = moment.astimezone(UTC)
    return f"{at:%H:%M} UTC" if at.date() == now.astimezone(UTC).date() else f"{at:%Y-%m-%d %H:%M} UTC"
