"""An app on another database, for as long as a test takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any, Protocol

from ostinato import app as apps
from ostinato import config
from ostinato.app import App
from ostinato.config import Settings, redacted
from ostinato.engine.site import Site
from ostinato.errors import ConfigError, OstinatoError
from ostinato.store.ports import Store
from ostinato.store.sqlite import SqliteStore
from ostinato.store.sqlite.connecting import wall_clock

from .aside import running_loop
from .clock import Clock

PATIENCE = 10.0


class Bind(Protocol):
    """What `ostinato_bind` gives."""

    def __call__(self, app: App, **settings: Any) -> App:
        """Puts the app on the test's database until the test ends, with some settings changed."""


def find_app(reference: str) -> App:
    """The app that a setting names, like `radio:app`; a new one when it names none."""
    if not reference:
        return App()
    try:
        found = resolve_name(reference if ":" in reference else f"{reference}:app")
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"ostinato_app = {reference}: {error}; name the module and the app in it, like radio:app"
        ) from error
    if not isinstance(found, App):
        raise ConfigError(f"ostinato_app = {reference} is a {type(found).__name__}, not an App")
    return found


@contextmanager
def bound(app: App, url: str, *, clock: Clock | None = None, **settings: Any) -> Iterator[App]:
    """The app on another database for the block, with all its functions, and with some settings changed.

    with bound(radio.app, "sqlite:////tmp/test.db", lease="5s"):
        await radio.enrich.enqueue(track_id="42")

    Afterwards it is as it was. Functions, handles and resources of the app stay valid, since they ask it where to go.
    Whoever holds the app open, a sync client say, goes on with the other database at the next call.
    """
    changed = config.changed(app.settings, {"url": url, **settings})
    own = replace(changed, listen_url=settings.get("listen_url"))  # a pooler's bypass leads to the other database
    _close(app, f"cannot be put on {redacted(url)}; end its workers and leave its transactions first")
    before = app.settings, app._site._make_store
    _place(app, own, lambda: make_store(app.settings, clock))
    try:
        yield app
    finally:
        try:
            _close(app, "the test is over; end its workers and leave its transactions before")
        finally:
            _place(app, *before)


def make_store(settings: Settings, clock: Clock | None = None) -> Store:
    """The store that the URL names, without the care for power failures that nobody needs in a test."""
    if settings.dialect == "postgresql":
        return apps.make_store(settings)
    return SqliteStore(
        settings.url,
        schema=settings.schema,
        notify=settings.notify,
        synchronous="OFF",
        clock=clock.micros if clock is not None else wall_clock,
    )


def _place(app: App, settings: Settings, make_store: Any) -> None:
    site = app._site
    app.settings = site.settings = settings
    site.door.input_limit = settings.input_limit
    site._make_store, site._inline = make_store, None


def _close(app: App, why: str) -> None:
    """Closes the app wherever it is open, and refuses to go on where that cannot be."""
    site = app._site
    for loop in [loop for loop in site._places if not loop.is_closed()]:
        if not loop.is_running():
            loop.run_until_complete(_let_go(site))
        elif loop is not running_loop():
            asyncio.run_coroutine_threadsafe(_let_go(site), loop).result(PATIENCE)
    if any(not loop.is_closed() for loop in site._places):
        raise OstinatoError(f"the app on {redacted(app.settings.url)} is in use, and {why}")


async def _let_go(site: Site) -> None:
    """Closes what is held open in this loop. Who holds it may still let go of it: there is nothing in it any more."""
    for held in site._held.get(asyncio.get_running_loop(), ()):
        await held.aclose()
