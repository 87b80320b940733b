"""The guide to testing is a project whose tests pass."""

from __future__ import annotations

import re

import pytest

from ostinato.testing import PostgresServers, plugin
from tests.docs.documents import ROOT

pytest_plugins = ["pytester"]

GUIDE = (ROOT / "docs/guides/testing.md").read_text(encoding="utf-8")
FILES = re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_project_of_the_guide_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ostinato_servers: PostgresServers, kind: str
):
    """All its files together, on each database."""
    monkeypatch.setenv("OSTINATO_TEST_DSN", ostinato_servers(max(ostinato_servers.versions)).dsn())
    for name, text in FILES:
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error", "--ostinato-database", kind)

    result.assert_outcomes(passed=sum(text.count("def test_") for _, text in FILES))


def test_every_fixture_is_in_the_guide():
    """In its table."""
    names = [name for name in vars(plugin) if name.startswith("ostinato_")]
    rows = [line.split("|")[1] for line in GUIDE.splitlines() if line.startswith("| `ostinato_")]
    assert sorted(names) == sorted(name for row in rows for name in re.findall(r"\w+", row))
