"""`ostinato events`, and `ostinato record`."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from msgspec import json

from tests.cli.conftest import Cli, Introduced
from tests.cli.processes import program


@pytest.fixture
def url(introduced: Introduced) -> str:
    """The URL of a database with tables; nobody has worked there."""
    return introduced(None)


@pytest.mark.parametrize("command", ["record", "recent", "show", "trace", "types", "tail", "match"])
def test_every_command_explains_itself(command: str):
    """Each has a help text, and the group and its short form are in the program's."""
    assert f"Usage: ostinato events {command}" in Cli().does("events", command, "--help")
    assert "Usage: ostinato record" in Cli().does("record", "--help")
    assert {"record", "events"} <= {line.split()[0] for line in Cli().does("--help").splitlines() if line.strip()}


def test_an_event_is_recorded_and_shown(cli: Cli):
    """Its id is printed; a key that was used gives the first one's."""
    options = ["--entity", "product", "42", "--key", "k", "--source", "shop", "--caused-by", "sync:tier=gold"]
    event_id = cli.does(
        "record", "price.changed", '{"price": 7}', *options, "--occurred-at", "2027-01-31T09:00:00Z"
    ).strip()
    assert cli.does("events", "record", "price.changed", "-", "--key", "k", stdin="[1]").strip() == event_id

    shown = cli.does("events", "show", event_id)
    for piece in (event_id, "price.changed", "product 42", "shop", "sync:tier=gold", '"price": 7', "2027-01-31 09:00"):
        assert piece in shown
    event = cli.reads("events", "show", event_id)
    assert (event["payload"], event["idempotency_key"]) == ({"price": 7}, "k")
    assert event["occurred_at"] == "2027-01-31T09:00:00Z"
    assert cli.reads("record", "price.changed", "--key", "k") == event


def test_recent_events_and_types(cli: Cli):
    """Tables for people, JSON for programs, and a note where there is nothing."""
    assert "record one: ostinato record" in cli("events", "types").stderr
    assert "no events" in cli("events", "recent").stderr
    for number in range(3):
        cli.does("record", "price.changed", f'{{"n": {number}}}', "--entity", "product", str(number))
    cli.does("record", "stock.low", '"text"', "--source", "shop")

    header, first, *_ = cli.does("events", "recent").splitlines()
    assert header.split() == ["event", "type", "entity", "source", "recorded", "payload"]
    assert first.split()[1:] == ["stock.low", "-", "shop", "now", '"text"'] or "ago" in first
    assert [event["payload"]["n"] for event in cli.reads("events", "recent", "price.*", "--limit", "2")] == [2, 1]
    assert [event["payload"]["n"] for event in cli.reads("events", "recent", "--entity", "product", "1")] == [1]
    assert len(cli.reads("events", "recent", "--source", "shop", "--since", "10m")) == 1
    assert cli.reads("events", "recent", "--since", "2100-01-01T00:00:00Z") == []

    lines = [line.split() for line in cli.does("events", "types").splitlines()]
    assert [line[:3] for line in lines[1:]] == [["price.changed", "-", "3"], ["stock.low", "shop", "1"]]
    assert [(each["type"], each["count"]) for each in cli.reads("events", "types")] == [
        ("price.changed", 3),
        ("stock.low", 1),
    ]


def test_a_chain_is_traced(cli: Cli):
    """What was before it is above it, and what came of it below."""
    ids = [cli.does("record", "first").strip()]
    for name in ("second", "third"):
        ids.append(cli.does("record", name, "--caused-by", f"event:{ids[-1]}").strip())
    lines = cli.does("events", "trace", ids[1]).splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["event", name, event_id] for name, event_id in zip(["first", "second", "third"], ids, strict=True)
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4]
    assert lines[1].endswith("<")
    trace = cli.reads("events", "trace", ids[1])
    assert ([ids[0]], [ids[2]]) == tuple([each["id"] for each in trace[part]] for part in ("ancestors", "descendants"))


def test_what_cannot_be_is_refused_in_one_line(cli: Cli, module: Callable[[str, str], None]):
    """With the remedy; nothing is recorded."""
    assert "without * and spaces" in cli.fails("record", "price.*")
    assert "is not JSON" in cli.fails("record", "a", "{", code=2)
    assert "names no instant without a time zone" in cli.fails(
        "record", "a", "--occurred-at", "2027-01-01T00:00", code=2
    )
    assert "the ledger has no event 'nope'" in cli.fails("events", "show", "nope")
    assert "the token is none" in cli.fails("events", "tail", "--token", "nope")
    assert "has an empty segment" in cli.fails("events", "recent", "price.")
    module("shop", "from ostinato import App\napp = App()\napp.event('price.changed', dict[str, int])\n")
    said = cli.fails("--app", "shop:app", "record", "price.changed", '{"price": "dear"}')
    assert "payload of 'price.changed': $[...]: Expected `int`, got `str`" in said
    assert cli.reads("events", "recent") == []


def test_events_are_followed_in_a_terminal_and_gone_on_with(url: str, cli: Cli):
    """Those that match, as they come; with the last token nothing is left out and nothing comes twice."""
    cli.does("record", "price.before")
    with program("events", "tail", "price.*", "--json", "--database-url", url) as tail:
        tail.until("following price.*")
        cli.does("record", "price.changed", "1")
        cli.does("record", "stock.low")
        cli.does("record", "price.changed", "2")
        first, second = (json.decode(tail.until("price.changed")) for _ in range(2))
        assert (first["payload"], second["payload"]) == (1, 2)
        tail.signal(signal.SIGINT)
        assert tail.ended() == 0
        assert "Traceback" not in tail.output
    cli.does("record", "price.changed", "3", "--entity", "product", "1")
    lines = cli.does("events", "tail", "--token", first["token"], "--limit", "3").splitlines()
    assert [line.split("  ")[2:] for line in lines] == [
        ["stock.low", "{}"],
        ["price.changed", "2"],
        ["price.changed", "product 1", "3"],
    ]
    assert len(cli.does("events", "tail", "price.*", "--from-beginning", "--limit", "4").splitlines()) == 4
