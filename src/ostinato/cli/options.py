"""Options that every command takes, before or after its name, and the app that they lead to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from ..app import App

P = ParamSpec("P")
R = TypeVar("R")
Command = Callable[..., Any]


def _kept(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """An option's callback that keeps the value for `app_of`, wherever on the line the option stood."""

    def keep(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            context.meta[f"ostinato.{name}"] = value

    return keep


def connection_options(command: Command) -> Command:
    """--database-url, --schema, --app and --debug."""
    options = [
        click.option(
            "--database-url",
            metavar="URL",
            expose_value=False,
            callback=_kept("url"),
            help="The database, like postgresql://user@host/database or sqlite:///file.db. "
            "Else $OSTINATO_DATABASE_URL, else $DATABASE_URL.",
        ),
        click.option(
            "--schema",
            metavar="NAME",
            expose_value=False,
            callback=_kept("schema"),
            help="Where Ostinato's tables are (ostinato). Else $OSTINATO_SCHEMA.",
        ),
        click.option(
            "--app",
            metavar="MODULE:APP",
            envvar="OSTINATO_APP",
            expose_value=False,
            callback=_kept("app"),
            help="The App whose settings and functions to use. Else $OSTINATO_APP.",
        ),
        click.option(
            "--debug", is_flag=True, default=None, expose_value=False, callback=_kept("debug"), help="Show tracebacks."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def app_of(context: click.Context) -> App:
    """The App that the options name, or one without functions on the database that they name."""
    from ..app import App
    from .discovery import find_app

    given = {name: context.meta.get(f"ostinato.{name}") for name in ("url", "schema")}
    reference = context.meta.get("ostinato.app")
    if reference is None:
        return App(**given)
    app = find_app(reference)
    app.configure(**given)
    return app


def existing_app_of(context: click.Context) -> App:
    """The app, and if none is named, its database is there: who only looks makes no empty file."""
    from ..errors import ConfigError

    app = app_of(context)
    file = Path(app.settings.url.partition(":///")[2])
    if "ostinato.app" not in context.meta and app.settings.dialect == "sqlite" and not file.is_file():
        raise ConfigError(
            f"there is no database {str(file)!r} here; name another with --database-url or $OSTINATO_DATABASE_URL, "
            "or make this one: ostinato migrate up"
        )
    return app


def with_app(command: Callable[Concatenate[App, P], R]) -> Callable[P, R]:
    """Gives the command the app as its first argument."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        return command(existing_app_of(click.get_current_context()), *args, **kwargs)

    return wrapped


def wait_for(work: Coroutine[Any, Any, R]) -> R:
    import asyncio

    return asyncio.run(work)


def duration(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An option's callback: `90s`, `5m`, `1h 30m`; a bare number is seconds."""
    return None if value is None else seconds_in(value, what=param.name or "duration")


def seconds_in(text: str, *, what: str) -> float:
    from ..clock import seconds
    from ..errors import ConfigError

    try:
        return seconds(float(text) if text.replace(".", "", 1).isdecimal() else text, what=what)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def json_object(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """An option's callback: a JSON object."""
    from msgspec import DecodeError, json

    if text is None:
        return None
    try:
        decoded = json.decode(text)
    except DecodeError as error:
        raise click.BadParameter(f"{_shortened(text)} is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise click.BadParameter(f'{_shortened(text)} must be a JSON object, like {{"id": 1}}')
    return decoded


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
