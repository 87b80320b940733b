"""Printing: JSON for programs, tables for people. rich is imported when something is printed with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

UNLIMITED = 10_000
"""The width of lines that no terminal folds: what is piped on is not cut."""


def print_json(value: Any) -> None:
    click.echo(as_json(value))


def as_json(value: Any) -> str:
    from msgspec import json

    return json.format(json.encode(value, enc_hook=str), indent=2).decode()


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else UNLIMITED, emoji=False, markup=False)


def can_draw() -> bool:
    """Whether there is a terminal for live views."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and "utf" in sys.stdout.encoding.lower()


def show(renderable: RenderableType) -> None:
    """Prints for people, without the blanks at the ends of lines."""
    screen = console()
    with screen.capture() as captured:
        screen.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()), color=True)


def table(*columns: str, right: Iterable[str] = (), flexible: Iterable[str] = ()) -> Table:
    """A table without lines. Only the flexible columns give way when the terminal is narrow; see `cut`."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in right else "left"
        made.add_column(column, justify=justify, no_wrap=column not in flexible, overflow="ellipsis")
    return made


def cut(text: str) -> Text:
    """A cell of a flexible column: it ends in an ellipsis rather than take two lines."""
    from rich.text import Text

    return Text(text.partition("\n")[0], no_wrap=True, overflow="ellipsis")


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Names and values below each other."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value)
    return made
