"""Asking a worker over HTTP, as Prometheus and Kubernetes do."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from msgspec import json
from prometheus_client.parser import text_string_to_metric_families

PATIENCE = 20.0

Samples = dict[tuple[str, ...], float]
"""A name and its label values, in the order of their labels' names → the value."""


def fetch(url: str, *, method: str = "GET") -> tuple[int, bytes]:
    """The status and the body. Blocks the thread, and the event loop if it has one."""
    try:
        with urlopen(Request(url, method=method), timeout=PATIENCE) as response:
            return response.status, response.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def told(url: str) -> tuple[int, dict[str, Any]]:
    """The status, and the JSON of the body."""
    status, body = fetch(url)
    return status, json.decode(body)


async def asked(url: str) -> tuple[int, dict[str, Any]]:
    """The same from a thread, so that the event loop goes on."""
    return await asyncio.to_thread(told, url)


def samples(text: str) -> Samples:
    """Everything in a page of metrics but the buckets of histograms and the moments of creation."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


async def scraped(url: str) -> Samples:
    """What a worker's page of metrics says."""
    status, body = await asyncio.to_thread(fetch, f"{url}/metrics")
    assert status == 200
    return samples(body.decode())


def of(found: Samples, name: str) -> dict[str, float]:
    """The values of one metric that are not zero, by their labels."""
    return {"/".join(labels): value for (each, *labels), value in found.items() if each == name and value}
