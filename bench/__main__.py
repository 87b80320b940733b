"""`python -m bench`: take the figures in turn, store them, and print them against the bar."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from bench import samples
from bench.arenas import ARENAS, Arena
from bench.environment import describe_arena, describe_machine
from bench.measures import BARE, OSTINATO, Measure, measures
from bench.plot import plot
from bench.report import grids, markdown, show
from bench.results import Results, Round
from bench.samples import Sample
from bench.sizes import FULL, QUICK, Sizes

RESULTS = Path(__file__).parent / "results"
CLAIMS = "claims"


def main() -> None:
    options = _parse()
    if options.render:
        _render(Results.load(options.render / "raw.json"), options.render)
        return
    sizes = _sizes(options)
    results = Results(asdict(sizes), describe_machine())
    folder = options.output or RESULTS / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_take_all(options, sizes, results, folder))
    _render(results, folder)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and three pairs: does it work at all?")
    parser.add_argument("--pairs", type=int, help=f"pairs of each measure (default {FULL.pairs})")
    parser.add_argument("--only", action="append", metavar="KEY", help=f"measures by key: {', '.join(_keys())}")
    parser.add_argument("--store", choices=sorted(ARENAS), help="one store only")
    parser.add_argument("--without", action="append", default=[], metavar="CONTENDER", help="leave a contender out")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where results go (default bench/results/<time>)")
    parser.add_argument("--render", type=Path, metavar="FOLDER", help="only draw the report of a stored session again")
    return parser.parse_args()


def _keys() -> list[str]:
    return list(dict.fromkeys([measure.key for measure in measures(FULL)] + [CLAIMS]))


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL
    return replace(sizes, pairs=options.pairs or sizes.pairs)


async def _take_all(options: argparse.Namespace, sizes: Sizes, results: Results, folder: Path) -> None:
    for store, open_arena in ARENAS.items():
        chosen = [measure for measure in measures(sizes) if measure.store == store and _chosen(options, measure.key)]
        with_claims = store == "postgres" and _chosen(options, CLAIMS)
        if options.store in (None, store) and (chosen or with_claims):
            with open_arena() as arena:
                results.environment |= await describe_arena(arena)
                for measure in chosen:
                    await _take(arena, measure, sizes, options.without, results)
                    results.save(folder / "raw.json")
                if with_claims:
                    await _take_claims(arena, sizes, options.without, results)
                    results.save(folder / "raw.json")


def _chosen(options: argparse.Namespace, key: str) -> bool:
    return options.only is None or any(key == only or key.startswith(f"{only}-") for only in options.only)


async def _take(arena: Arena, measure: Measure, sizes: Sizes, without: Sequence[str], results: Results) -> None:
    """Take one figure from each entrant in turn, A B A B …, so that the machine's moods fall on all of them."""
    entrants = [entrant for entrant in measure.entrants if entrant.contender not in without]
    rounds: list[Round] = []
    results.rounds[measure.name] = rounds
    for number in range(1, sizes.pairs + 1):
        rounds.append({entrant.label: await measure.take(arena, entrant, sizes) for entrant in entrants})
        _say(f"{measure.store}: {measure.title}, {number} of {sizes.pairs}: {_brief(measure, rounds[-1])}")


def _brief(measure: Measure, taken: Round) -> str:
    metric = next(iter(measure.metrics))
    return "; ".join(f"{label} {_first(sample, metric)}{measure.metrics[metric]}" for label, sample in taken.items())


def _first(sample: Sample, metric: str) -> str:
    return f"{sample[metric]:,.0f} " if sample[metric] >= 100 else f"{sample[metric]:.2f} "


async def _take_claims(arena: Arena, sizes: Sizes, without: Sequence[str], results: Results) -> None:
    for entrant in (OSTINATO, BARE):
        if entrant.contender not in without:
            found = await samples.claims(arena, entrant, sizes)
            results.claims |= found
            for label, series in found.items():
                _say(f"claims with a pinned horizon: {label} {series['buffers']}")


def _render(results: Results, folder: Path) -> None:
    known = measures(Sizes(**results.sizes))
    tables = grids(results, known)
    (folder / "report.md").write_text(markdown(tables))
    plot(results, known, folder / "plot.png")
    show(tables)
    _say(f"the results are in {folder}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
