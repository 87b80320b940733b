"""A small application with events, for the tests of the command line."""

from __future__ import annotations

from typing import Any

from ostinato import App

app = App()


@app.function
async def greet(name: str) -> str:
    return name


@app.drainer("billing", on="invoice.*")
async def billing(tx: Any, events: list[Any]) -> None:
    if any(event.payload.get("total") is None for event in events):
        raise ValueError("an invoice without a total")
