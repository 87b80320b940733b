"""Helpers for tests: the pytest plugin's parts, to be used without it too, and real PostgreSQL servers.

`plugin` has the fixtures. What they give is here: `bound` puts an app on another database for a while, `Clock` is the
clock of a test's database, `Drain` executes what is due, and `Probe` waits for what happens.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .binding import Bind, bound
    from .clock import Clock
    from .databases import Databases, Prepare
    from .draining import Attempt, Drain
    from .postgres import PostgresServer, PostgresServers
    from .probe import Probe

__all__ = [
    "Attempt",
    "Bind",
    "Clock",
    "Databases",
    "Drain",
    "PostgresServer",
    "PostgresServers",
    "Prepare",
    "Probe",
    "bound",
]

_HOMES = {
    "Attempt": ".draining",
    "Bind": ".binding",
    "Clock": ".clock",
    "Databases": ".databases",
    "Drain": ".draining",
    "PostgresServer": ".postgres",
    "PostgresServers": ".postgres",
    "Prepare": ".databases",
    "Probe": ".probe",
    "bound": ".binding",
}
"""Where the names live. They are imported when first asked for: pytest loads the plugin in every project that has
Ostinato installed, whether its tests use it or not."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ostinato.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
