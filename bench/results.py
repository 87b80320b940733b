"""The raw results of a session, as they are stored, and the statistics that reports are made of."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.environment import Environment
from bench.measures import Comparison
from bench.samples import Entrant, Sample, Series
from bench.sizes import Sizes

Round = dict[str, Sample]


@dataclass(slots=True)
class Results:
    """Everything that was measured: `rounds[measure][i][entrant label]` is one sample."""

    sizes: dict[str, Any]
    environment: Environment
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    claims: dict[str, Series] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)
    command: str = ""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> "Results":
        return cls(**json.loads(path.read_text()))

    def filled_by(self, others: Iterable["Results"]) -> "Results":
        """This session with the measures that it lacks from others of the same sizes, in however many pairs."""
        for other in others:
            if _amounts(other) != _amounts(self):  # older sessions lack the sizes of newer measures
                raise SystemExit(f"{other.command!r} measured other sizes than {self.command!r}")
            lacking = {name: rounds for name, rounds in other.rounds.items() if not self.rounds.get(name)}
            if lacking or (other.claims and not self.claims):
                self.command = f"{self.command} && {other.command}"
            self.rounds |= lacking
            self.claims = self.claims or other.claims
            self.environment = {**other.environment, **self.environment}
        return self


def _amounts(results: Results) -> Sizes:
    return replace(Sizes(**results.sizes), pairs=0, peer_pairs=0)


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its range: the range says whether the median means anything."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


def values(rounds: list[Round], entrant: Entrant, metric: str) -> list[float]:
    return [taken[entrant.label][metric] for taken in rounds if entrant.label in taken]


def compared(rounds: list[Round], comparison: Comparison) -> list[float]:
    """Compute the comparison in each pair: noise that lasts longer than a pair falls on both of its sides."""
    subject, baseline, metric = comparison.subject, comparison.baseline, comparison.metric
    if baseline is None:
        return values(rounds, subject, metric)
    return [
        taken[subject.label][metric] / taken[baseline.label][metric]
        for taken in rounds
        if subject.label in taken and baseline.label in taken
    ]
