"""`ostinato subscriptions`, and `ostinato events match`."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import json

from tests.cli.apps import shop
from tests.cli.conftest import Cli, Introduced

EVENT = {"type": "price.changed", "payload": {"delta": 7}, "entity": ["product", "42"]}


@pytest.fixture
def url(introduced: Introduced) -> str:
    """The URL of a database that knows the subscriptions of an app."""
    url = introduced(_introduce)
    shop.app.configure(url=url)
    return url


async def _introduce(url: str) -> None:
    shop.app.configure(url=url)
    async with shop.app.worker():
        pass


@pytest.mark.parametrize("command", ["list", "add", "enable", "disable", "remove"])
def test_every_command_explains_itself(command: str):
    """Each has a help text, and the group is in the program's."""
    assert f"Usage: ostinato subscriptions {command}" in Cli().does("subscriptions", command, "--help")
    assert "  subscriptions " in Cli().does("--help")


def test_no_subscriptions(tmp_path: Path):
    """An empty list says how to get one."""
    cli = Cli(f"sqlite:///{tmp_path}/empty.db")
    cli.does("migrate", "up")
    result = cli("subscriptions", "list")
    assert (0, "") == (result.exit_code, result.stdout)
    assert "declare one with app.subscribe" in result.stderr
    assert cli.reads("subscriptions", "list") == []


def test_subscriptions_are_listed(cli: Cli):
    """A line for each, with where it comes from."""
    header, archive, prices = cli.does("subscriptions", "list").splitlines()
    assert header.split() == ["subscription", "on", "function", "state", "parked", "filter", "map", "origin"]
    assert archive.split() == [
        "archive:order/**",
        "order/**",
        "archive",
        "enabled",
        "-",
        "-",
        "-",
        "code",
        "tests.cli.apps.shop:archive",
    ]
    for piece in ("enabled", "event.payload.delta > 5", '{ "sku": "$.entity_id",', "code tests.cli.apps.shop:reprice"):
        assert piece in prices
    _, found = cli.reads("subscriptions", "list")
    assert (found["name"], found["glob"], found["function"], found["state"]) == (
        "prices",
        "price.*",
        "reprice",
        "enabled",
    )
    assert found["mapper"] == {"sku": "$.entity_id", "tier": "literal:gold"}


def test_adding_switching_and_removing(cli: Cli):
    """A line for each; what code declares would come back."""
    options = ("--filter", "event.payload.n > 1", "--map", '{"sku": "$.id"}', "--ordered", "--disabled")
    added = cli.does("subscriptions", "add", "stock.*", "reprice", "--name", "stock", *options)
    assert added == "stock disabled\n"
    (stock,) = [each for each in cli.reads("subscriptions", "list") if each["name"] == "stock"]
    assert (stock["filter"], stock["mapper"], stock["ordered"], stock["origin"]) == (
        "event.payload.n > 1",
        {"sku": "$.id"},
        True,
        "runtime",
    )
    assert cli.does("subscriptions", "enable", "stock", "prices") == "stock enabled\nprices enabled\n"
    assert cli.does("subscriptions", "disable", "prices") == "prices disabled\n"
    removed = cli("subscriptions", "remove", "stock", "prices")
    assert (removed.exit_code, removed.stdout) == (0, "stock removed\nprices removed\n")
    assert "code tests.cli.apps.shop:reprice declares prices: a worker that starts brings it back" in removed.stderr
    assert [each["name"] for each in cli.reads("subscriptions", "list")] == ["archive:order/**"]


def test_where_an_added_one_begins(cli: Cli):
    """Now, at the beginning, or at a moment."""
    cli.does("subscriptions", "add", "a", "archive", "--name", "1", "--start-at", "beginning")
    cli.does("subscriptions", "add", "a", "archive", "--name", "2", "--start-at", "2027-01-31T09:00:00Z")
    first, second, *_ = cli.reads("subscriptions", "list")
    assert (first["since_at"], second["since_at"]) == (None, "2027-01-31T09:00:00Z")
    assert "is not a moment" in cli.fails("subscriptions", "add", "a", "archive", "--start-at", "soon", code=2)


def test_what_cannot_be_done(cli: Cli):
    """One line, with the remedy."""
    for args, said in (
        (["add", "a..b", "reprice"], "error: subscription 'reprice:a..b': glob 'a..b' has an empty segment"),
        (["add", "a", "repric"], "error: no function is named 'repric'; did you mean 'reprice'?"),
        (["add", "a", "reprice", "--map", '{"skew": "$.id"}'], "map does not give 'sku'"),
        (["add", "a", "reprice", "--name", "prices"], "a subscription is named 'prices' already"),
        (["enable", "pries"], "error: no subscription is named 'pries'; did you mean 'prices'?"),
        (["remove", "zzz"], "`ostinato subscriptions list` shows those there are"),
    ):
        (line,) = cli.fails("subscriptions", *args).splitlines()
        assert said in line


def test_what_events_would_start(cli: Cli, tmp_path: Path):
    """From a file or stdin, one or several; for people and for programs."""
    file = tmp_path / "events.json"
    file.write_bytes(json.encode([EVENT, {"type": "unheard.of"}]))
    result = cli("events", "match", str(file))
    header, row = result.stdout.splitlines()
    assert header.split() == ["event", "subscription", "function", "outcome", "input"]
    assert row.split(maxsplit=4) == ["price.changed", "prices", "reprice", "start", '{ "sku": "42", "tier": "gold" }']
    assert "unheard.of: no enabled subscription matches it" in result.stderr
    ((found, nothing),) = [cli.reads("events", "match", str(file))]
    assert (found["event"], nothing["matches"]) == (EVENT, [])
    (match,) = found["matches"]
    assert (match["subscription"], match["outcome"], match["input"]) == (
        "prices",
        "start",
        {"sku": "42", "tier": "gold"},
    )
    filtered = cli.does("events", "match", "-", stdin='{"type": "price.changed", "payload": {"delta": 1}}')
    assert filtered.splitlines()[1].split() == ["price.changed", "prices", "reprice", "filtered", "-"]


def test_what_is_no_event(cli: Cli):
    """Says so."""
    assert "is not JSON" in cli.fails("events", "match", "-", stdin="{", code=2)
    assert "required field `type`" in cli.fails("events", "match", "-", stdin='{"payload": 1}')
    assert "an event must be an object" in cli.fails("events", "match", "-", stdin="5")
