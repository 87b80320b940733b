"""What `@app.cron` takes, and what it refuses at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from msgspec import Struct
from pydantic import BaseModel

from ostinato import App, ConfigError, Function, Retry, Run
from ostinato.model.schedule import Missed, Schedule


@pytest.fixture
def app() -> App:
    return App("sqlite:///never-opened.db")


def the_schedule(app: App, name: str) -> Schedule:
    return app.registry.schedules[name]


def test_a_handler_becomes_a_function_with_a_schedule(app: App):
    """Both under the handler's name; it can still be called and enqueued."""

    @app.cron("0 3 * * *", tz="Europe/Paris")
    def nightly() -> str:
        return "done"

    assert isinstance(nightly, Function)
    assert nightly() == "done"
    assert app.registry.find("nightly") is nightly.spec
    schedule = the_schedule(app, "nightly")
    assert (schedule.function, schedule.expression, schedule.tz) == ("nightly", "0 3 * * *", "Europe/Paris")
    assert (schedule.missed, schedule.catch_up, schedule.jitter) == (Missed.ONCE, 86400.0, 0.0)
    assert schedule.origin.startswith(f"{__name__}:test_a_handler")


def test_the_functions_options_can_be_given(app: App):
    """As to @app.function."""

    @app.cron("@daily", name="night", queue="slow", retry=Retry.none(), timeout="5m", priority=7, version="2")
    async def nightly(): ...

    spec = nightly.spec
    assert (spec.name, spec.queue, spec.retry, spec.timeout, spec.priority, spec.version) == (
        "night",
        "slow",
        Retry.none(),
        300.0,
        7,
        "2",
    )
    assert (the_schedule(app, "night").function, the_schedule(app, "night").priority) == ("night", 7)


def test_a_function_may_have_several_schedules(app: App):
    """Each with a name and an input of its own."""

    @app.cron("0 15 * * *", name="afternoon", input={"tier": "silver"}, missed="skip", jitter="30s", catch_up="2h")
    @app.cron("0 3 * * *", name="night", input={"tier": "gold"}, missed="all")
    @app.function(priority=5)
    async def sync(tier: str): ...

    assert sync.name == "sync"
    assert {name: each.function for name, each in app.registry.schedules.items()} == {
        "night": "sync",
        "afternoon": "sync",
    }
    afternoon = the_schedule(app, "afternoon")
    assert (bytes(afternoon.input), afternoon.missed, afternoon.jitter, afternoon.catch_up, afternoon.priority) == (
        b'{"tier":"silver"}',
        Missed.SKIP,
        30.0,
        7200.0,
        5,
    )


def test_a_function_that_is_there_can_be_scheduled_later(app: App):
    """Without decorating it."""

    @app.function
    async def sync(): ...

    assert app.cron("@hourly")(sync) is sync
    assert the_schedule(app, "sync").function == "sync"


class WithSlot(Struct):
    scheduled_at: datetime
    n: int = 0


@dataclass
class DataWithSlot:
    scheduled_at: datetime


class ModelWithSlot(BaseModel):
    scheduled_at: datetime


class Without(Struct):
    n: int = 0


def keyword(scheduled_at: datetime) -> None: ...
def optional(run: Run, *, scheduled_at: datetime | None = None, n: int = 0) -> None: ...
def unannotated(scheduled_at) -> None: ...
def struct(given: WithSlot) -> None: ...
def data(given: DataWithSlot) -> None: ...
def model(given: ModelWithSlot) -> None: ...
def nothing() -> None: ...
def other(given: Without) -> None: ...
def anything(given: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("handler", [keyword, optional, unannotated, struct, data, model])
def test_who_has_a_place_for_the_slot_gets_it(app: App, handler: Any):
    """A parameter `scheduled_at`, or a field of that name."""
    app.cron("@daily")(handler)
    assert the_schedule(app, handler.__name__).gives_slot


@pytest.mark.parametrize("handler", [nothing, other, anything])
def test_who_has_none_gets_none(app: App, handler: Any):
    """Its input is empty."""
    app.cron("@daily")(handler)
    schedule = the_schedule(app, handler.__name__)
    assert (schedule.gives_slot, bytes(schedule.input)) == (False, b"{}")


def test_a_slot_that_is_given_stays(app: App):
    """Who says `scheduled_at` themselves is not overruled."""
    app.cron("@daily", input={"scheduled_at": "2026-01-01T00:00:00Z"})(keyword)
    assert not the_schedule(app, "keyword").gives_slot


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["0 25 * * *"], {}, "schedule 'plain': '0 25 * * *' is not a cron expression: bad hour"),
        (["@daily"], {"tz": "Paris"}, "schedule 'plain': no time zone is named 'Paris'"),
        (["@daily"], {"missed": "twice"}, "schedule 'plain': missed='twice' must be one of skip, once, all"),
        (["@daily"], {"jitter": "soon"}, "schedule 'plain': jitter: 'soon' is not a duration"),
        (["@daily"], {"catch_up": -1}, "schedule 'plain': catch_up: -1 is not a finite time"),
        (["@daily"], {"input": [1]}, "schedule 'plain': input=[1] must be a mapping"),
        (["@daily"], {"input": {"n": object()}}, "schedule 'plain': input: $.n cannot be stored as JSON"),
        (["@daily"], {"input": {"wrong": 1}}, "schedule 'plain': input of 'plain': $: Object contains unknown field"),
        (["@daily"], {"name": "a\nb"}, "must have 1 to 200 printable characters"),
        (["@daily"], {"retry": 3}, "retry=3 must be a Retry"),
    ],
)
def test_bad_declarations_are_refused(app: App, arguments: list[Any], options: dict[str, Any], message: str):
    """With the schedule's name; and neither the function nor the schedule is there."""

    def plain(n: int = 0) -> None: ...

    with pytest.raises(ConfigError) as refused:
        app.cron(*arguments, **options)(plain)
    assert message in str(refused.value)
    assert (app.registry.functions, app.registry.schedules) == ({}, {})


def test_input_that_the_handler_needs_is_missed_at_once(app: App):
    """Not at three in the morning."""

    def needy(tier: str) -> None: ...

    with pytest.raises(ConfigError, match=r"schedule 'needy': .*`tier`; give it with input="):
        app.cron("@daily")(needy)
    assert app.registry.functions == {}


def test_two_schedules_need_two_names(app: App):
    """The remedy is said."""

    @app.cron("@daily")
    async def sync(): ...

    with pytest.raises(ConfigError, match="two schedules are named 'sync'; give one of them another name="):
        app.cron("@hourly")(sync)


def test_a_name_that_another_function_has_is_refused(app: App):
    """And its schedule with it."""

    @app.function
    async def sync(): ...

    with pytest.raises(ConfigError, match="two functions are named 'sync'"):
        app.cron("@daily", name="sync")(nothing)
    assert app.registry.schedules == {}


def test_options_of_a_function_belong_to_its_declaration(app: App):
    """A schedule over it cannot change them."""

    @app.function
    async def sync(): ...

    with pytest.raises(ConfigError, match=r"function 'sync' is declared already; give queue= to @app\.function"):
        app.cron("@daily", queue="slow")(sync)


def test_the_function_of_another_app_is_refused(app: App):
    """Its own app declares its schedules."""

    @App("sqlite:///another.db").function
    async def sync(): ...

    with pytest.raises(ConfigError, match="belongs to another app"):
        app.cron("@daily")(sync)


def test_what_is_no_handler_is_refused(app: App):
    """Such as a function with options."""

    @app.function
    async def sync(): ...

    with pytest.raises(ConfigError, match="neither a handler nor"):
        app.cron("@daily")(sync.options(delay="1h"))  # type: ignore[arg-type]


def test_the_order_of_decorators_is_told(app: App):
    """@app.cron stands above @app.function."""
    with pytest.raises(ConfigError, match=r"put @app\.cron above @app\.function"):

        @app.function
        @app.cron("@daily")
        async def sync(): ...
