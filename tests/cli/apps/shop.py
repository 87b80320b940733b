"""An app with subscriptions."""

from __future__ import annotations

from typing import Any

from ostinato import App

app = App()


@app.function
async def reprice(sku: str, tier: str = "gold") -> str:
    return sku


@app.function(on="order/**")
async def archive(**fields: Any) -> None: ...


app.subscribe(
    "price.*",
    reprice,
    name="prices",
    filter="event.payload.delta > 5",
    map={"sku": "$.entity_id", "tier": "literal:gold"},
)
