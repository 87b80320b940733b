"""`python -m bench`: take the figures in turn, store them, and print them against the bar and beside the peers."""

import argparse
import asyncio
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from bench import samples
from bench.arenas import ARENAS, Arena
from bench.children import ChildFailed
from bench.environment import describe_arena, describe_machine
from bench.measures import BARE, OSTINATO, Measure, measures
from bench.peers import BY_NAME, PEERS, PeerUnavailable
from bench.plot import plot
from bench.publish import publish
from bench.report import grids, markdown, show
from bench.results import Results, Round
from bench.samples import Entrant, Sample
from bench.sizes import FULL, QUICK, Sizes

RESULTS = Path(__file__).parent / "results"
CLAIMS = "claims"
ALL_PEERS = "peers"


def main() -> None:
    options = _parse()
    if options.publish:
        first, *others = [Results.load(folder / "raw.json") for folder in options.publish]
        publish(first.filled_by(others))
    elif options.render:
        _render(Results.load(options.render / "raw.json"), options.render)
    else:
        _measure(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and few pairs: does it work at all?")
    parser.add_argument("--pairs", type=int, help=f"pairs of each measure (default {FULL.pairs})")
    parser.add_argument("--peer-pairs", type=int, help=f"rounds of the peers' measures (default {FULL.peer_pairs})")
    parser.add_argument("--only", action="append", metavar="KEY", help=f"measures by key: {', '.join(_keys())}")
    parser.add_argument("--store", choices=sorted(ARENAS), help="one store only")
    parser.add_argument("--peers", metavar="A,B", help=f"these peers only: {', '.join(BY_NAME)} (default all)")
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME",
        help=f"leave a contender out; {ALL_PEERS!r} stands for all peers and their measures",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where results go (default bench/results/<time>)")
    parser.add_argument("--render", type=Path, metavar="FOLDER", help="only draw the report of a stored session again")
    parser.add_argument(
        "--publish",
        type=Path,
        nargs="+",
        metavar="FOLDER",
        help="only copy a stored session into docs/benchmarks.md; what it lacks is taken from those named after it",
    )
    options = parser.parse_args()
    options.peers = set(BY_NAME) if options.peers is None else set(options.peers.split(","))
    if unknown := options.peers - set(BY_NAME):
        parser.error(f"no peer is named {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    return options


def _keys() -> list[str]:
    return list(dict.fromkeys([measure.key for measure in measures(FULL)] + [CLAIMS]))


def _measure(options: argparse.Namespace) -> None:
    sizes = _sizes(options)
    results = Results(asdict(sizes), describe_machine(), command=_command(sys.argv[1:]))
    folder = options.output or RESULTS / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(_take_all(options, sizes, results, folder))
    except asyncio.CancelledError:
        sys.exit("stopped before the end")
    finally:
        results.save(folder / "raw.json")
        _render(results, folder)


def _command(arguments: Sequence[str]) -> str:
    """What repeats this session; where its results go is nobody else's affair."""
    kept = list(arguments)
    if "--output" in kept:
        place = kept.index("--output")
        del kept[place : place + 2]
    return f'make -C bench ARGS="{shlex.join(kept)}"' if kept else "make -C bench"


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = QUICK if options.quick else FULL
    return replace(sizes, pairs=options.pairs or sizes.pairs, peer_pairs=options.peer_pairs or sizes.peer_pairs)


async def _take_all(options: argparse.Namespace, sizes: Sizes, results: Results, folder: Path) -> None:
    _stop_at_sigterm()
    chosen = [measure for measure in measures(sizes) if _chosen(options, measure)]
    if any(measure.beside_peers for measure in chosen):
        await _prepare_peers(options, chosen, results)
    for store, open_arena in ARENAS.items():
        here = [measure for measure in chosen if measure.store == store]
        with_claims = store == "postgres" and options.store in (None, store) and _named(options, CLAIMS)
        if here or with_claims:
            with open_arena() as arena:
                results.environment |= await describe_arena(arena)
                for measure in here:
                    await _take(arena, measure, sizes, options, results)
                    results.save(folder / "raw.json")
                if with_claims:
                    await _take_claims(arena, sizes, options.without, results)
                    results.save(folder / "raw.json")


def _stop_at_sigterm() -> None:
    """Be cancelled rather than killed, so that children and the server are ended and the figures so far are kept."""
    session = asyncio.current_task()
    assert session
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, session.cancel)


def _chosen(options: argparse.Namespace, measure: Measure) -> bool:
    if measure.beside_peers and (ALL_PEERS in options.without or not options.peers):
        return False
    return options.store in (None, measure.store) and _named(options, measure.key)


def _named(options: argparse.Namespace, key: str) -> bool:
    return options.only is None or any(key == only or key.startswith(f"{only}-") for only in options.only)


async def _prepare_peers(options: argparse.Namespace, chosen: Sequence[Measure], results: Results) -> None:
    """Build the environments that are missing, before anything is measured; one that cannot be had is left out."""
    entrants = [entrant for measure in chosen for entrant in measure.entrants if _enters(options, entrant)]
    needed = {entrant.peer.name for entrant in entrants if entrant.peer}
    for peer in PEERS:
        if peer.name in needed:
            try:
                results.environment[f"peer: {peer.label}"] = await asyncio.to_thread(peer.prepare)
            except PeerUnavailable as error:
                results.not_measured[peer.label] = str(error)
                options.peers.discard(peer.name)
                _say(f"{peer.label} is not measured: {error}")


async def _take(arena: Arena, measure: Measure, sizes: Sizes, options: argparse.Namespace, results: Results) -> None:
    """Take one figure from each entrant in turn, A B A B …, so that the machine's moods fall on all of them."""
    entrants = [entrant for entrant in measure.entrants if _enters(options, entrant)]
    rounds: list[Round] = []
    results.rounds[measure.name] = rounds
    for number in range(1, measure.rounds(sizes) + 1):
        rounds.append({})
        for entrant in tuple(entrants):
            try:
                rounds[-1][entrant.label] = await measure.take(arena, entrant, sizes)
            except (ChildFailed, AssertionError) as error:
                if entrant.peer is None:
                    raise
                _leave_out(entrant, measure, f"in round {number}: {error}", results)
                entrants.remove(entrant)
        progress = f"{number} of {measure.rounds(sizes)}"
        _say(f"{measure.store}: {measure.title}, {progress}: {_brief(measure, rounds[-1])}")


def _enters(options: argparse.Namespace, entrant: Entrant) -> bool:
    if entrant.peer is not None:
        return entrant.peer.name in options.peers and entrant.peer.name not in options.without
    return entrant.contender not in options.without


def _leave_out(entrant: Entrant, measure: Measure, why: str, results: Results) -> None:
    """A peer that fails takes no further part in this measure, and does not stop the others."""
    results.not_measured[f"{entrant.label}, {measure.title}"] = why
    _say(f"{entrant.label} takes no further part in {measure.title}: {why}")


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
    (folder / "report.md").write_text(markdown(results, tables))
    plot(results, known, folder / "plot.png")
    show(tables)
    _say(f"the results are in {folder}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
