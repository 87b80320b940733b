"""Errors as people see them: one red line, no traceback unless asked for, and never a password."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from ..config import redacted
from ..errors import OstinatoError

_URL = re.compile(r"\w[\w+]*://[^\s'\"]+")


class Failure(click.ClickException):
    """What a command could not do. `exit_code` is 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        complain(self.message)


@contextmanager
def reported(context: click.Context) -> Iterator[None]:
    """Turns what Ostinato raises into a line for people; the traceback comes with `--debug` or OSTINATO_DEBUG=1."""
    try:
        yield
    except OstinatoError as error:
        if debugging(context):
            click.echo(without_passwords(traceback.format_exc()), err=True, nl=False)
        raise Failure(without_passwords(str(error))) from error


def complain(message: str) -> None:
    """One red line on stderr."""
    click.secho(f"error: {message}", fg="red", err=True, color=None if _colours_wanted() else False)


def note(message: str) -> None:
    """A remark for people, on stderr, out of the way of what scripts read."""
    click.secho(message, dim=True, err=True, color=None if _colours_wanted() else False)


def debugging(context: click.Context) -> bool:
    return bool(context.meta.get("ostinato.debug")) or os.environ.get("OSTINATO_DEBUG", "") not in ("", "0")


def without_passwords(text: str) -> str:
    """The text with the passwords of the database URLs that it shows starred out."""
    return _URL.sub(lambda match: redacted(match[0]), text)


def _colours_wanted() -> bool:
    return not os.environ.get("NO_COLOR")
