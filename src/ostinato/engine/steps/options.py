"""What can be said about a step besides its name and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ...clock import Duration, seconds
from ...errors import ConfigError, InvalidOption
from ...model.retry import Retry
from ..door import is_storable


class StepOptions(Struct, frozen=True):
    """What can be said about a step besides its name and what it does."""

    key: str | None = None
    retry: Retry | None = None
    timeout: float | None = None
    tx: bool = False

    def changed(self, options: Mapping[str, Any]) -> StepOptions:
        """These options with some replaced; bad ones are refused."""
        if unknown := set(options) - set(self.__struct_fields__):
            known = ", ".join(self.__struct_fields__)
            raise InvalidOption(f"unknown option {min(unknown)!r} of a step; options are {known}")
        merged = {**{name: getattr(self, name) for name in self.__struct_fields__}, **options}
        if merged["key"] is not None and not is_storable(merged["key"]):
            raise InvalidOption(f"key={merged['key']!r} must be text without NUL")
        if merged["retry"] is not None and not isinstance(merged["retry"], Retry):
            raise InvalidOption(f"retry={merged['retry']!r} must be a Retry, like Retry('30s', '5m')")
        if not isinstance(merged["tx"], bool):
            raise InvalidOption(f"tx={merged['tx']!r} must be True or False")
        merged["timeout"] = _timeout(merged["timeout"])
        return StepOptions(**merged)

    def only_key(self, verb: str) -> str | None:
        """The key, of a step that can have nothing else."""
        if self.retry is not None or self.timeout is not None or self.tx:
            raise InvalidOption(f"run.options() for run.{verb}() takes key= alone")
        return self.key


NO_OPTIONS = StepOptions()


def _timeout(timeout: Duration | None) -> float | None:
    if timeout is None:
        return None
    try:
        amount = seconds(timeout, what="timeout")
    except ConfigError as error:
        raise InvalidOption(str(error)) from error
    if not amount:
        raise InvalidOption(f"timeout={timeout!r} must be longer than zero")
    return amount
