"""The plugin in a user's project, as pytest itself sees it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.testing import PostgresServers, plugin

pytest_plugins = ["pytester"]

RADIO = """
from ostinato import App, Retry, Run
from ostinato.sync import Client

app = App("sqlite:////nowhere/at/all.db")
client = Client(app)


@app.function(retry=Retry("30s"))
async def enrich(track_id: str) -> str:
    if track_id == "bad":
        raise ValueError("no such track")
    await announce.enqueue(track_id=track_id)
    return "Moon Pix"


@app.function
def announce(track_id: str) -> str:
    return f"track {track_id}"
"""

SETTINGS = """
[pytest]
pythonpath = .
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
ostinato_app = radio:app
"""

ASYNC = """
from radio import enrich, app
from ostinato.telemetry import RunCompleted

async def test_drain(ostinato_app, ostinato_drain, ostinato_probe):
    assert ostinato_app is app
    run = await enrich.options(key="only").enqueue(track_id="42")
    assert run.created
    assert ["Moon Pix", "track 42"] == [ran.output for ran in await ostinato_drain(check=True)]
    assert 2 == len(ostinato_probe.seen(RunCompleted))

async def test_another_database(ostinato_app, ostinato_drain, ostinato_probe):
    assert [] == await ostinato_drain()
    assert [] == list(await app.runs.list())
    assert [] == ostinato_probe.seen(RunCompleted)

async def test_clock(ostinato_app, ostinato_drain, ostinato_clock):
    before = ostinato_clock.now()
    await enrich.enqueue(track_id="bad")
    assert ["held", "failed"] == [ran.state for ran in await ostinato_drain(until="1m")]
    assert 60 <= (ostinato_clock.now() - before).total_seconds() < 90

async def test_worker(ostinato_app, ostinato_probe):
    async with ostinato_app.worker():
        run = await enrich.enqueue(track_id="42")
        await ostinato_probe.next(RunCompleted, run_id=run.id)
"""

SYNC = """
from radio import announce, app, client

def test_a_client_of_the_module(ostinato_app, ostinato_drain):
    run = client.enqueue(announce, {"track_id": "42"})
    assert ["track 42"] == [ran.output for ran in ostinato_drain.sync(check=True)]
    assert "track 42" == run.result()

def test_the_same_client_on_another_database(ostinato_app, ostinato_drain):
    assert [] == client.runs.list()
    client.enqueue("announce", {"track_id": "43"})
    assert 1 == len(ostinato_drain.sync())

def test_a_client_of_the_plugin(ostinato_client, ostinato_drain):
    ostinato_client.enqueue("announce", {"track_id": "44"})
    assert ["track 44"] == [ran.output for ran in ostinato_drain.sync()]
    assert ["completed"] == [run.state for run in ostinato_client.runs.list()]
"""


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ostinato_servers: PostgresServers
) -> pytest.Pytester:
    """A user's project; its PostgreSQL is the one of these tests, so that none is started for each."""
    monkeypatch.setenv("OSTINATO_TEST_DSN", ostinato_servers(max(ostinato_servers.versions)).dsn())
    pytester.makepyfile(radio=RADIO)
    pytester.makefile(".ini", pytest=SETTINGS)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("tests", [ASYNC, SYNC], ids=["async", "sync"])
def test_a_projects_tests(project: pytest.Pytester, tests: str, kind: str):
    """An app of a module is on a database of each test's own, and everything about it works there. A module's client
    lives as long as its process, so that is one of its own."""
    project.makepyfile(test_radio=tests)

    result = project.runpytest_subprocess("-p", "no:cacheprovider", "--ostinato-database", kind)

    result.assert_outcomes(passed=tests.count("def test_"))


def test_the_app_is_given_back(project: pytest.Pytester):
    """After the tests it is where it was."""
    project.makepyfile(
        test_radio="""
        import radio

        def test_bound(ostinato_app):
            assert "nowhere" not in radio.app.settings.url

        def test_not_bound():
            assert "sqlite:////nowhere/at/all.db" == radio.app.settings.url
        """
    )

    run(project).assert_outcomes(passed=2)


def test_on_several_databases_each_test_runs_on_each(project: pytest.Pytester):
    """Those that use none run once, and so do those whose database is chosen for them."""
    project.makepyfile(
        """
        import pytest

        def test_any(ostinato_app): ...
        def test_none(): ...
        def test_a_server(ostinato_postgres):
            assert ostinato_postgres.startswith("postgresql")

        @pytest.mark.parametrize("ostinato_database", ["sqlite"])
        def test_chosen(ostinato_url):
            assert ostinato_url.startswith("sqlite")
        """
    )
    project.makefile(".ini", pytest=f"{SETTINGS}ostinato_database = sqlite postgresql\n")

    result = run(project, "-v")

    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*test_any?sqlite?*", "*test_any?postgresql?*", "*test_none PASSED*"])
    again = run(project, "--ostinato-database", "sqlite")
    again.assert_outcomes(passed=4)


def test_a_failure_shows_the_handlers_line(project: pytest.Pytester):
    """And the run it was in, and none of the engine's frames."""
    project.makepyfile(
        """
        import radio

        async def test_bad(ostinato_app, ostinato_drain):
            await radio.enrich.enqueue(track_id="bad")
            await ostinato_drain(check=True)

        def test_plain(ostinato_client, ostinato_drain):
            ostinato_client.enqueue("enrich", {"track_id": "bad"})
            ostinato_drain.sync(check=True)
        """
    )

    result = run(project)

    result.assert_outcomes(failed=2)
    for _ in range(2):
        result.stdout.fnmatch_lines(
            [
                '>*raise ValueError("no such track")',
                "E *ValueError: no such track",
                "E *in run * of 'enrich', attempt 1, input {'track_id': 'bad'}",
                "*WARNING*job_failed*job_type=enrich*",
            ]
        )
    for frame in ("executor.py", "draining.py", "runners.py"):
        result.stdout.no_fnmatch_line(f"*{frame}:*")


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("ostinato_app = radio:nothing", "*ostinato_app = radio:nothing: *has no attribute 'nothing'*like radio:app*"),
        ("ostinato_app = nowhere", "*ostinato_app = nowhere: No module named 'nowhere'*"),
        ("ostinato_app = radio:enrich", "*ostinato_app = radio:enrich is a Function, not an App*"),
    ],
)
def test_an_app_that_cannot_be_found_is_an_error(project: pytest.Pytester, setting: str, complaint: str):
    """That says what was looked for."""
    project.makepyfile("def test_any(ostinato_app): ...")
    project.makefile(".ini", pytest=SETTINGS.replace("ostinato_app = radio:app", setting))

    result = run(project)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([complaint])


def test_a_database_that_cannot_be_meant_is_refused_at_once(project: pytest.Pytester):
    """Before any test runs."""
    result = run(project, "--ostinato-database", "mysql")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["ERROR: --ostinato-database: 'mysql' is no database for tests; write sqlite*"])


def test_without_a_setting_there_is_an_app_without_functions(project: pytest.Pytester):
    project.makepyfile(
        """
        async def test_any(ostinato_app, ostinato_drain):
            @ostinato_app.function
            async def ping(): return "pong"
            await ping.enqueue()
            assert ["pong"] == [ran.output for ran in await ostinato_drain()]
        """
    )
    project.makefile(".ini", pytest=SETTINGS.replace("ostinato_app = radio:app", ""))

    run(project).assert_outcomes(passed=1)


def test_a_server_of_its_own_is_started_and_ended(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """As in a project where nobody has said where there is one."""
    monkeypatch.delenv("OSTINATO_TEST_DSN")
    project.makepyfile(
        """
        from pathlib import Path

        def test_any(ostinato_url, ostinato_servers):
            (server,) = ostinato_servers._started.values()
            Path("folder").write_text(str(server.socket_dir))
        """
    )

    result = run(project, "--ostinato-database", "postgresql")

    result.assert_outcomes(passed=1)
    assert not Path((project.path / "folder").read_text()).exists()


class TestLoading:
    def test_it_costs_nothing_until_a_fixture_is_used(self, project: pytest.Pytester):
        """The plugin is loaded in every project; it imports nothing of the engine."""
        project.makepyfile(
            """
            import sys

            def test_none():
                loaded = {name for name in sys.modules if name.startswith("ostinato.")}
                assert loaded == {"ostinato.testing", "ostinato.testing.plugin"}
            """
        )

        result = project.runpytest_subprocess("-p", "no:cacheprovider")

        result.assert_outcomes(passed=1)

    def test_its_parts_need_no_pytest(self):
        """Which is no dependency of Ostinato's."""
        script = (
            "import sys; sys.modules['pytest'] = None\n"
            "import ostinato.testing\n"
            "for name in ostinato.testing.__all__: getattr(ostinato.testing, name)"
        )

        subprocess.run([sys.executable, "-c", script], check=True)

    def test_every_fixture_is_described(self, project: pytest.Pytester):
        """`pytest --fixtures` says what they are for."""
        result = run(project, "--fixtures")

        lines = [line for line in result.outlines if line.startswith("ostinato_")]
        public = [name for name, value in vars(plugin).items() if name.startswith("ostinato_")]
        assert sorted(public) == sorted(line.split()[0] for line in lines)
        assert all(inspect.getdoc(getattr(plugin, name)) for name in public)
