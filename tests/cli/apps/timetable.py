"""A small application with schedules, for the tests of the command line."""

from __future__ import annotations

from datetime import datetime

from ostinato import App

app = App()


@app.cron("30 4 1 1 *", tz="Asia/Kathmandu", jitter="30s", priority=5)
async def yearly() -> None: ...


@app.cron("0 15 * * *", name="afternoon", missed="skip", input={"tier": "silver"})
@app.cron("0 3 * * *", name="night", tz="Europe/Paris", missed="all", catch_up="7d", input={"tier": "gold"})
@app.function
async def sync(tier: str, scheduled_at: datetime) -> str:
    return tier
