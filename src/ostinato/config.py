"""Settings: flag > argument > environment (`OSTINATO_…`) > `[tool.ostinato]` in pyproject.toml > default."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from .clock import Duration, seconds
from .codec import DEFAULT_LIMIT
from .errors import ConfigError

DEFAULT_URL = "sqlite:///ostinato.db"
DEFAULT_CONCURRENCY = 100
STEP_LIMIT = 1024 * 1024
STEPS_LIMIT = 4 * 1024 * 1024
SHORTEST_LEASE = 1.0


@dataclass(frozen=True, slots=True)
class Queue:
    """How many runs of a queue one worker executes at a time, and how many may wait (None: any number)."""

    concurrency: int = DEFAULT_CONCURRENCY
    max_waiting: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended runs are kept, by state, and events; None keeps them for ever.

    Events that a drainer has not read yet are kept beyond that: for as long as `unread_events` says.
    """

    completed: Duration | None = "7d"
    failed: Duration | None = "30d"
    cancelled: Duration | None = "7d"
    events: Duration | None = None
    unread_events: Duration | None = None

    def __post_init__(self) -> None:
        for kept in self.__slots__:
            object.__setattr__(self, kept, _keep(getattr(self, kept), f"retention of {kept}"))

    def limits(self) -> dict[str, float]:
        """The states that are not kept for ever → seconds."""
        given = {"completed": self.completed, "failed": self.failed, "cancelled": self.cancelled}
        return {state: seconds(keep) for state, keep in given.items() if keep is not None}

    def events_limit(self) -> tuple[float, float | None] | None:
        """Seconds for which events are kept, and those for which they are kept if they are unread; None: for ever."""
        if self.events is None:
            return None
        return seconds(self.events), None if self.unread_events is None else seconds(self.unread_events)


@dataclass(frozen=True, slots=True)
class Settings:
    url: str = DEFAULT_URL
    schema: str = "ostinato"
    queues: Mapping[str, Queue] = field(default_factory=lambda: {"default": Queue()})
    lease: float = 30.0
    poll: float = 30.0
    notify: bool = True
    listen_url: str | None = None
    shutdown_grace: float = 30.0
    retention: Retention = field(default_factory=Retention)
    input_limit: int = DEFAULT_LIMIT
    step_limit: int = STEP_LIMIT
    steps_limit: int = STEPS_LIMIT
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    @property
    def dialect(self) -> str:
        return dialect_of(self.url)


def dialect_of(url: str) -> str:
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        return "postgresql"
    if scheme == "sqlite":
        return "sqlite"
    raise ConfigError(
        f"{redacted(url)!r} is not a database URL; use postgresql://user@host/database or sqlite:///path/to/file.db"
    )


def redacted(url: str) -> str:
    """The URL without its password, fit for logs and errors."""
    before, at, rest = url.rpartition("@")
    scheme, slashes, user = before.partition("://")
    shown = f"{scheme}{slashes}{user.partition(':')[0]}:***{at}{rest}" if ":" in user else url
    return _PASSWORD_PARAMETER.sub(r"\1***", shown)


def _refuse_unreadable(url: str) -> None:
    """A password with a bare `/`, `#` or `[` makes another URL of it, whose errors would show a part of the
    password."""
    user, _, places = _END_OF_PLACES.split(url.partition("://")[2], maxsplit=1)[0].rpartition("@")
    if "[" in user or not all(_PLACE.match(place) for place in places.split(",")):
        raise ConfigError(
            "the database URL cannot be read; write special characters in its password as %40 (@), %3A (:), %2F (/), "
            "%23 (#), %3F (?), %5B and %5D ([ and ])"
        )


_PASSWORD_PARAMETER = re.compile(r"((?:^|[?&\s])(?:ssl)?password\s*=\s*)[^&#\s]*")
_END_OF_PLACES = re.compile(r"[/?#]")
_PLACE = re.compile(r"(\[[^]]*]|[^][:]*)(:\d+)?$")


def changed(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """The settings with those given put in place (None: not given): how flags win over everything else."""
    _refuse_unknown(given, "flags")
    values = {name: _READERS[name](raw, name) for name, raw in given.items() if raw is not None}
    return _checked(replace(settings, **values))


def settle(given: Mapping[str, Any]) -> Settings:
    """Settings from arguments (None: not given), the environment and pyproject.toml."""
    project = _project_settings()
    values: dict[str, Any] = {}
    for name, read in _READERS.items():
        raw = _first(given.get(name), _environment(name), project.get(name))
        if raw is not None:
            values[name] = read(raw, name)
    return _checked(replace(Settings(), **values))


def _refuse_unknown(names: Iterable[str], where: str) -> None:
    for name in names:
        if name not in _READERS:
            close = get_close_matches(name, _READERS, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_READERS)}"
            raise ConfigError(f"{where}: there is no setting {name!r}; {remedy}")


def _first(*candidates: Any) -> Any:
    return next((value for value in candidates if value is not None), None)


def _environment(name: str) -> str | None:
    if name == "url":
        return os.environ.get("OSTINATO_DATABASE_URL") or os.environ.get("DATABASE_URL") or None
    return os.environ.get(f"OSTINATO_{name.upper()}") or None


def _project_settings() -> Mapping[str, Any]:
    file = Path("pyproject.toml")
    return _settings_in(file.read_text(encoding="utf-8")) if file.is_file() else {}


@lru_cache(maxsize=4)
def _settings_in(project: str) -> Mapping[str, Any]:
    """The settings in the text of a pyproject.toml, which takes milliseconds to understand."""
    try:
        table = tomllib.loads(project).get("tool", {}).get("ostinato", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"pyproject.toml cannot be read: {error}") from error
    named = {key.replace("-", "_"): value for key, value in table.items()}
    if "database_url" in named:
        named["url"] = named.pop("database_url")
    _refuse_unknown(named, "[tool.ostinato] in pyproject.toml")
    return named


def _text(raw: Any, name: str) -> str:
    if not isinstance(raw, str):
        raise ConfigError(f"{name}={raw!r} must be text")
    return raw


def _seconds(raw: Duration, name: str) -> float:
    return seconds(raw, what=name)


def _switch(raw: Any, name: str) -> bool:
    known = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in known:
        return known[raw.lower()]
    raise ConfigError(f"{name}={raw!r} must be on or off")


def _size(raw: Any, name: str) -> int:
    try:
        return _whole(raw, name)
    except ConfigError:
        raise ConfigError(f"{name}={raw!r} must be a number of bytes of at least 1") from None


def _port(raw: Any, name: str) -> int:
    number = int(raw) if isinstance(raw, str) and raw.isdecimal() else raw
    if type(number) is not int or number not in range(65536):
        raise ConfigError(f"{name}={raw!r} must be a port from 1 to 65535, or 0 for any that is free")
    return number


def queues_from(raw: Any, name: str = "queues") -> dict[str, Queue]:
    """Queues from `{"default": 10, "mail": Queue(5)}` or `"default:10,mail:5"`.

    >>> queues_from("default:10,mail:5")["mail"].concurrency
    5
    """
    if isinstance(raw, str):
        pairs = (part.strip().partition(":") for part in raw.split(",") if part.strip())
        raw = {queue.strip(): amount.strip() or DEFAULT_CONCURRENCY for queue, _, amount in pairs}
    if not isinstance(raw, Mapping) or not raw:
        raise ConfigError(f"{name}={raw!r} must name at least one queue, like {{'default': 100}} or 'default:100'")
    return {queue_name(key): _queue(value, key) for key, value in raw.items()}


def queue_name(raw: object) -> str:
    if not isinstance(raw, str) or not raw or len(raw) > 100 or not raw.isprintable() or "," in raw or ":" in raw:
        raise ConfigError(f"queue {raw!r} must be a name of 1 to 100 printable characters without ',' and ':'")
    return raw


def _queue(value: Any, name: str) -> Queue:
    concurrency, max_waiting = value, None
    if isinstance(value, Mapping):
        concurrency, max_waiting = value.get("concurrency", DEFAULT_CONCURRENCY), value.get("max_waiting")
    elif isinstance(value, Queue):
        concurrency, max_waiting = value.concurrency, value.max_waiting
    return Queue(
        _whole(concurrency, f"concurrency of queue {name!r}"),
        None if max_waiting is None else _whole(max_waiting, f"max_waiting of queue {name!r}"),
    )


def _whole(raw: Any, what: str) -> int:
    number = int(raw) if isinstance(raw, str) and raw.isdecimal() else raw
    if type(number) is not int or number < 1:
        raise ConfigError(f"{what} is {raw!r} and must be a whole number of at least 1")
    return number


def retention_from(raw: Any, name: str = "retention") -> Retention:
    """Retention from `{"completed": "7d", "failed": None}`, one duration for all runs, or `"forever"`. How long events
    are kept is only said by their name."""
    if isinstance(raw, Retention):
        return raw
    if isinstance(raw, Mapping):
        if unknown := set(raw) - set(Retention.__slots__):
            known = ", ".join(Retention.__slots__)
            raise ConfigError(f"{name}: {sorted(unknown)} cannot be kept; what can be is {known}")
        return Retention(**raw)
    keep = _keep(raw, name)
    return Retention(keep, keep, keep)


def _keep(raw: Any, what: str) -> float | None:
    return None if raw in (None, "forever") else seconds(raw, what=what)


_READERS: dict[str, Any] = {
    "url": _text,
    "schema": _text,
    "queues": queues_from,
    "lease": _seconds,
    "poll": _seconds,
    "notify": _switch,
    "listen_url": _text,
    "shutdown_grace": _seconds,
    "retention": retention_from,
    "input_limit": _size,
    "step_limit": _size,
    "steps_limit": _size,
    "metrics_port": _port,
    "metrics_host": _text,
}


def _checked(settings: Settings) -> Settings:
    dialect_of(settings.url)
    _refuse_unreadable(settings.url)
    if settings.listen_url is not None:
        dialect_of(settings.listen_url)
    if settings.lease < SHORTEST_LEASE:
        raise ConfigError(f"lease={settings.lease}s is shorter than {SHORTEST_LEASE}s: its renewals could not keep up")
    if settings.poll <= 0:
        raise ConfigError("poll must be longer than zero")
    return settings
