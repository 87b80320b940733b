"""Durable work for the database you already have."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import App
    from .config import Queue, Retention
    from .engine.context import Run
    from .engine.transaction import Tx
    from .errors import (
        Cancel,
        ConfigError,
        Fatal,
        InvalidInput,
        InvalidOption,
        LeaseLost,
        NotMigrated,
        OstinatoError,
        QueueFull,
        ResultTimeout,
        RetryAfter,
        RunCancelled,
        RunFailed,
        StepFailed,
        StoreUnavailable,
        UnknownFunction,
    )
    from .function import Function
    from .model.cancelling import CancelOn
    from .model.event import Event
    from .model.retry import Retry
    from .resources.runs import Handle

__version__ = "0.1.0"

__all__ = [
    "App",
    "Cancel",
    "CancelOn",
    "ConfigError",
    "Event",
    "Fatal",
    "Function",
    "Handle",
    "InvalidInput",
    "InvalidOption",
    "LeaseLost",
    "NotMigrated",
    "OstinatoError",
    "Queue",
    "QueueFull",
    "ResultTimeout",
    "Retention",
    "Retry",
    "RetryAfter",
    "Run",
    "RunCancelled",
    "RunFailed",
    "StepFailed",
    "StoreUnavailable",
    "Tx",
    "UnknownFunction",
]

_HOMES = {
    "App": ".app",
    "CancelOn": ".model.cancelling",
    "Event": ".model.event",
    "Function": ".function",
    "Handle": ".resources.runs",
    "Queue": ".config",
    "Retention": ".config",
    "Retry": ".model.retry",
    "Run": ".engine.context",
    "Tx": ".engine.transaction",
}
"""Where names live that are not errors. They are imported when first asked for: `ostinato --help` needs none of them,
and asyncio and the engine together take longer than the rest of it."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, ".errors"), __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
