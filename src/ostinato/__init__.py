"""Durable work for the database you already have."""

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
    StoreUnavailable,
    UnknownFunction,
)
from .function import Function
from .model.retry import Retry
from .resources.runs import Handle

__version__ = "0.1.0"

__all__ = [
    "App",
    "Cancel",
    "ConfigError",
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
    "StoreUnavailable",
    "Tx",
    "UnknownFunction",
]
