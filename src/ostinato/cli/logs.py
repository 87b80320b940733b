"""Logging of a worker process: text for people, or one JSON object a line."""

from __future__ import annotations

import logging
import os
import sys
import time

import click

from ..errors import ConfigError
from ..telemetry import JsonFormatter

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def set_up_logs(level: str | None, form: str | None) -> None:
    """Logs to stderr, unless the app has set up logging itself and neither a flag nor the environment asks for more."""
    level = level or _from_environment("OSTINATO_LOG_LEVEL", LEVELS)
    form = form or _from_environment("OSTINATO_LOG_FORMAT", FORMATS)
    root = logging.getLogger()
    if root.handlers and level is None and form is None:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root.handlers[:] = [handler]
    root.setLevel((level or "info").upper())


def _from_environment(name: str, allowed: tuple[str, ...]) -> str | None:
    value = os.environ.get(name, "").lower()
    if value and value not in allowed:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(allowed)}")
    return value or None


_COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


class TextFormatter(logging.Formatter):
    """A line for people, in UTC, with the level coloured on a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(level)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower():7}"
        record.level = click.style(level, fg=_COLOURS.get(record.levelname)) if self._colours else level
        return super().format(record)
