"""`ostinato drainers`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ostinato import App
from tests.cli.apps import ledger
from tests.cli.conftest import Cli, Introduced
from tests.engine.ledger import an_event, record, subscribe

LEDGER = ("--app", "tests.cli.apps.ledger:app")
COMMANDS = ("list", "show", "drain", "reset", "remove", "replay", "parked", "retry", "discard", "add", "read", "ack")


@pytest.fixture
def url(introduced: Introduced) -> str:
    """The URL of a database that knows an app with a subscription and a drainer, and its events."""
    url = introduced(_introduce)
    ledger.app.configure(url=url)
    return url


async def _introduce(url: str) -> None:
    ledger.app.configure(url=url)
    async with ledger.app.worker():
        await subscribe(ledger.app, "greeting", "user.*", "greet")


@pytest.fixture
def ids(url: str) -> list[str]:
    """A healthy event and a poisoned one for the subscription, and one for each fate of an invoice."""
    payloads: list[tuple[str, dict[str, Any]]] = [
        ("user.joined", {"name": "Ada"}),
        ("user.joined", {}),
        ("invoice.paid", {"total": 1}),
        ("invoice.paid", {}),
    ]
    events = [an_event(kind, payload, ("thing", str(place))) for place, (kind, payload) in enumerate(payloads)]
    return asyncio.run(record(App(url), *events))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str):
    """Each has a help text, and the group is in the program's."""
    assert f"Usage: ostinato drainers {command}" in Cli().does("drainers", command, "--help")
    assert "  drainers " in Cli().does("--help")


def test_drainers_are_listed_and_shown(cli: Cli, ids: list[str]):
    """With lag and position, for people and as JSON."""
    header, *lines = cli.does("drainers", "list").splitlines()
    assert header.split()[:5] == ["drainer", "events", "lag", "processed", "parked"]
    assert [line.split()[:5] for line in lines] == [
        ["workflow_runner", "**", "4", "0", "0"],
        ["billing", "invoice.*", "4", "0", "0"],
    ]
    built_in, billing = cli.reads("drainers", "list")
    assert (built_in["name"], built_in["origin"], built_in["lag"]) == ("workflow_runner", "built-in", 4)
    assert cli.reads("drainers", "show", "billing") == billing
    shown = cli.does("drainers", "show", "billing")
    for piece in ("4 before the end", "tests.cli.apps.ledger:billing", "invoice.*"):
        assert piece in shown
    assert "did you mean 'billing'" in cli.fails("drainers", "show", "biling")


def test_no_drainers(empty_url: str):
    """An empty list says how they come to be."""
    asyncio.run(App(empty_url).migrations().up())
    result = Cli(empty_url)("drainers", "list")
    assert (0, "") == (result.exit_code, result.stdout)
    assert "ostinato worker" in result.stderr
    assert Cli(empty_url).reads("drainers", "list") == []


def test_draining_without_the_app(cli: Cli, ids: list[str]):
    """The built-in drainer needs none; what input a function takes is then found out when it starts."""
    drained = cli.reads("drainers", "drain", "workflow_runner")
    assert (drained["processed"], drained["parked"], drained["skipped_due_to_lock"]) == (4, 0, False)
    assert [ids[0], ids[1]] == [trigger["event_id"] for trigger in drained["triggered"]]


def test_draining_with_the_app(cli: Cli, ids: list[str]):
    """It knows the input of its functions, so the poisoned event is parked; a handler that raises ends it with 1."""
    assert "5 events processed, 1 runs started, 1 parked" in cli.does(*LEDGER, "drainers", "drain", "workflow_runner")
    (parked,) = cli.reads("drainers", "parked")
    assert (parked["subscription"], parked["event_id"], parked["code"]) == ("greeting", ids[1], "invalid_input")
    assert f"greeting      {ids[1]}" in cli.does("drainers", "parked", "greeting")
    assert cli.does(*LEDGER, "drainers", "retry") == "0 let go, 0 runs started, 1 still parked\n"
    assert "no event 'nothing' is parked" in cli.fails("drainers", "retry", "--event", "nothing")
    assert cli.does("drainers", "discard", "greeting") == "1 discarded\n"
    assert cli.does("drainers", "discard", "greeting") == "0 discarded\n"
    assert "did you mean 'greeting'" in cli.fails("drainers", "discard", "greting")
    assert "nothing is parked" in cli("drainers", "parked").stderr
    assert f"halted on event {ids[3]}: ValueError" in cli.fails(*LEDGER, "drainers", "drain", "billing")
    assert cli.reads("drainers", "show", "billing")["halted_on"] == ids[3]
    assert f"halted on {ids[3]}" in cli.does("drainers", "list")
    assert "tests.cli.apps.ledger:billing handles its events" in cli.fails("drainers", "drain", "billing")


def test_resetting(cli: Cli, ids: list[str]):
    """To words, moments and tokens; a dry run only counts."""
    token = cli.reads("drainers", "show", "billing")["token"]
    assert cli.does("drainers", "reset", "billing", "--to", "now") == "billing reads 0 events from there\n"
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    dry = cli.does("drainers", "reset", "billing", "--to", past, "--dry-run")
    assert dry == "billing would read 4 events from there\n"
    assert cli.reads("drainers", "show", "billing")["lag"] == 0
    assert cli.does("drainers", "reset", "billing", "--to", token) == "billing reads 4 events from there\n"
    assert "is no token of a drainer" in cli.fails("drainers", "reset", "billing", "--to", "elsewhere")
    assert "is no moment" in cli.fails("drainers", "reset", "billing", "--to", "2026-99", code=2)


def test_replaying(cli: Cli, ids: list[str]):
    """Without --go it only counts."""
    dry = cli(*LEDGER, "drainers", "replay", "greeting")
    assert dry.stdout == "would start 1 of greet for 2 events, 1 refused\n"
    assert "add --go" in dry.stderr
    assert cli.does(*LEDGER, "drainers", "replay", "greeting", "--since", "1h").startswith("would start 1 of greet")
    assert "for 0 events" in cli.does(*LEDGER, "drainers", "replay", "greeting", "--until", "1h")
    assert "is no moment" in cli.fails("drainers", "replay", "greeting", "--since", "yesterday", code=2)
    assert cli.reads("runs", "list") == []
    done = cli.reads(*LEDGER, "drainers", "replay", "greeting", "--go", "--name", "fix")
    assert (done["runs"], done["refused"], done["refusals"][0]["event_id"]) == (1, 1, ids[1])
    (run,) = cli.reads("runs", "list")
    assert cli.reads("runs", "show", run["id"])["metadata"] == {"replay": "fix"}


def test_reading_from_outside(cli: Cli, ids: list[str]):
    """Read, acknowledge once, and be done."""
    assert cli.does("drainers", "add", "warehouse", "--on", "invoice.*") == "warehouse 4 before the end\n"
    read = cli.reads("drainers", "read", "warehouse")
    assert f"{ids[2]}  invoice.paid  thing 2" in cli.does("drainers", "read", "warehouse")
    assert ids[2:] == [event["id"] for event in read["events"]]
    assert cli.does("drainers", "ack", "warehouse", read["token"]) == "warehouse acknowledged\n"
    assert "read again" in cli.fails("drainers", "ack", "warehouse", read["token"])
    assert cli.reads("drainers", "read", "warehouse") == {"events": [], "token": None}
    assert cli.does("drainers", "remove", "warehouse") == "warehouse removed\n"
    assert "no drainer is named 'warehouse'" in cli.fails("drainers", "read", "warehouse")
