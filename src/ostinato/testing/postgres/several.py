"""The servers of a test session."""

from __future__ import annotations

import os
from functools import cached_property

from .binaries import find_binaries
from .databases import GivenServer, Server
from .server import PostgresServer


class PostgresServers:
    """One server per major version, each started when it is first asked for: what a test session shares.

    servers = PostgresServers()
    for version in servers.versions: servers(version).create_database("radio")
    servers.close()
    """

    def __init__(self) -> None:
        self._url = os.environ.get("OSTINATO_TEST_DSN")
        self._started: dict[int, PostgresServer] = {}

    @cached_property
    def versions(self) -> list[int]:
        """The versions there are; which is only looked for when somebody asks."""
        return [self._given.version] if self._given else list(find_binaries())

    @cached_property
    def _given(self) -> GivenServer | None:
        return GivenServer(self._url) if self._url else None

    def __call__(self, version: int) -> Server:
        if self._given and self._given.version == version:
            return self._given
        if version not in self._started:
            self._started[version] = PostgresServer(version).start()
        return self._started[version]

    def close(self) -> None:
        """Ends the servers that were started."""
        while self._started:
            self._started.popitem()[1].close()
