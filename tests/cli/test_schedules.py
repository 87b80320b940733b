"""`ostinato schedules`."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest

from ostinato import App
from tests.cli.apps import timetable
from tests.cli.conftest import Cli, Introduced
from tests.cli.processes import worker


@pytest.fixture
def url(introduced: Introduced) -> str:
    """The URL of a database that knows the schedules of an app."""
    url = introduced(_introduce)
    timetable.app.configure(url=url)
    return url


async def _introduce(url: str) -> None:
    timetable.app.configure(url=url)
    async with timetable.app.worker():
        pass


@pytest.mark.parametrize("command", ["list", "show", "pause", "resume", "fire"])
def test_every_command_explains_itself(command: str):
    """Each has a help text, and the group is in the program's."""
    assert f"Usage: ostinato schedules {command}" in Cli().does("schedules", command, "--help")
    assert "  schedules " in Cli().does("--help")


def test_no_schedules(empty_url: str):
    """An empty list says how to declare one."""
    asyncio.run(App(empty_url).migrations().up())
    result = Cli(empty_url)("schedules", "list")
    assert (0, "") == (result.exit_code, result.stdout)
    assert "declare one with @app.cron" in result.stderr
    assert Cli(empty_url).reads("schedules", "list") == []


def test_schedules_are_listed(cli: Cli):
    """A line for each: when, in which zone, and the next slot there."""
    header, *lines = cli.does("schedules", "list").splitlines()
    assert header.split() == ["schedule", "function", "when", "zone", "state", "next", "last"]
    rows = {line.split()[0]: line for line in lines}
    assert rows.keys() == {"afternoon", "night", "yearly"}
    night = r"night +sync +0 3 \* \* \* +Europe/Paris +active +\w{3} \d{4}-\d\d-\d\d 03:00 CES?T \(in [^)]+\) +-"
    assert re.fullmatch(night, rows["night"])
    assert " 04:30 +0545 (in " in rows["yearly"]


def test_schedules_as_json(cli: Cli):
    """Everything for programs."""
    afternoon, night, yearly = cli.reads("schedules", "list")
    assert [each["name"] for each in (afternoon, night, yearly)] == ["afternoon", "night", "yearly"]
    assert (night["function"], night["queue"], night["state"], night["missed"]) == ("sync", "default", "active", "all")
    assert (night["catch_up"], night["input"], yearly["jitter"], yearly["priority"]) == (
        604800.0,
        {"tier": "gold"},
        30.0,
        5,
    )
    (following,) = night["upcoming"]
    assert datetime.fromisoformat(following) == datetime.fromisoformat(night["next_at"])
    assert datetime.fromisoformat(following).hour == 3


def test_a_schedule_is_shown_with_its_next_slots(cli: Cli):
    """In words, with where it is declared and what becomes of missed slots."""
    shown = cli.does("schedules", "show", "night")
    for piece in (
        "0 3 * * *: At 03:00 every day, Europe/Paris",
        "active",
        "each is made up for, if it is at most 7 d ago",
        '"tier": "gold"',
        "tests.cli.apps.timetable:sync",
    ):
        assert piece in shown
    assert len(re.findall(r"03:00 CES?T \(in ", shown)) == 5
    assert len(re.findall(r"15:00 UTC \(in ", cli.does("schedules", "show", "afternoon", "--next", "3"))) == 3
    assert "jitter        up to 30 s after the slot" in cli.does("schedules", "show", "yearly")


def test_a_schedule_as_json(cli: Cli):
    """As many slots as are asked for."""
    night = cli.reads("schedules", "show", "night", "--next", "3")
    first, second, third = map(datetime.fromisoformat, night["upcoming"])
    assert first < second < third
    assert third - first < timedelta(days=2, hours=2)


def test_pausing_and_resuming(cli: Cli):
    """A line for each, which says what comes next."""
    assert cli.does("schedules", "pause", "night", "afternoon") == "night paused\nafternoon paused\n"
    assert cli.reads("schedules", "show", "night")["state"] == "paused"
    assert re.search(r"night .* paused +- ", cli.does("schedules", "list"))
    resumed = cli.does("schedules", "resume", "night")
    assert re.fullmatch(r"night active, next \w{3} \d{4}-\d\d-\d\d 03:00 CES?T \(in [^)]+\)\n", resumed)
    assert [each["state"] for each in cli.reads("schedules", "list")] == ["paused", "active", "active"]


def test_a_worker_that_starts_leaves_the_pause(url: str, cli: Cli):
    """It is the operator's."""
    cli.does("schedules", "pause", "night")
    with worker(url, app="tests.cli.apps.timetable:app"):
        assert cli.reads("schedules", "show", "night")["state"] == "paused"


def test_firing_by_hand(url: str, cli: Cli):
    """Prints the run's id; the run says how it came to be, and the schedule is as it was."""
    before = cli.reads("schedules", "show", "night")
    run_id = cli.does("schedules", "fire", "night").strip()
    run = cli.reads("runs", "show", run_id)
    assert (run["function"], run["invoked_by"], run["input"]["tier"]) == ("sync", "fire:night", "gold")
    assert abs(datetime.fromisoformat(run["input"]["scheduled_at"]) - datetime.now(UTC)) < timedelta(minutes=5)
    assert cli.reads("schedules", "show", "night") == before
    with worker(url, app="tests.cli.apps.timetable:app") as working:
        working.event("job_completed", job_id=run_id)


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "fire"])
def test_a_schedule_that_is_not_there(cli: Cli, verb: str):
    """Gets one line, and the one that may be meant."""
    said = cli.fails("schedules", verb, "nihgt").splitlines()
    assert said == ["error: no schedule is named 'nihgt'; did you mean 'night'?"]


def test_a_slot_that_has_come_is_shown_with_its_run(url: str, cli: Cli):
    """When it was, and what became of the run."""
    table, past = ("ostinato_schedules", "0") if url.startswith("sqlite") else ("ostinato.schedules", "'epoch'")
    asyncio.run(_execute(url, f"update {table} set next_at = {past} where name = 'night'"))
    with worker(url, app="tests.cli.apps.timetable:app") as working:
        working.event("schedule_fired", schedule="night")
        last_run = cli.reads("schedules", "show", "night")["last_run_id"]
        working.event("job_completed", job_id=last_run)
        seen = cli.reads("schedules", "show", "night")
        assert (seen["last_state"], seen["last_slot"].endswith(":00:00Z")) == ("completed", True)
        last = rf"^last +\w{{3}} .* 03:00 CES?T \([^)]+ ago\): run {seen['last_run_id']}, completed$"
        assert re.search(last, cli.does("schedules", "show", "night"), re.MULTILINE)


async def _execute(url: str, statement: str) -> None:
    async with App(url) as app, app.transaction() as tx:
        await tx.execute(statement)
