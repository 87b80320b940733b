"""The documents of the project, and the parts of them that are generated or run."""

import re
from pathlib import Path
from typing import NamedTuple

from ostinato.model.run import MOVES, Move, Reason, State

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    line: int
    language: str
    text: str


def examples(document: Path) -> list[Example]:
    """The fenced blocks of a document."""
    text = document.read_text(encoding="utf-8")
    return [Example(text.count("\n", 0, match.start()) + 2, match[1], match[2]) for match in _FENCE.finditer(text)]


def states_page() -> str:
    """The page of states, from the table of moves."""
    lines = [
        "# States of a run",
        "",
        "*This page is generated from `model/run.py`.*",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *(f"    {move.before or '[*]'} --> {move.after}: {move.verb}" for move in _distinct_moves()),
        *(f"    {state} --> [*]" for state in State if state.ended),
        "```",
        "",
        "| move | from | to | because |",
        "|---|---|---|---|",
        *(f"| {move.verb} | {move.before or ''} | {move.after} | {move.why} |" for move in MOVES),
        "",
        "A held run has a reason: " + ", ".join(f"`{reason}`" for reason in Reason) + ".",
        "",
        "For people, *pending* is a run that is ready, or held before its first start; *waiting* is held after it.",
    ]
    return "\n".join(lines) + "\n"


def _distinct_moves() -> list[Move]:
    return list({(move.before, move.after, move.verb): move for move in MOVES}.values())
