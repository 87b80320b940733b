"""Copies the tables and the plot of a stored session into the documentation.

`docs/benchmarks.md` has two generated parts, beside the peers and against the bare loops; a session fills those
that it has figures for, so the two may come from different sessions.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.measures import Measure, measures
from bench.plot import plot
from bench.report import Grid, grids, markdown_table
from bench.results import Results
from bench.sizes import Sizes

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"

PARTS = {"peers": "every ratio of Ostinato to a peer", "bare": "every ratio of Ostinato to the bare loops"}


def publish(results: Results) -> None:
    known = measures(Sizes(**results.sizes))
    taken = [measure for measure in known if results.rounds.get(measure.name)]
    for part, caption in PARTS.items():
        chosen = [measure for measure in taken if measure.beside_peers == (part == "peers")]
        if chosen:
            _publish_part(part, caption, results, chosen)


def _publish_part(part: str, caption: str, results: Results, chosen: Sequence[Measure]) -> None:
    image = DOCS / "images" / f"benchmark-{part}.png"
    image.parent.mkdir(exist_ok=True)
    plot(results, chosen, image, with_claims=part == "bare")
    about = replace(results, claims=results.claims if part == "bare" else {}, environment=_environment(part, results))
    if part == "bare":
        about = replace(about, not_measured={})
    tables = "\n".join(_demoted(grid) for grid in grids(about, chosen))
    repeat = f"Repeat it with `{results.command}`." if results.command else ""
    _fill(part, f"{repeat}\n\n![{caption}](images/{image.name})\n\n{tables}")
    print(f"{PAGE.name}: {part}, with {image.name}", file=sys.stderr)


def _environment(part: str, results: Results) -> dict[str, str]:
    strange = ("sqlite: ",) if part == "peers" else ("peer: ",)
    return {name: value for name, value in results.environment.items() if not name.startswith(strange)}


def _demoted(grid: Grid) -> str:
    """One level below the part's own heading."""
    return "#" + markdown_table(grid)


def _fill(part: str, text: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    marked = re.compile(rf"(<!-- {part}: generated.*?-->\n).*?(<!-- end of {part} -->)", re.DOTALL)
    filled, found = marked.subn(lambda match: f"{match[1]}\n{text.strip()}\n\n{match[2]}", page)
    if not found:
        sys.exit(f"{PAGE} has no markers of the part {part!r}; put them back from the history")
    PAGE.write_text(filled, encoding="utf-8")
