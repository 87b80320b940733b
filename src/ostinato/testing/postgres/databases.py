"""Servers in which databases can be made, and one that somebody else started."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

from .statements import ask, quoted


class Server:
    """A PostgreSQL server in which databases can be made; both kinds below are one."""

    version: int
    _copying = ""  # how a template is copied; the default suits a server that is in use

    def dsn(self, database: str = "postgres") -> str:
        """The URL of one of its databases, for any driver and for psql."""
        raise NotImplementedError

    def create_database(self, name: str, template: str | None = None) -> str:
        """Makes a database, as a copy of *template* if given, and returns its URL.

        Nobody may be connected to the template meanwhile.
        """
        copied = f" template {quoted(template)}{self._copying}" if template else ""
        ask(self.dsn(), f"create database {quoted(name)}{copied}")
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drops a database, if it is there, and whoever is connected to it."""
        ask(self.dsn(), f"drop database if exists {quoted(name)} with (force)")

    @contextmanager
    def temporary_database(self, template: str | None = None) -> Iterator[str]:
        """The URL of a new database, which is dropped at the end."""
        name = f"test_{secrets.token_hex(8)}"
        try:
            yield self.create_database(name, template)
        finally:
            self.drop_database(name)


class GivenServer(Server):
    """A server that somebody else started, known by its URL."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self.version = int(ask(url, "show server_version_num")) // 10_000

    def dsn(self, database: str = "postgres") -> str:
        return self._url._replace(path=f"/{quote(database)}").geturl()
