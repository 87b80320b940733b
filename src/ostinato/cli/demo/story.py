"""What has happened so far, put together from the workers' logs and from what the database says."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...model.run import State
from ...model.view import RunCount, RunView, WorkerView

Fields = Mapping[str, Any]


class Happening(NamedTuple):
    at: float
    colour: str
    text: str
    headline: bool
    """Whether it is told on the screen too, which shows single runs in a table of their own."""


@dataclass
class Rescue:
    """The runs of a killed worker, and those of them that have not ended yet."""

    victim: int
    taken: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    told: bool = False


class Story:
    """Listens to everybody, and tells whoever asked."""

    def __init__(self, *, tell: Callable[[Happening], None] = lambda happening: None) -> None:
        self._began = time.monotonic()
        self._tell = tell
        self.url = ""
        self.happenings: deque[Happening] = deque(maxlen=200)
        self.completions: deque[float] = deque(maxlen=1000)
        self.counts: dict[State, int] = dict.fromkeys(State, 0)
        self.runs: Sequence[RunView] = ()
        self.workers: dict[str, WorkerView] = {}
        self.numbers: dict[str, int] = {}
        self.rescues: dict[int, Rescue] = {}
        self.kills = self.retries = 0
        self.enriched = self.most_times_enriched = 0
        """What the station's own table says at the end."""
        self.looked_up = 0
        """How many look-ups were completed, as the runs say at the end."""
        self._about: dict[str, str] = {}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def happened(self, text: str, *, colour: str = "", headline: bool = True) -> None:
        happening = Happening(self.elapsed, colour, text, headline)
        self.happenings.append(happening)
        self._tell(happening)

    # --- what the database says

    def seen(self, counts: Sequence[RunCount], runs: Sequence[RunView], workers: Sequence[WorkerView]) -> None:
        self.counts = {state: sum(count.count for count in counts if count.state is state) for state in State}
        self.runs = runs
        self.workers = {worker.id: worker for worker in workers}
        for rescue in self.rescues.values():
            self._tell_of(rescue)

    def running_of(self, worker: str | None) -> list[RunView]:
        return [run for run in self.runs if run.locked_by == worker and run.state is State.RUNNING]

    def rescued(self, run_id: str) -> bool:
        return any(run_id in rescue.taken for rescue in self.rescues.values())

    # --- what the workers say

    def heard(self, number: int, fields: Fields) -> None:
        """A line of a worker's log."""
        if listener := self._listeners.get(fields.get("event", "")):
            listener(self, number, fields)

    def _claimed(self, _: int, fields: Fields) -> None:
        self._about[fields["job_id"]] = str(fields.get("about", fields["job_type"]))

    def _completed(self, _: int, fields: Fields) -> None:
        self.completions.append(self.elapsed)
        seconds = f"{fields['duration_ms'] / 1000:.1f} s"
        self.happened(f"{self._of(fields)} completed at attempt {fields['attempt']} in {seconds}", headline=False)
        self._settled(fields["job_id"])

    def _failed(self, _: int, fields: Fields) -> None:
        attempt, message = fields["attempt"], fields["message"]
        if fields["will_retry"]:
            self.retries += 1
            again = f"again in {fields['retry_in']:g} s"
            self.happened(f"{self._of(fields)} failed at attempt {attempt}: {message}; {again}", headline=False)
        else:
            self.happened(f"failed for good: {self._of(fields)} ({message})", colour="red")
            self._settled(fields["job_id"])

    def _of(self, fields: Fields) -> str:
        return self._about.get(fields["job_id"], str(fields["job_type"]))

    def _started(self, number: int, fields: Fields) -> None:
        self.numbers[fields["worker_id"]] = number

    def _rescued(self, _: int, fields: Fields) -> None:
        victim = self.numbers.get(fields["dead_worker"], 0)
        rescue = self.rescues.setdefault(victim, Rescue(victim))
        rescue.taken.add(fields["job_id"])
        rescue.open.add(fields["job_id"])

    def _settled(self, run_id: str) -> None:
        for rescue in self.rescues.values():
            if run_id in rescue.open:
                rescue.open.discard(run_id)
                self._tell_of(rescue)
                if not rescue.open:
                    self.happened(f"all runs of worker {rescue.victim} have ended; nothing was lost", colour="green")

    def _tell_of(self, rescue: Rescue) -> None:
        if not rescue.told and rescue.taken:
            rescue.told = True
            runs = "its run is" if len(rescue.taken) == 1 else f"its {len(rescue.taken)} runs are"
            self.happened(f"the lease of worker {rescue.victim} has run out: {runs} rescued", colour="magenta")

    _listeners: Mapping[str, Callable[[Story, int, Fields], None]] = {
        "job_claimed": _claimed,
        "job_completed": _completed,
        "job_failed": _failed,
        "job_rescued": _rescued,
        "worker_started": _started,
    }
