"""What the documents say is true: examples run, links lead somewhere, and tables are complete."""

import ast
import asyncio
import inspect
import re
from pathlib import Path

import click
import pytest

from ostinato import App, telemetry
from ostinato.cli import main

from .documents import DOCUMENTS, ROOT, examples, states_page

WITH_CODE = [document for document in DOCUMENTS if any(example.language == "python" for example in examples(document))]


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def run_python(document: Path) -> None:
    """Executes all Python of a document, in order, in one namespace, on one event loop."""
    namespace: dict[str, object] = {"__name__": "example"}
    with asyncio.Runner() as runner:
        for example in (each for each in examples(document) if each.language == "python"):
            source = "\n" * (example.line - 1) + example.text
            awaits = compile(source, str(document), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            outcome = eval(awaits, namespace)
            if inspect.iscoroutine(outcome):
                runner.run(outcome)


@pytest.mark.parametrize("document", WITH_CODE, ids=name_of)
def test_examples_run(document, tmp_path, monkeypatch):
    """Every Python example of a document runs, from the first to the last."""
    monkeypatch.chdir(tmp_path)
    run_python(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(document):
    """A link to a file of the project names a file that exists."""
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", document.read_text(encoding="utf-8"))
    assert [] == [target for target in targets if not (document.parent / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_exist(document):
    """Every `ostinato …` in a console example is a command that exists."""
    consoles = "".join(example.text for example in examples(document) if example.language == "console")
    for word, subcommand in re.findall(r"^\$ ostinato ([a-z]+)(?: ([a-z]+))?", consoles, re.MULTILINE):
        context = click.Context(main)
        command = main.get_command(context, word)
        assert command is not None
        if isinstance(command, click.Group):
            assert command.get_command(context, subcommand) is not None


def test_states_page_is_generated():
    """The page of states is what the table of moves says; `python -m tests.docs` writes it."""
    assert states_page() == (ROOT / "docs/reference/states.md").read_text(encoding="utf-8")


def test_every_setting_is_documented():
    """Each argument of App is in the table of settings, with its environment variable."""
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    arguments = list(inspect.signature(App).parameters)
    assert [] == [name for name in arguments if f"| `{name}` | `OSTINATO_" not in page]


def test_every_event_is_documented():
    """Each telemetry event is in its table, with all of its fields."""
    page = (ROOT / "docs/reference/telemetry.md").read_text(encoding="utf-8")
    kinds = [kind for kind in vars(telemetry).values() if isinstance(kind, type) and issubclass(kind, telemetry.Event)]
    rows = {kind.__name__: ", ".join(f"`{field}`" for field in kind.__struct_fields__) for kind in kinds}
    del rows["Event"]
    assert [] == [
        name for name, fields in rows.items() if not re.search(rf"\| `{name}` .*{re.escape(fields)} \|", page)
    ]
