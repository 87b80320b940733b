"""A picture of a session: every pair's ratio with its median and bar, and buffers per claim over the drain."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

from bench.measures import LESS_IS_BETTER, Comparison, Measure
from bench.results import Results, Spread, compared
from bench.samples import Series

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

PAIR, MEDIAN, BAR, GOAL = "#9bb7d4", "#1f4e79", "#c0392b", "#27864a"

Line = tuple[Measure, Comparison, list[float]]
Panel = tuple[float, Callable[[Axes], None]]


def plot(results: Results, measures: Sequence[Measure], path: Path, *, with_claims: bool = True) -> None:
    lines = [
        (measure, comparison, ratios)
        for measure in measures
        for comparison in measure.comparisons
        if comparison.baseline and (ratios := compared(results.rounds.get(measure.name, []), comparison))
    ]
    own = [line for line in lines if not line[0].beside_peers]
    beside_peers = [line for line in lines if line[0].beside_peers]
    panels: list[Panel] = []
    if beside_peers:
        panels.append((1.2 + 0.27 * len(beside_peers), lambda axes: _plot_peers(axes, beside_peers)))
    if own:
        panels.append((1.0 + 0.45 * len(own), lambda axes: _plot_ratios(axes, own)))
    if results.claims and with_claims:
        panels.append((3.0, lambda axes: _plot_claims(axes, results.claims)))
    _draw(panels, path)


def _draw(panels: Sequence[Panel], path: Path) -> None:
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


def _plot_peers(axes: Axes, lines: Sequence[Line]) -> None:
    """Each ratio turned so that more is better for Ostinato, on a scale on which twice and half are as far from 1."""
    for height, (_, comparison, ratios) in enumerate(reversed(lines)):
        times = [_times_better(comparison, ratio) for ratio in ratios]
        median = Spread.of(times).median
        axes.plot(times, [height] * len(times), "o", color=PAIR, markersize=4)
        axes.plot(median, height, "|", color=GOAL if median > 1 else BAR, markersize=12, markeredgewidth=3)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda times, _: f"{times:g} times"))
    axes.set_yticks(range(len(lines)), [_peer_label(*line) for line in reversed(lines)], fontsize=8)
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("how much better Ostinato is: each round (dots), median (green: ahead, red: behind)")
    axes.grid(axis="x", which="both", alpha=0.25)


def _times_better(comparison: Comparison, ratio: float) -> float:
    return 1 / ratio if comparison.metric in LESS_IS_BETTER else ratio


def _peer_label(measure: Measure, comparison: Comparison, ratios: list[float]) -> str:
    assert comparison.baseline
    return f"{measure.title}, {measure.metrics[comparison.metric]}: {comparison.baseline.label}"


def _plot_ratios(axes: Axes, lines: Sequence[Line]) -> None:
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
