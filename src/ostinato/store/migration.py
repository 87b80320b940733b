"""The schema's numbered steps: loading, comparing and printing them. Applying is each database's own affair.

Steps are additive and have no way back: code of the version before goes on running on the new schema.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from ..errors import StoreError
from .ports import MigrationView

_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")


class Step(NamedTuple):
    """One migration. The checksum is of the text as shipped, before the schema's name is put in."""

    version: int
    name: str
    text: str
    checksum: str


class Applied(NamedTuple):
    """What the database remembers of a step."""

    name: str
    checksum: str
    applied_at: str


def steps(package: str, *, adapt: Callable[[str], str]) -> list[Step]:
    """The steps that a database's package ships, in order and without a gap."""
    found = []
    for file in (files(package) / "migrations").iterdir():
        if match := _FILE.match(file.name):
            text = file.read_text(encoding="utf-8")
            checksum = hashlib.sha256(text.encode()).hexdigest()[:16]
            found.append(Step(int(match[1]), match[2], adapt(text), checksum))
    found.sort()
    if [step.version for step in found] != list(range(1, len(found) + 1)):
        raise StoreError(f"the migrations of {package} are not numbered 1, 2, 3, …: the installation is damaged")
    return found


def missing(shipped: Sequence[Step], applied: Mapping[int, Applied]) -> list[Step]:
    return [step for step in shipped if step.version not in applied]


def status(shipped: Sequence[Step], applied: Mapping[int, Applied]) -> list[MigrationView]:
    """Each step shipped or applied, in order."""
    known = {step.version: step for step in shipped}
    return [_view(known.get(version), applied.get(version), version) for version in sorted({*known, *applied})]


def _view(step: Step | None, done: Applied | None, version: int) -> MigrationView:
    name = step.name if step else done.name if done else ""
    matches = done.checksum == step.checksum if step and done else None
    return MigrationView(version, name, done.applied_at if done else None, matches)


def differences(shipped: Sequence[Step], applied: Mapping[int, Applied]) -> list[str]:
    """What is wrong with the schema's history, in words; nothing when it is as shipped."""
    found = []
    known = {step.version: step for step in shipped}
    for version in sorted({*known, *applied}):
        if version not in applied:
            found.append(f"{version:04} {known[version].name} is not applied; run `ostinato migrate up`")
        elif version not in known:
            found.append(
                f"{version:04} {applied[version].name} was applied by a newer version of Ostinato than this one"
            )
        elif applied[version].checksum != known[version].checksum:
            found.append(f"{version:04} {known[version].name} was applied with another content than this version ships")
    return found
