"""When a failed attempt is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from ..clock import Duration, seconds
from ..errors import ConfigError

Failure = type[BaseException]


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about one kind of exception."""

    kind: Failure
    delays: tuple[float, ...]


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """A table of delays: n delays are n retries are n + 1 attempts.

    >>> Retry("0s", "30s", "5m").attempts
    4
    >>> Retry.exponential(8, first="1s").never(ValueError).on(TimeoutError, "10s", "10s")  # doctest: +ELLIPSIS
    Retry(...)
    """

    delays: tuple[float, ...]
    jitter: float = 0.0
    rules: tuple[Rule, ...] = ()

    def __init__(self, *delays: Duration, jitter: float = 0.0) -> None:
        if not 0 <= jitter <= 1:
            raise ConfigError(f"Retry: jitter={jitter!r} must be between 0 and 1")
        object.__setattr__(self, "delays", tuple(seconds(delay, what="Retry") for delay in delays))
        object.__setattr__(self, "jitter", jitter)
        object.__setattr__(self, "rules", ())

    @classmethod
    def exponential(
        cls,
        retries: int = 5,
        *,
        first: Duration = "2s",
        factor: float = 4.0,
        longest: Duration = "1h",
        jitter: float = 0.25,
    ) -> Retry:
        """Delays that grow by `factor`, each spread by `jitter` so that failures do not return in step."""
        if retries < 0 or not factor >= 1:
            raise ConfigError(f"Retry.exponential: retries={retries!r} and factor={factor!r} must be ≥ 0 and ≥ 1")
        start, ceiling = seconds(first, what="first"), seconds(longest, what="longest")
        delays = [min(start, ceiling)]
        while len(delays) < retries:
            delays.append(min(delays[-1] * factor, ceiling))
        return cls(*delays[:retries], jitter=jitter)

    @classmethod
    def none(cls) -> Retry:
        """One attempt and no more."""
        return cls()

    def on(self, kind: Failure, *delays: Duration) -> Retry:
        """The same policy with a table of its own for one kind of exception."""
        rule = Rule(_exception_class(kind), tuple(seconds(delay, what="Retry.on") for delay in delays))
        return replace_rules(self, (rule, *self.rules))

    def never(self, *kinds: Failure) -> Retry:
        """The same policy, with these exceptions failing at once."""
        return replace_rules(self, (*(Rule(_exception_class(kind), ()) for kind in kinds), *self.rules))

    @property
    def attempts(self) -> int:
        """How often a run may start when nothing more specific applies."""
        return len(self.delays) + 1

    def delay(self, attempt: int, error: BaseException | None, *, spread: float = 0.5) -> float | None:
        """Seconds to wait after the attempt failed, or None when there is no next one. `spread`, 0 to 1, moves it by
        the jitter."""
        delays = self._delays_for(error)
        if attempt > len(delays):
            return None
        return delays[attempt - 1] * (1 + self.jitter * (2 * spread - 1))

    def _delays_for(self, error: BaseException | None) -> tuple[float, ...]:
        for rule in self.rules:
            if isinstance(error, rule.kind):
                return rule.delays
        return self.delays


def _exception_class(kind: object) -> Failure:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise ConfigError(f"Retry: {kind!r} is not a class of exceptions")
    return kind


def replace_rules(policy: Retry, rules: tuple[Rule, ...]) -> Retry:
    changed = Retry(*policy.delays, jitter=policy.jitter)
    object.__setattr__(changed, "rules", rules)
    return changed


DEFAULT_RETRY = Retry.exponential()
