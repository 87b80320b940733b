"""The plugin tests itself: everything here runs on SQLite and on the newest PostgreSQL that is found.

What a pytest inside pytest imports first is forgotten after it and would be imported again by the next. asyncpg does
not survive that, so it is imported here, with all that registers itself somewhere.
"""

from __future__ import annotations

import asyncpg  # noqa: F401
import pytest

import ostinato.sync
import ostinato.testing.draining  # noqa: F401
from ostinato.testing import Prepare
from tests.engine.databases import make_notes


@pytest.fixture(params=["sqlite", "postgresql"])
def ostinato_database(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="session")
def ostinato_prepare() -> Prepare:
    return make_notes
