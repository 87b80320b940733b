"""An application that forgot to say who works on one of its queues."""

from __future__ import annotations

from ostinato import App

app = App(lease="20s", queues="default:5")


@app.function(queue="reports")
async def report() -> None:
    pass
