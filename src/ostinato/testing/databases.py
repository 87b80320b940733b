"""Databases of a test's own, as copies of a template."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ostinato import config
from ostinato.app import App
from ostinato.errors import ConfigError

from .aside import aside
from .postgres import GivenServer, PostgresServers, Server
from .postgres.binaries import binaries_of

Prepare = Callable[[str], Awaitable[None] | None]
"""Makes an application's own tables in the database of a URL."""

_NAMED = re.compile(r"sqlite|postgresql(\d*)")


def check_kind(kind: str) -> str:
    """Refuses what `Databases.temporary` would not understand."""
    if not _NAMED.fullmatch(kind) and not kind.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            f"{config.redacted(kind)!r} is no database for tests; write sqlite, postgresql, a version like "
            "postgresql16, or the URL of a PostgreSQL server that may make databases"
        )
    return kind


class Databases:
    """Makes temporary databases that have Ostinato's tables and the application's own.

    databases = Databases(folder, servers=PostgresServers())
    with databases.temporary("postgresql") as url: ...

    What kind: `sqlite`, `postgresql` (the newest there is), `postgresql16`, or the URL of a server that may make
    databases. The first of a kind is made and migrated, and `prepare` is called for it; all others are copies of it,
    which takes 20 ms on PostgreSQL and less on SQLite.
    """

    def __init__(self, folder: Path, *, servers: PostgresServers) -> None:
        self._folder, self._servers = folder, servers
        self.schema = config.settle({}).schema
        """The schema that all have: the one of an app that does not name another."""
        self._given: dict[str, GivenServer] = {}
        self._files: dict[Prepare | None, Path] = {}
        self._templates: dict[tuple[Server, Prepare | None], str] = {}

    @contextmanager
    def temporary(self, kind: str, *, prepare: Prepare | None = None, folder: Path | None = None) -> Iterator[str]:
        """The URL of a database that is as new. After the block it is gone, or emptied for the next who asks; a file
        stays in the folder that was given."""
        check_kind(kind)
        if kind == "sqlite":
            with self._file(prepare, folder) as url:
                yield url
        else:
            server = self._server(kind)
            with server.temporary_database(self._template(server, prepare)) as url:
                yield url

    def migrate(self, app: App) -> None:
        """Makes the tables of an app that is on one of these databases and has a schema of its own."""
        if app.settings.schema != self.schema:
            aside(app.migrations().up())

    def close(self) -> None:
        """Removes the templates; the servers belong to who gave them."""
        while self._templates:
            (server, _), name = self._templates.popitem()
            server.drop_database(name)

    # --- SQLite

    @contextmanager
    def _file(self, prepare: Prepare | None, folder: Path | None) -> Iterator[str]:
        name = f"ostinato-{secrets.token_hex(4)}.db"
        path = (folder or self._folder) / name
        shutil.copy(self._file_template(prepare), path)
        yield f"sqlite:///{path}"
        if folder is None:
            for left in path.parent.glob(f"{name}*"):
                left.unlink(missing_ok=True)

    def _file_template(self, prepare: Prepare | None) -> Path:
        if prepare not in self._files:
            path = self._folder / f"template-{secrets.token_hex(4)}.db"
            self._furnish(f"sqlite:///{path}", prepare)
            self._files[prepare] = path
        return self._files[prepare]

    # --- PostgreSQL

    def _server(self, kind: str) -> Server:
        if "://" in kind:
            if kind not in self._given:
                self._given[kind] = GivenServer(kind)
            return self._given[kind]
        there = self._servers.versions
        version = int(kind.removeprefix("postgresql") or max(there, default=0))
        if version not in there:
            binaries_of(version or None)  # says which there are, and what to do
        return self._servers(version)

    def _template(self, server: Server, prepare: Prepare | None) -> str:
        if (server, prepare) not in self._templates:
            name = f"template_{secrets.token_hex(4)}"
            try:
                self._furnish(server.create_database(name), prepare)
            except BaseException:
                server.drop_database(name)
                raise
            self._templates[server, prepare] = name
        return self._templates[server, prepare]

    def _furnish(self, url: str, prepare: Prepare | None) -> None:
        aside(App(url, schema=self.schema).migrations().up())
        pending = prepare(url) if prepare is not None else None
        if pending is not None:
            aside(_awaited(pending))


async def _awaited(pending: Awaitable[None]) -> None:
    await pending
