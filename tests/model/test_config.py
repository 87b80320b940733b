"""Settings: flag > argument > environment > pyproject.toml > default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ostinato import App, ConfigError, Queue, Retention
from ostinato.config import (
    DEFAULT_CONCURRENCY,
    DEFAULT_URL,
    Settings,
    changed,
    dialect_of,
    queues_from,
    redacted,
    retention_from,
    settle,
)
from ostinato.engine.door import NO_OPTIONS

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither this machine's environment nor the project's own pyproject.toml."""
    for name in list(os.environ):
        if name.startswith("OSTINATO_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def project(text: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.ostinato]\n{text}\n")


# --- precedence


def test_defaults():
    """An app without any settings works on a file in the current folder."""
    assert Settings() == settle({})
    assert settle({}).url == DEFAULT_URL
    assert {"default": Queue(DEFAULT_CONCURRENCY)} == settle({}).queues


def test_each_source_wins_over_the_next(monkeypatch: pytest.MonkeyPatch):
    """pyproject.toml, environment, argument, flag."""
    project('lease = "11s"')
    assert settle({}).lease == 11.0
    monkeypatch.setenv("OSTINATO_LEASE", "12s")
    assert settle({}).lease == 12.0
    assert settle({"lease": "13s"}).lease == 13.0
    assert changed(settle({"lease": "13s"}), {"lease": "14s"}).lease == 14.0


def test_what_is_not_given_does_not_win(monkeypatch: pytest.MonkeyPatch):
    """None is no argument and no flag, and an empty variable is none."""
    project('lease = "11s"')
    monkeypatch.setenv("OSTINATO_LEASE", "")
    settings = settle({"lease": None})
    assert settings.lease == 11.0
    assert settings == changed(settings, {"lease": None})


def test_false_is_given(monkeypatch: pytest.MonkeyPatch):
    """A switch that is off is not a switch that is not given."""
    monkeypatch.setenv("OSTINATO_NOTIFY", "on")
    assert settle({"notify": False}).notify is False
    assert changed(Settings(), {"notify": False}).notify is False


def test_the_database_comes_from_its_own_variable_before_the_general_one(monkeypatch: pytest.MonkeyPatch):
    """$OSTINATO_DATABASE_URL, then $DATABASE_URL."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://general/db")
    assert settle({}).url == "postgresql://general/db"
    monkeypatch.setenv("OSTINATO_DATABASE_URL", "postgresql://own/db")
    assert settle({}).url == "postgresql://own/db"


def test_pyproject_writes_names_with_hyphens_or_underscores():
    """And the database as `database-url`."""
    project('shutdown-grace = "5s"\ndatabase-url = "sqlite:///here.db"\ninput_limit = 99')
    settings = settle({})
    assert (settings.shutdown_grace, settings.url, settings.input_limit) == (5.0, "sqlite:///here.db", 99)


def test_pyproject_has_tables_for_queues_and_retention():
    """As TOML writes them."""
    project(
        "[tool.ostinato.queues]\nmail = 5\nbulk = {concurrency = 2, max_waiting = 9}\n"
        '[tool.ostinato.retention]\nfailed = "1d"'
    )
    settings = settle({})
    assert {"mail": Queue(5), "bulk": Queue(2, 9)} == settings.queues
    assert Retention(failed=86400.0) == settings.retention


def test_a_broken_pyproject_is_named():
    """With the place of the mistake."""
    project("lease = ")
    with pytest.raises(ConfigError, match=r"^pyproject\.toml cannot be read: .*line 2"):
        settle({})


def test_a_misspelt_setting_in_pyproject_is_refused():
    """It would be ignored otherwise, and nobody would know."""
    project('leese = "11s"')
    with pytest.raises(ConfigError, match="leese"):
        settle({})


def test_everything_can_be_said_in_the_environment(monkeypatch: pytest.MonkeyPatch):
    """Each setting has a variable of its name."""
    given = {
        "SCHEMA": "jobs",
        "QUEUES": "default:10,mail",
        "LEASE": "10s",
        "POLL": "5s",
        "NOTIFY": "off",
        "LISTEN_URL": "postgresql://direct/db",
        "SHUTDOWN_GRACE": "3s",
        "RETENTION": "2d",
        "INPUT_LIMIT": "2048",
        "STEP_LIMIT": "4096",
        "STEPS_LIMIT": "8192",
    }
    for name, value in given.items():
        monkeypatch.setenv(f"OSTINATO_{name}", value)
    assert Settings(
        schema="jobs",
        queues={"default": Queue(10), "mail": Queue(DEFAULT_CONCURRENCY)},
        lease=10.0,
        poll=5.0,
        notify=False,
        listen_url="postgresql://direct/db",
        shutdown_grace=3.0,
        retention=Retention(172800.0, 172800.0, 172800.0),
        input_limit=2048,
        step_limit=4096,
        steps_limit=8192,
    ) == settle({})


def test_flags_reach_everything_the_app_has_made_already():
    """`configure` comes after the app was built, and its limit of inputs counts at the door."""
    app = App("sqlite:///x.db")
    app.configure(input_limit=10, lease="5s")
    assert app.settings.lease == 5.0
    with pytest.raises(ValueError, match="may have 10"):
        app._site.door.many("f", [{"text": "much too long"}], NO_OPTIONS, invoked_by="api")


def test_an_unknown_flag_is_refused_by_name():
    """Not with a bare KeyError."""
    with pytest.raises(ConfigError, match="leese"):
        changed(Settings(), {"leese": 5})


# --- single settings


@pytest.mark.parametrize(
    ("written", "expected"), [("on", True), ("TRUE", True), ("1", True), ("no", False), ("off", False)]
)
def test_switches_are_written_in_words(written: str, expected: bool):
    """In the environment there are no booleans."""
    assert expected is settle({"notify": written}).notify


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"notify": "maybe"}, "notify='maybe' must be on or off"),
        ({"lease": "soon"}, "lease: 'soon' is not a duration"),
        ({"lease": "500ms"}, "lease=0.5s is shorter than 1.0s"),
        ({"poll": 0}, "poll must be longer than zero"),
        ({"input_limit": "big"}, "input_limit='big' must be a number of bytes"),
        ({"input_limit": -1}, "input_limit=-1 must be"),
        ({"url": 5}, "url=5 must be text"),
        ({"url": "mysql://host/db"}, "'mysql://host/db' is not a database URL; use postgresql://"),
        ({"url": ""}, "'' is not a database URL"),
        ({"listen_url": "mysql://host/db"}, "'mysql://host/db' is not a database URL"),
        ({"queues": {}}, "must name at least one queue"),
        ({"queues": {"default": 0}}, "concurrency of queue 'default' is 0 and must be a whole number of at least 1"),
        ({"queues": {"a:b": 1}}, "queue 'a:b' must be a name"),
        ({"retention": "long"}, "retention: 'long' is not a duration"),
        ({"retention": {"ready": "1d"}}, r"retention: \['ready'\] cannot be kept; what can be is completed, failed, "),
        ({"retention": {"failed": "long"}}, "retention of failed: 'long' is not a duration"),
    ],
)
def test_bad_settings_are_refused_by_name(given: dict[str, Any], message: str):
    """The error names the setting, the value and what it may be."""
    with pytest.raises(ConfigError, match=message):
        settle(given)


# --- queues


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("default:10,mail:5", {"default": Queue(10), "mail": Queue(5)}),
        (" default : 10 , mail ", {"default": Queue(10), "mail": Queue(DEFAULT_CONCURRENCY)}),
        ({"default": 3}, {"default": Queue(3)}),
        ({"default": Queue(3, max_waiting=10)}, {"default": Queue(3, 10)}),
        ({"default": {"max_waiting": 10}}, {"default": Queue(DEFAULT_CONCURRENCY, 10)}),
    ],
)
def test_queues_are_written_in_many_ways(written: Any, expected: dict[str, Queue]):
    """As text on a command line, as mappings in code."""
    assert expected == queues_from(written)


@pytest.mark.parametrize("written", ["", ",", "default:x", "default:1:2", [], None, 5, {"": 1}, {"a": Queue(0)}])
def test_queues_that_make_no_sense_are_refused(written: Any):
    """Nothing is guessed."""
    with pytest.raises(ConfigError, match="queue"):
        queues_from(written)


@pytest.mark.parametrize("concurrency", [1.5, True, "1.5", -1, None])
def test_concurrency_is_a_whole_number(concurrency: Any):
    """Half a run cannot be executed."""
    with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
        queues_from({"default": concurrency})


def test_max_waiting_is_a_whole_number():
    """A cap of zero would refuse everything."""
    with pytest.raises(ConfigError, match="max_waiting of queue 'default' is 0 and must be a whole number"):
        queues_from({"default": {"max_waiting": 0}})


# --- retention


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("7d", Retention(604800.0, 604800.0, 604800.0)),
        ("forever", Retention(None, None, None)),
        ({"completed": "1h", "failed": None}, Retention(completed=3600.0, failed=None)),
        ({"cancelled": "forever"}, Retention(cancelled=None)),
        (0, Retention(0.0, 0.0, 0.0)),
        (Retention(1.0, 2.0, 3.0), Retention(1.0, 2.0, 3.0)),
    ],
)
def test_retention_is_one_duration_or_one_for_each_state(written: Any, expected: Retention):
    """States that are not named keep their default."""
    assert expected == retention_from(written)


def test_retention_with_durations_as_people_write_them():
    """`Retention("7d")` is what one would write."""
    assert retention_from(Retention(completed="7d")).completed == 604800.0


# --- URLs


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("postgresql://host/db", "postgresql"),
        ("postgres://host/db", "postgresql"),
        ("sqlite:///file.db", "sqlite"),
    ],
)
def test_the_url_names_the_database(url: str, dialect: str):
    """By its scheme alone."""
    assert dialect == dialect_of(url)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@host/db",
        f"postgresql://:{SECRET}@host/db",
        f"postgresql://user:x@{SECRET}@host/db",
        f"postgresql://user:{SECRET}@[::1]:5432/db?sslmode=require",
        f"postgresql://user@host/db?password={SECRET}&sslmode=require",
        f"mysql://user:{SECRET}@host/db",
        f"mysql://user:{SECRET}@[bad/db",
        f"host=localhost password={SECRET} dbname=radio",
    ],
)
def test_passwords_are_never_shown(url: str):
    """Not in logs, and not in the errors about the URL itself."""
    assert SECRET not in redacted(url)
    with pytest.raises(ConfigError) as caught:
        dialect_of(url.replace("postgresql", "mysql"))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://user@host:5432/db", "sqlite:///a@b:c.db", "sqlite:////var/lib/x.db"])
def test_a_url_without_a_password_is_shown_as_it_is(url: str):
    """Nothing else is hidden."""
    assert url == redacted(url)


def test_events_are_kept_for_ever_unless_they_are_named():
    """One duration for all is for runs."""
    assert Retention().events_limit() is None
    assert retention_from("7d").events_limit() is None
    assert retention_from({"events": "1d"}).events_limit() == (86400.0, None)
    assert retention_from({"events": "1d", "unread_events": "2d"}).events_limit() == (86400.0, 172800.0)
