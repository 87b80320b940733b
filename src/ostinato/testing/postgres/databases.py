"""Servers in which databases can be made, and one that somebody else started."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from urllib.parse import quote, urlsplit

from .statements import ask, quoted
from .stock import Stock


class Server:
    """A PostgreSQL server in which databases can be made; both kinds below are one."""

    version: int
    _copying = ""  # how a template is copied; the default suits a server that is in use

    @cached_property
    def _stock(self) -> Stock:
        return Stock()

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
        """Drops a database, if it is there, and whoever is connected to it; with a template, its copies in stock."""
        for copy in self._stock.forget(name):
            self.drop_database(copy)
        ask(self.dsn(), f"drop database if exists {quoted(name)} with (force)")

    @contextmanager
    def temporary_database(self, template: str | None = None) -> Iterator[str]:
        """The URL of a database for the block: empty, or as the template is. A copy of a template in which nothing but
        rows was changed is emptied after it, for the next who asks."""
        name = (template and self._stock.take(template)) or self._made(template)
        kept = False
        try:
            yield self.dsn(name)
            kept = template is not None and self._stock.put_back(template, name, self.dsn(name))
        finally:
            if not kept:
                self.drop_database(name)

    def _made(self, template: str | None) -> str:
        name = f"test_{secrets.token_hex(8)}"
        url = self.create_database(name, template)
        if template is not None:
            self._stock.note(template, url)
        return name


class GivenServer(Server):
    """A server that somebody else started, known by its URL."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self.version = int(ask(url, "show server_version_num")) // 10_000

    def dsn(self, database: str = "postgres") -> str:
        return self._url._replace(path=f"/{quote(database)}").geturl()
