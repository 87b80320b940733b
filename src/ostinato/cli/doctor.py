"""`ostinato doctor`: what is wrong here, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .options import connection_options, json_option, wait_for, with_app

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..app import App
    from ..resources.doctor import Finding, SelfTest

_COLOURS = {"ok": "green", "note": "blue", "warning": "yellow", "error": "red"}


@click.command(short_help="Look for what is wrong, and say what to do about it.")
@click.option("--self-test", is_flag=True, help="Send a run through, and say how long each stage took.")
@json_option
@connection_options
@with_app
def doctor(app: App, /, self_test: bool, as_json: bool) -> None:
    """Look at the database, its settings, and the work in it; say what is wrong, and what to do about it.

    Nothing is changed. With --self-test a run of a function of its own goes through a queue of its own, by a small
    worker in this process, and is removed afterwards. Exits with 1 if there are errors.
    """
    findings, tested = wait_for(_examine(app, self_test))
    if as_json:
        _print_json(findings, tested)
    else:
        _show(findings, tested)
    if any(finding.level == "error" for finding in findings) or (tested is not None and not tested.passed):
        click.get_current_context().exit(1)


async def _examine(app: App, self_test: bool) -> tuple[Sequence[Finding], SelfTest | None]:
    findings = await app.doctor.examine()
    broken = any(finding.level == "error" and finding.check in ("database", "schema") for finding in findings)
    return findings, await app.doctor.self_test() if self_test and not broken else None


def _print_json(findings: Sequence[Finding], tested: SelfTest | None) -> None:
    from msgspec import json, to_builtins

    from .failure import without_passwords
    from .output import print_json

    report = to_builtins({"findings": findings, "self_test": tested})
    print_json(json.decode(without_passwords(json.encode(report).decode())))


def _show(findings: Sequence[Finding], tested: SelfTest | None) -> None:
    from .output import show

    show(_table(findings))
    if tested is not None:
        click.echo("\nself-test")
        show(_stages(tested))
        if tested.trouble:
            from .failure import complain, without_passwords

            complain(without_passwords(tested.trouble))
    click.echo(f"\n{_summary(findings)}")


def _table(findings: Sequence[Finding]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from .failure import without_passwords

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for finding in findings:
        level = Text(finding.level.value, _COLOURS[finding.level.value])
        made.add_row(level, finding.check, Text(without_passwords(finding.seen)))
        if finding.remedy:
            made.add_row("", "", Text(f"→ {without_passwords(finding.remedy)}", "cyan"))
    return made


def _stages(tested: SelfTest) -> RenderableType:
    from .output import table

    made = table("stage", "took", "", right=("took",))
    for stage in tested.stages:
        made.add_row(stage.name, _milliseconds(stage.seconds), _remark(stage.name, tested))
    made.add_row("in all", _milliseconds(tested.seconds), "")
    return made


def _remark(stage: str, tested: SelfTest) -> str:
    if stage != "wake-up":
        return ""
    return "by a notification" if tested.woken_by == "notification" else "by polling, with the claim"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _summary(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning", "note")}
    said = [f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items() if count]
    return ", ".join(said) if said else "nothing is wrong"
