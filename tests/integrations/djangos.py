"""Django's settings for one test, in a process that has others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg.conninfo import conninfo_to_dict


@contextmanager
def configured(url: str, **options: Any) -> Iterator[None]:
    """Django on a database, for the thread that asks."""
    import django  # type: ignore[import-untyped]
    from django.conf import settings  # type: ignore[import-untyped]

    settings.configure(DATABASES={"default": {**database_of(url), **options}}, LOGGING_CONFIG=None)
    try:
        django.setup()
        yield
    finally:
        forget()


def forget() -> None:
    """Closes this thread's connections and takes the settings away, as if Django had never been configured."""
    from django.conf import settings
    from django.db import connections  # type: ignore[import-untyped]
    from django.utils.functional import empty  # type: ignore[import-untyped]

    if settings.configured:
        connections.close_all()
        for alias in connections:
            if hasattr(connections._connections, alias):
                del connections[alias]
    vars(settings).clear()  # where values are remembered
    settings._wrapped = empty
    vars(connections).pop("settings", None)
    connections._settings = None


def database_of(url: str) -> dict[str, Any]:
    if url.startswith("sqlite:///"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    given = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    return {"ENGINE": "django.db.backends.postgresql", **{name: given.get(part) or "" for name, part in names.items()}}
