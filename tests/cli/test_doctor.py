"""`ostinato doctor`: each check, and the program on a database with something wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec import json
from msgspec.structs import replace

from ostinato import App
from ostinato.model.diagnosis import (
    FileFacts,
    Horizon,
    MissingGrant,
    OpenTransaction,
    QueueHealth,
    ServerFacts,
    StrandedRuns,
    TableFacts,
)
from ostinato.resources.doctor import Doctor, Finding, Level, file, self_test, server, work
from ostinato.resources.doctor import doctor as doctors
from ostinato.store.ports import MigrationView
from ostinato.store.postgres import PostgresStore
from ostinato.store.sqlite.diagnosis import file_system_of
from ostinato.testing.postgres import PostgresServer, PostgresServers
from tests.cli.conftest import Cli
from tests.cli.processes import worker

# --- checks ---------------------------------------------------------------------------------------------------------

GOOD_SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "track_counts": "on",
    "max_connections": "100",
    "superuser_reserved_connections": "3",
    "idle_in_transaction_session_timeout": "600000",
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "default_transaction_read_only": "off",
}
HEALTHY = ServerFacts(
    version="16.4",
    version_number=160004,
    role="radio",
    standby=False,
    settings=GOOD_SETTINGS,
    connections=5,
    runs=TableFacts(live=1000, dead=10, bytes=1 << 20),
)
FILE = FileFacts(
    version="3.51.3", journal_mode="wal", bytes=1 << 20, free_bytes=0, path="/srv/radio.db", file_system="ext4"
)
GIB = 1 << 30


def examined(facts: ServerFacts) -> list[Finding]:
    return [finding for check in server.CHECKS for finding in check(facts)]


def with_setting(**settings: str) -> ServerFacts:
    return replace(HEALTHY, settings={**GOOD_SETTINGS, **settings})


def bad(findings: Iterable[Finding]) -> list[tuple[Level, str, str]]:
    """What is not all right; each has a remedy."""
    found = [finding for finding in findings if finding.level is not Level.OK]
    assert all(finding.remedy for finding in found)
    return [(finding.level, finding.check, finding.seen) for finding in found]


def test_a_healthy_server_is_all_right():
    """Every check says so, and none has a remedy."""
    findings = examined(HEALTHY)
    assert [] == bad(findings)
    assert {"server", "durability", "vacuum", "transactions", "horizon", "connections"} == {f.check for f in findings}
    assert {None} == {finding.remedy for finding in findings}


@pytest.mark.parametrize(
    ("facts", "level", "check", "said"),
    [
        (replace(HEALTHY, version="14.9", version_number=140009), "error", "server", "14.9 is too old"),
        (replace(HEALTHY, standby=True), "error", "server", "standby"),
        (with_setting(default_transaction_read_only="on"), "error", "server", "nothing can be written"),
        (with_setting(fsync="off"), "error", "durability", "fsync is off"),
        (with_setting(full_page_writes="off"), "warning", "durability", "full_page_writes is off"),
        (with_setting(synchronous_commit="off"), "warning", "durability", "synchronous_commit is off"),
        (with_setting(autovacuum="off"), "warning", "vacuum", "autovacuum does not run"),
        (with_setting(track_counts="off"), "warning", "vacuum", "autovacuum does not run"),
        (replace(HEALTHY, runs=TableFacts(1, 1, 1, autovacuum=False)), "warning", "vacuum", "off for the table runs"),
        (replace(HEALTHY, runs=TableFacts(500, 50_000, GIB)), "warning", "vacuum", "50,000 dead rows beside 500 live"),
        (with_setting(idle_in_transaction_session_timeout="0"), "note", "timeouts", "idle in a transaction for ever"),
        (with_setting(statement_timeout="500"), "warning", "timeouts", "statement_timeout is 500 ms"),
        (with_setting(transaction_timeout="500"), "warning", "timeouts", "transaction_timeout is 500 ms"),
        (with_setting(idle_session_timeout="500"), "warning", "timeouts", "idle_session_timeout is 500 ms"),
        (replace(HEALTHY, connections=90), "warning", "connections", "90 of 100 are in use, with room for 7"),
        (with_setting(max_connections="20"), "warning", "connections", "room for 12"),
        (
            replace(HEALTHY, transactions=[OpenTransaction(7, 900.0, "ann", "psql", "radio", "idle in transaction")]),
            "warning",
            "transactions",
            "psql of ann (pid 7) has had a transaction open for 15 min, idle in transaction",
        ),
        (replace(HEALTHY, prepared=2), "warning", "transactions", "2 prepared transactions"),
        (replace(HEALTHY, hidden_sessions=3), "note", "transactions", "3 sessions of other roles"),
        (
            replace(HEALTHY, horizon=Horizon(2_000_000, "the replication slot old")),
            "warning",
            "horizon",
            "the replication slot old keeps vacuum from removing what died in the last 2,000,000",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_server(facts: ServerFacts, level: str, check: str, said: str):
    """Each trouble is found by one check, at its level, and by no other."""
    [(found, where, seen)] = bad(examined(facts))
    assert (level, check) == (found, where)
    assert said in seen


def test_a_pooler_decides_about_connections():
    """Through one, the server's room is not what counts."""
    assert [] == bad(server.connections(replace(HEALTHY, connections=95, pooled=True)))


def test_a_healthy_file_is_all_right():
    """Every check says so."""
    assert [] == bad(finding for check in file.CHECKS for finding in check(FILE))


@pytest.mark.parametrize(
    ("facts", "level", "check", "said"),
    [
        (replace(FILE, version="3.51.2"), "warning", "library", "SQLite 3.51.2 has a bug"),
        (replace(FILE, version="3.40.1"), "warning", "library", "damage the file"),
        (replace(FILE, journal_mode="delete"), "error", "journal", "the journal is 'delete'"),
        (replace(FILE, log_bytes=GIB), "warning", "journal", "the write-ahead log has 1,024 MiB"),
        (replace(FILE, file_system="nfs4"), "error", "file", "network file system (nfs4)"),
    ],
)
def test_what_is_wrong_with_a_file(facts: FileFacts, level: str, check: str, said: str):
    """Each trouble is found by one check, at its level, and by no other."""
    [(found, where, seen)] = bad(finding for look in file.CHECKS for finding in look(facts))
    assert (level, check) == (found, where)
    assert said in seen


def test_a_file_system_that_cannot_be_told_is_noted():
    """It is not a trouble, and there is nothing to do."""
    [finding] = file.place(replace(FILE, file_system=None))
    assert (Level.NOTE, None) == (finding.level, finding.remedy)


def test_the_file_system_of_a_file():
    """Linux tells; a file that is not there yet is on that of its folder."""
    if Path("/proc/self/mountinfo").exists():
        assert "proc" == file_system_of(Path("/proc/self/stat"))
        assert file_system_of(Path.cwd() / "nothing.db") is not None


STEP = MigrationView(1, "runs", "2026-01-01", True)
MISSING, NEWER = MigrationView(2, "more", None, None), MigrationView(9, "next", "2026-01-01", None)


@pytest.mark.parametrize(
    ("steps", "automatic", "level", "said"),
    [
        ([STEP, MISSING], False, "error", "0002 more not applied"),
        ([STEP, MISSING], True, "note", "0002 more not applied"),
        ([STEP, NEWER], False, "note", "0009 next applied by a newer version"),
        ([replace(STEP, checksum_matches=False)], False, "error", "0001 runs applied with another content"),
    ],
)
def test_what_is_wrong_with_the_schema(steps: list[MigrationView], automatic: bool, level: str, said: str):
    """Missing steps, unless they come by themselves; changed ones; newer ones."""
    [(found, _, seen)] = bad(work.migrations(steps, automatic=automatic))
    assert level == found
    assert said in seen
    assert [] == bad(work.migrations([STEP], automatic=automatic))


def test_missing_grants_are_told_by_role():
    """A line for each role, not for each right, with the command that heals it."""
    lacking = [MissingGrant("jobs", "worker", f"select on the table t{n}") for n in range(5)]
    findings = [*work.grants([*lacking, MissingGrant("web", "producer", "usage on the schema")])]

    assert ["jobs", "web"] == [finding.seen.split()[2] for finding in findings]
    assert "and 2 more" in findings[0].seen
    assert "--worker jobs" in (findings[0].remedy or "")
    assert [Level.OK] == [finding.level for finding in work.grants([])]
    assert [] == [*work.grants(None)]


@pytest.mark.parametrize(
    ("skew", "doubt", "fine"), [(0.1, 0.01, True), (3, 2, True), (3, 0.01, False), (-60, 1, False)]
)
def test_clocks_that_differ(skew: float, doubt: float, fine: bool):
    """More than a slow answer explains is told."""
    assert fine == (not bad(work.clock(skew, doubt)))


@pytest.mark.parametrize(
    ("seen", "level", "said"),
    [
        ({"hears": True}, "ok", "arrive"),
        ({"hears": True, "pooled": True}, "ok", "session mode"),
        ({"hears": True, "pooled": True, "apart": True}, "ok", "by OSTINATO_LISTEN_URL"),
        ({"pooled": True}, "warning", "transaction mode"),
        ({"pooled": True, "apart": True}, "warning", "do not arrive"),
        ({}, "warning", "do not arrive"),
        ({"notify": False}, "note", "switched off"),
    ],
)
def test_wakeups(seen: dict[str, bool], level: str, said: str):
    """Whether signals arrive, and what is between."""
    facts: dict[str, Any] = {"hears": False, "why": "", "pooled": False, "notify": True, "apart": False, **seen}
    [finding] = work.wakeups(**facts)
    assert level == finding.level
    assert said in finding.seen


def test_queues_that_nobody_serves_or_that_are_paused():
    """Both are told with what waits; a queue that is served is not."""
    waiting = [
        QueueHealth("served", 5, 0, paused=False, workers=1, oldest=1.0),
        QueueHealth("lonely", 2, 1, paused=False, workers=0, oldest=7300.0),
        QueueHealth("paused", 1, 0, paused=True, workers=1, oldest=5.0),
    ]
    found = bad(work.queues(waiting))
    assert ["nobody works on 'lonely', and 3 runs wait in it, the oldest for 2 h"] == [s for _, _, s in found[:1]]
    assert "'paused' is paused, and 1 run waits" in found[1][2]
    assert [] == bad(work.queues(waiting[:1]))


def test_runs_of_the_dead():
    """Soon to be rescued, waiting for anybody at all, or left by those who should have."""
    dead = StrandedRuns("w1", 3, 5.0)
    [soon] = work.stranded([dead], alive=1)
    [nobody] = work.stranded([dead], alive=0)
    [left] = work.stranded([replace(dead, seconds=300.0)], alive=1)
    assert ["note", "warning", "error"] == [finding.level for finding in (soon, nobody, left)]
    assert [] == bad(work.stranded([], alive=2))


# --- the program ----------------------------------------------------------------------------------------------------


def findings(report: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in report["findings"]:
        found.setdefault(finding["check"], []).append((finding["level"], finding["seen"]))
    return found


def diagnosed(url: str, *args: str) -> dict[str, list[tuple[str, str]]]:
    """By check: level and what was seen. Servers for tests have no fsync, so that the exit code may be 1."""
    result = Cli(url)("doctor", "--json", *args)
    assert result.exit_code in (0, 1), result.output
    return findings(json.decode(result.stdout))


def execute(url: str, *statements: str) -> None:
    """Statements about `ostinato.runs` and so on, in either database."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            for statement in statements:
                connection.execute(statement.replace("ostinato.", "ostinato_"))
        connection.close()
    else:
        asyncio.run(_execute(url, statements))


async def _execute(url: str, statements: Iterable[str]) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


def test_a_new_database_is_all_right(cli: Cli, url: str):
    """The work checks pass on both databases, and everything has a check of its own."""
    found = diagnosed(url)
    for check in ("schema", "wake-ups", "clock", "queues", "workers", "functions"):
        assert ["ok"] == [level for level, _ in found[check]]
    assert ("server" in found) != ("library" in found)


def test_what_is_wrong_with_the_work_is_told(url: str, cli: Cli):
    """A queue that nobody serves, one that is paused, a function that nobody declares."""
    cli.does("enqueue", "greet", '{"name": "Ada"}')
    cli.does("enqueue", "remix", "--queue", "nowhere")
    execute(url, "update ostinato.queues set paused = true where name = 'default'")

    found = diagnosed(url)

    assert ["warning", "warning"] == [level for level, _ in found["queues"]]
    assert "'default' is paused, and 1 run waits" in found["queues"][0][1]
    assert "nobody works on 'nowhere', and 1 run waits" in found["queues"][1][1]
    assert [("warning", "1 run of 'remix', which no worker has ever declared")] == found["functions"]


def test_a_served_queue_is_all_right(url: str, cli: Cli):
    """A live worker on the queue is enough; one on another queue is not."""
    with worker(url, "--queues", "mail:2"):
        cli.does("enqueue", "greet", '{"name": "Ada"}', "--queue", "mail", "--delay", "1h")
        found = diagnosed(url)
        cli.does("enqueue", "greet", '{"name": "Ada"}', "--queue", "nowhere")
        assert [("warning", True)] == [(level, "'nowhere'" in seen) for level, seen in diagnosed(url)["queues"]]
    assert [("ok", "0 runs ready, all served")] == found["queues"]
    assert [("ok", "1 worker alive, none dead with runs")] == found["workers"]


def test_runs_of_a_dead_worker_are_told(url: str, cli: Cli):
    """While nobody lives who could take them over."""
    cli.does("enqueue", "greet", '{"name": "Ada"}')
    execute(url, "update ostinato.runs set state = 'running', worker = 'w1', lease_no = 1")

    [(level, seen)] = diagnosed(url)["workers"]

    assert ("warning", "1 run of the dead worker w1: nobody lives who could take over") == (level, seen)


def test_a_database_without_tables(empty_url: str):
    """PostgreSQL's must be made; SQLite's makes itself. Nothing is made by looking."""
    execute(empty_url, "select 1")
    found = diagnosed(empty_url)
    if empty_url.startswith("sqlite"):
        assert "note" == found["schema"][0][0]
        assert b"ostinato_runs" not in Path(empty_url.removeprefix("sqlite:///")).read_bytes()
    else:
        assert "error" == found["schema"][0][0]
        assert "queues" not in found


@pytest.fixture
def postgres(postgres_server: PostgresServers) -> Iterator[str]:
    """A migrated PostgreSQL database."""
    with postgres_server(postgres_server.versions[-1]).temporary_database() as url:
        asyncio.run(App(url).migrations().up())
        yield url


def test_a_changed_step_is_an_error(postgres: str):
    """And ends the program with 1."""
    execute(postgres, "update ostinato.migrations set checksum = 'x' where version = 1")
    assert ("error", "0001 runs applied with another content than this version ships") in diagnosed(postgres)["schema"]
    assert 1 == Cli(postgres)("doctor").exit_code


def test_settings_that_hurt_are_seen_on_a_real_server(postgres: str):
    """The servers for tests have no fsync; the role's own settings are those that count."""
    execute(
        postgres, "alter role postgres set synchronous_commit = off", "alter role postgres set statement_timeout = 900"
    )
    try:
        found = diagnosed(postgres)
    finally:
        execute(postgres, "alter role postgres reset synchronous_commit", "alter role postgres reset statement_timeout")
    assert {"fsync is off", "synchronous_commit is off"} <= {seen.partition(":")[0] for _, seen in found["durability"]}
    assert any("statement_timeout is 900 ms" in seen for _, seen in found["timeouts"])


def test_a_careful_server_has_no_errors(tmp_path: Path):
    """With fsync the program ends with 0."""
    with PostgresServer(fsync=True) as server, server.temporary_database() as url:
        asyncio.run(App(url).migrations().up())
        result = Cli(url)("doctor")
    assert 0 == result.exit_code, result.output
    assert "commits are flushed before they are acknowledged" in result.stdout


async def test_a_long_transaction_is_told(postgres_server: PostgresServers):
    """Whose it is, for how long, and that it holds the horizon."""
    with postgres_server(postgres_server.versions[-1]).temporary_database() as url:
        await App(url).migrations().up()
        idle = await asyncpg.connect(url, server_settings={"application_name": "forgotten"})
        async with idle.transaction(isolation="repeatable_read"):
            await idle.fetchval("select count(*) from ostinato.runs")
            pid = await idle.fetchval("select pg_backend_pid()")
            found = await App(url).doctor.examine(long_transaction=0.0)
        await idle.close()
    seen = {finding.check: finding for finding in found if str(pid) in finding.seen}
    assert {"transactions", "horizon"} == set(seen)
    assert f"forgotten of postgres (pid {pid})" in seen["transactions"].seen
    assert Level.WARNING is seen["transactions"].level


TEN_MINUTES_BEHIND = (
    "create or replace function ostinato.clock() returns timestamptz language sql volatile parallel safe "
    "return clock_timestamp() - interval '10 minutes'"
)


async def test_a_clock_that_differs_is_told(postgres_server: PostgresServers):
    """By the clock that leases follow."""
    with postgres_server(postgres_server.versions[-1]).temporary_database() as url:
        await App(url).migrations().up()
        await _execute(url, [TEN_MINUTES_BEHIND])
        [finding] = [each for each in await App(url).doctor.examine() if each.check == "clock"]
    assert (Level.WARNING, True) == (finding.level, "10 min behind this machine's" in finding.seen)


def test_a_database_out_of_reach(tmp_path: Path):
    """One error, and no password."""
    result = Cli("postgresql://ann:geheim@127.0.0.1:1/radio")("doctor")
    assert 1 == result.exit_code
    assert "error" in result.stdout
    assert "cannot be reached" in result.stdout
    assert "geheim" not in result.output


def test_the_page_has_levels_remedies_and_a_summary(url: str, cli: Cli):
    """For people: what was seen, an arrow before what to do, and the sum of it."""
    cli.does("enqueue", "remix", "--queue", "nowhere")
    shown = cli("doctor").stdout
    assert "warning  queues" in shown
    assert "→ start a worker that does: ostinato worker module:app --queues nowhere" in shown
    assert "warnings" in shown.splitlines()[-1]


# --- the self-test --------------------------------------------------------------------------------------------------


def test_a_run_goes_through_and_leaves_nothing(url: str, cli: Cli):
    """Every stage is timed, a notification woke the worker, and no trace remains."""
    before = (cli.reads("workers", "list", "--all"), cli.reads("runs", "list"), asyncio.run(names(url)))

    result = cli("doctor", "--self-test", "--json")

    tested = json.decode(result.stdout)["self_test"]
    assert tested["passed"], tested
    assert ["insert", "wake-up", "claim", "handler", "settlement", "result"] == [s["name"] for s in tested["stages"]]
    assert tested["seconds"] == pytest.approx(sum(stage["seconds"] for stage in tested["stages"]))
    assert "notification" == tested["woken_by"]
    assert before == (cli.reads("workers", "list", "--all"), cli.reads("runs", "list"), asyncio.run(names(url)))


async def names(url: str) -> tuple[list[str], list[str]]:
    app = App(url)
    return sorted(each.name for each in await app.workers.functions()), sorted(
        each.name for each in await app.queues.list()
    )


def test_the_stages_are_shown(url: str, cli: Cli):
    """For people, in milliseconds."""
    shown = cli("doctor", "--self-test").stdout
    assert "by a notification" in shown
    assert "in all" in shown


async def test_it_prunes_nothing_of_others(tmp_path: Path):
    """Its worker has the retention of nobody: what an app wants to keep for ever stays."""
    app = App(f"sqlite:///{tmp_path}/radio.db", retention="1s")
    async with app:
        handle = await app.enqueue("greet", {}, queue="elsewhere")
        await handle.cancel()
        execute(app.settings.url, "update ostinato.runs set ended_at = 0")
        assert (await app.doctor.self_test()).passed
        assert "cancelled" == await handle.status()


async def test_a_run_that_does_not_come_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """How far it came is said, and nothing is left behind."""
    app = App(f"sqlite:///{tmp_path}/radio.db")
    async with app:
        execute(
            app.settings.url,
            "create trigger stuck after insert on ostinato.runs begin "
            "update ostinato.runs set state = 'held', run_at = run_at + 3600000000 where id = new.id; end",
        )
        monkeypatch.setattr(self_test, "PATIENCE", 1.0)
        tested = await app.doctor.self_test()
        assert not tested.passed
        assert "did not come back within 1 s" in (tested.trouble or "")
        assert "claim" not in {stage.name for stage in tested.stages}
        assert [] == list(await app.runs.list())


def test_a_self_test_that_fails_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also when nothing else is wrong."""
    url = f"sqlite:///{tmp_path}/radio.db"
    Cli(url).does("migrate", "up")

    async def fail(self: Doctor) -> self_test.SelfTest:
        return self_test.SelfTest(False, [], 0.0, "polling", "the run did not come back within 30 s")

    monkeypatch.setattr(Doctor, "self_test", fail)
    result = Cli(url)("doctor", "--self-test")
    assert 1 == result.exit_code
    assert "did not come back" in result.stderr


async def test_a_listener_that_says_nothing():
    """The doctor does not wait for ever for a server that takes connections and never answers."""
    gone = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        gone.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    store = PostgresStore(f"postgresql://ann@127.0.0.1:{port}/radio")

    ear = await doctors.listen(store, patience=0.2)

    assert (False, "no answer within 0.2 s") == (ear.hears, ear.why)
    await store.close()
    silent.close()
    await gone.wait()
