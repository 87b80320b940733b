"""Tables of a session, for the terminal and as Markdown."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from rich.console import Console
from rich.table import Table

from bench.measures import LESS_IS_BETTER, PEERS_KEY, Comparison, Measure
from bench.results import Results, Round, Spread, compared, values
from bench.samples import Entrant
from bench.sizes import Sizes

PLAIN_WIDTH = 170
FLAT = 1.5  # most buffers a claim may take at any step, relative to the first


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table of text, before it is drawn for anyone."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def grids(results: Results, measures: Sequence[Measure]) -> list[Grid]:
    taken = [measure for measure in measures if results.rounds.get(measure.name)]
    own = [measure for measure in taken if not measure.beside_peers]
    beside_peers = [measure for measure in taken if measure.beside_peers]
    candidates = [
        _peers(results, beside_peers),
        _behind(results, beside_peers),
        Grid("Not measured", ("who", "why"), list(results.not_measured.items())),
        _comparisons(results, own),
        _figures(results, own),
        _claims(results),
        Grid("Environment", ("", ""), list(results.environment.items())),
    ]
    return [grid for grid in candidates if grid.rows]


def _peers(results: Results, measures: Sequence[Measure]) -> Grid:
    columns = ("measure", "who", "jobs", "median", "range", "unit", "rounds", "Ostinato ÷ it", "range", "Ostinato is")
    sizes = Sizes(**results.sizes)
    rows = chain.from_iterable(_peer_rows(measure, results.rounds[measure.name], sizes) for measure in measures)
    return Grid("Beside the peers", columns, list(rows))


def _peer_rows(measure: Measure, rounds: list[Round], sizes: Sizes) -> Iterator[tuple[str, ...]]:
    assert measure.size
    for metric, unit in measure.metrics.items():
        for entrant in measure.entrants:
            if found := values(rounds, entrant, metric):
                spread = Spread.of(found)
                figures = (_number(spread.median), _range(spread), unit, str(len(found)))
                compared_with_it = _standing_columns(measure, metric, entrant, rounds)
                yield (measure.title, entrant.label, measure.size(entrant, sizes), *figures, *compared_with_it)


def _standing_columns(measure: Measure, metric: str, entrant: Entrant, rounds: list[Round]) -> tuple[str, str, str]:
    for comparison in measure.comparisons:
        if (comparison.metric, comparison.baseline) == (metric, entrant) and (ratios := compared(rounds, comparison)):
            spread = Spread.of(ratios)
            against_the_bar = f"; {comparison.bar}: {verdict(comparison, spread)}" if comparison.bar else ""
            return _number(spread.median), _range(spread), standing(metric, spread) + against_the_bar
    return "", "", ""


def standing(metric: str, ratio: Spread) -> str:
    """Where Ostinato stands by the median; where single rounds say otherwise, that is said too."""
    ahead = is_ahead(metric, ratio.median)
    unanimous = is_ahead(metric, ratio.low) == is_ahead(metric, ratio.high) == ahead
    return ("ahead" if ahead else "behind") + ("" if unanimous else ", not in all rounds")


def is_ahead(metric: str, ratio: float) -> bool:
    return ratio < 1 if metric in LESS_IS_BETTER else ratio > 1


def _behind(results: Results, measures: Sequence[Measure]) -> Grid:
    columns = ("measure", "peer", "Ostinato ÷ it", "what differs, and may be why")
    rows = chain.from_iterable(_behind_rows(measure, results.rounds[measure.name]) for measure in measures)
    return Grid("Where Ostinato is behind", columns, list(rows))


def _behind_rows(measure: Measure, rounds: list[Round]) -> Iterator[tuple[str, ...]]:
    for comparison in measure.comparisons:
        ratios = compared(rounds, comparison)
        if ratios and not is_ahead(comparison.metric, (spread := Spread.of(ratios)).median):
            assert comparison.baseline
            assert comparison.baseline.peer
            peer, unit = comparison.baseline.peer, measure.metrics[comparison.metric]
            topic = "memory" if comparison.metric == "rss_mb" else measure.key.removeprefix(PEERS_KEY)
            why = peer.reasons.get(topic, "not looked into yet")
            yield f"{measure.title}, {unit}", peer.label, f"{_number(spread.median)} ({_range(spread)})", why


def _comparisons(results: Results, measures: Sequence[Measure]) -> Grid:
    columns = ("store", "measure", "compared", "median", "range", "pairs", "bar", "verdict")
    rows = chain.from_iterable(_comparison_rows(measure, results.rounds[measure.name]) for measure in measures)
    return Grid("Against the bar", columns, list(rows))


def _comparison_rows(measure: Measure, rounds: list[Round]) -> Iterator[tuple[str, ...]]:
    for comparison in measure.comparisons:
        ratios = compared(rounds, comparison)
        if ratios:
            spread = Spread.of(ratios)
            bar = str(comparison.bar or "")
            figures = (_number(spread.median), _range(spread), str(len(ratios)), bar, verdict(comparison, spread))
            yield (measure.store, measure.title, _sides(measure, comparison), *figures)


def verdict(comparison: Comparison, spread: Spread) -> str:
    if comparison.bar is None:
        return ""
    if not comparison.bar.passes(spread.median):
        return "MISS"
    return "pass, goal reached" if comparison.bar.reaches_goal(spread.median) else "pass"


def _sides(measure: Measure, comparison: Comparison) -> str:
    unit = measure.metrics[comparison.metric]
    if comparison.baseline is None:
        return f"{comparison.subject.label}, {unit}"
    return f"{comparison.subject.label} ÷ {comparison.baseline.label}, {unit}"


def _figures(results: Results, measures: Sequence[Measure]) -> Grid:
    columns = ("store", "measure", "who", "median", "range", "unit", "n")
    rows = chain.from_iterable(_figure_rows(measure, results.rounds[measure.name]) for measure in measures)
    return Grid("Figures", columns, list(rows))


def _figure_rows(measure: Measure, rounds: list[Round]) -> Iterator[tuple[str, ...]]:
    for metric, unit in measure.metrics.items():
        for entrant in measure.entrants:
            if found := values(rounds, entrant, metric):
                spread = Spread.of(found)
                figures = (_number(spread.median), _range(spread), unit, str(len(found)))
                yield (measure.store, measure.title, entrant.label, *figures)


def _claims(results: Results) -> Grid:
    columns = ("who", "buffers per claim, first", "last", "most", "after runs", "verdict")
    rows = [
        (
            label,
            *(str(figure) for figure in (series["buffers"][0], series["buffers"][-1], max(series["buffers"]))),
            f"{series['drained'][-1]:,}",
            flatness(label, series["buffers"]),
        )
        for label, series in results.claims.items()
    ]
    return Grid("Claims with a pinned vacuum horizon", columns, rows)


def flatness(label: str, buffers: list[int]) -> str:
    if label != "ostinato":
        return ""
    return "pass" if max(buffers) <= FLAT * buffers[0] else "MISS"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _range(spread: Spread) -> str:
    return f"{_number(spread.low)} .. {_number(spread.high)}"


def markdown(results: Results, grids: Sequence[Grid]) -> str:
    repeat = f"Repeat it with `{results.command}`.\n\n" if results.command else ""
    return f"# Benchmark\n\n{repeat}![every ratio](plot.png)\n\n" + "\n".join(map(markdown_table, grids))


def markdown_table(grid: Grid) -> str:
    head = [grid.columns, ("---",) * len(grid.columns)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in chain(head, grid.rows)]
    return f"## {grid.title}\n\n" + "\n".join(lines) + "\n"


def show(grids: Sequence[Grid]) -> None:
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    for grid in grids:
        table = Table(*grid.columns, title=grid.title, title_justify="left", show_header=any(grid.columns))
        for row in grid.rows:
            table.add_row(*row, style="red" if row[-1] == "MISS" else None)
        console.print(table)
