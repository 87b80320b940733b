"""A group of commands that are imported when they are asked for, so that `--help` costs little more than click."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is, as `.module:name` in this package, and its line in the help."""

    place: str
    help: str


class LazyGroup(click.Group):
    def __init__(self, *args: Any, commands_at: Mapping[str, Lazy], **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands_at = commands_at

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self._commands_at)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self._commands_at:
            return None
        module, _, attribute = self._commands_at[name].place.partition(":")
        command = getattr(import_module(module, __package__), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._commands_at and not args[0].startswith("-"):
            close = get_close_matches(args[0], self._commands_at, n=1)
            context.fail(f"no command is named {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self._commands_at.items()])
