"""A picture of a session: every pair's ratio with its median and bar, and buffers per claim over the drain."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

from bench.measures import Comparison, Measure
from bench.results import Results, Spread, compared
from bench.samples import Series

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

PAIR, MEDIAN, BAR, GOAL = "#9bb7d4", "#1f4e79", "#c0392b", "#27864a"


def plot(results: Results, measures: Sequence[Measure], path: Path) -> None:
    lines = [
        (measure, comparison, ratios)
        for measure in measures
        for comparison in measure.comparisons
        if comparison.baseline and (ratios := compared(results.rounds.get(measure.name, []), comparison))
    ]
    panels: list[tuple[float, Callable[[Axes], None]]] = []
    if lines:
        panels.append((1.0 + 0.45 * len(lines), lambda axes: _plot_ratios(axes, lines)))
    if results.claims:
        panels.append((3.0, lambda axes: _plot_claims(axes, results.claims)))
    _draw(panels, path)


def _draw(panels: Sequence[tuple[float, Callable[[Axes], None]]], path: Path) -> None:
    if not panels:
        return
    heights = [height for height, _ in panels]
    figure, axes = pyplot.subplots(
        len(panels), figsize=(11, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for place, (_, panel) in zip(axes.flat, panels, strict=True):
        panel(place)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _plot_ratios(axes: Axes, lines: Sequence[tuple[Measure, Comparison, list[float]]]) -> None:
    for height, (_, comparison, ratios) in enumerate(reversed(lines)):
        axes.plot(ratios, [height] * len(ratios), "o", color=PAIR, markersize=5)
        axes.plot(Spread.of(ratios).median, height, "|", color=MEDIAN, markersize=16, markeredgewidth=3)
        _mark_bar(axes, comparison, height)
    axes.set_yticks(range(len(lines)), [_label(*line) for line in reversed(lines)], fontsize=8)
    axes.set_xlim(left=0)
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("ratio per pair (dots), median (blue), bar (red), goal (green)")
    axes.grid(axis="x", alpha=0.25)


def _mark_bar(axes: Axes, comparison: Comparison, height: int) -> None:
    if comparison.bar is None:
        return
    bounds = ((comparison.bar.at_least, BAR), (comparison.bar.at_most, BAR), (comparison.bar.goal, GOAL))
    for bound, colour in bounds:
        if bound is not None:
            axes.vlines(bound, height - 0.4, height + 0.4, color=colour, linewidth=2)


def _label(measure: Measure, comparison: Comparison, ratios: list[float]) -> str:
    assert comparison.baseline
    sides = f"{comparison.subject.label} ÷ {comparison.baseline.label}, {measure.metrics[comparison.metric]}"
    return f"{measure.store}: {measure.title}\n{sides}"


def _plot_claims(axes: Axes, claims: dict[str, Series]) -> None:
    for label, series in claims.items():
        axes.plot(series["drained"], series["buffers"], "o-", label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("runs drained with the vacuum horizon pinned")
    axes.set_ylabel("buffers per claim")
    axes.grid(alpha=0.25)
    axes.legend()
