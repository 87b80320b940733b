"""What must hold of durable functions after any fault, read from the database and from the log of effects alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec import json

from tests.system.databases import ENDED, Database
from tests.system.log import Line, Log

COLUMNS = "run_id text not null, step text not null, value text not null, lease_no integer not null"
TABLE = f"create table durable ({COLUMNS})"
"""Where steps leave a row. Without a unique constraint, so that a second row of a step would be seen."""

TX_STEPS = ("store", "file", "tx", "row")
ATTEMPTS = 51


def table(database: Database, name: str) -> str:
    return f"ostinato{'.' if database.dialect == 'postgresql' else '_'}{name}"


def steps(database: Database, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    return database.query(f"select {columns} from {table(database, 'steps')} where {where}")


def completed_steps(database: Database) -> int:
    count: int = steps(database, "count(*)", "status = 'completed'")[0][0]
    return count


def stuck(database: Database) -> int:
    """Runs that are held although nothing that they wait for is pending."""
    pending = f"select 1 from {table(database, 'steps')} s where s.run_id = r.id and s.status = 'pending'"
    found = database.query(f"select count(*) from {database.runs} r where state = 'held' and not exists ({pending})")
    count: int = found[0][0]
    return count


class Effects:
    """The log, by run and step."""

    def __init__(self, log: Log) -> None:
        log.find("")
        self.of = self._by_step(log, "effect")
        self.got = self._by_step(log, "got")
        self.began: dict[str, list[Line]] = defaultdict(list)
        for line in log.lines:
            if line["what"] == "began":
                self.began[line["run"]].append(line)

    def _by_step(self, log: Log, what: str) -> dict[tuple[str, str], list[Line]]:
        found: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in log.lines:
            if line["what"] == what:
                found[line["run"], line["step"]].append(line)
        return found


def check(database: Database, log: Log, *, attempts: int = ATTEMPTS) -> Effects:
    """I1 to I5, I8 and I9 of every run in the database; answers the effects, for what is the test's own."""
    effects = Effects(log)
    _check_runs(database, effects, attempts)
    memos = {(run, _named(name, given)): json.decode(output) for run, name, given, output in _memos(database)}
    _check_rows(database, memos)
    _check_calls(effects, memos)
    for step, lines in effects.got.items():
        assert {json.encode(memos[step])} == {json.encode(line["value"]) for line in lines}, f"I8: {step}"
    return effects


def _memos(database: Database) -> list[tuple[Any, ...]]:
    return steps(database, "run_id, name, input, output", "status = 'completed' and kind in ('step', 'send')")


def _named(name: str, given: str | None) -> str:
    """Steps of the catalogue are called with an item."""
    return f"{name} {json.decode(given)[0][0]}" if given and name in ("fetch", "save") else name


def _check_runs(database: Database, effects: Effects, attempts: int) -> None:
    for run, state, attempt, lease_no, worker in database.query(
        f"select id, state, attempt, lease_no, worker from {database.runs}"
    ):
        assert state in ENDED, f"I1: {run} is {state}"
        assert worker is None, f"I9: {run} is held by {worker}"
        assert attempt <= attempts, f"I5: {run} had {attempt} attempts"
        leases = [line["lease_no"] for line in effects.began[run]]
        assert len(leases) == len(set(leases)), f"I5: {run} started twice under one lease: {leases}"
        assert all(lease <= lease_no for lease in leases), f"I5: {run} started under a lease nobody gave: {leases}"


def _check_rows(database: Database, memos: dict[tuple[str, str], Any]) -> None:
    """What was written in the database, and what is remembered of it, are the same, once."""
    rows = database.query("select run_id, step, value from durable")
    written = {(run, step): value for run, step, value in rows}
    assert len(rows) == len(written), "I2: a step has left two rows"
    remembered = {key: value for key, value in memos.items() if key[1] in TX_STEPS}
    assert remembered == written, "I2: rows and memos differ"
    sent = database.query(f"select run_id, id from {table(database, 'events')} where type = 'item.stored'")
    assert len(sent) == len(set(sent)), "I2"
    announced = {(run, value) for (run, step), value in memos.items() if step == "announce"}
    assert announced == set(sent), "I2: events and memos differ"


def _check_calls(effects: Effects, memos: dict[tuple[str, str], Any]) -> None:
    """Calls: one at least, always with the same key; what is remembered is the last, since nobody calls again what is
    remembered, and nobody remembers what somebody else has taken over."""
    for step in memos:
        assert step[1] in (*TX_STEPS, "announce") or effects.of[step], f"I3: {step} has no effect"
    for step, lines in effects.of.items():
        assert len({line["key"] for line in lines}) <= 1, f"I3: {step} had several keys"
        leases = [line["lease_no"] for line in lines]
        assert len(leases) == len(set(leases)), f"I8: {step} was done twice under one lease"
        if step in memos and lines:
            last = max(lines, key=lambda line: line["lease_no"])
            remembered = json.encode(memos[step]).decode()
            assert last["value"] in remembered, f"I4: {step} remembers another than the last"
