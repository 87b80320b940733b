"""What happened in this process, and how much waits, for Prometheus.

Everything but the depth of the queue comes from telemetry: the engine knows nothing of Prometheus. Labels are bounded:
a job type is a function of the app (all others are `other`), a worker is one of this process, and of its identities
that ended only those since the last began are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from ..engine.site import Site
from ..telemetry import logger
from .aside import Aside
from .tallies import OTHER, Tallies

DEPTH_KEPT_FOR = 5.0
DEPTH_SHARE = 0.05
"""Of the time, at most this part is spent counting: where a count takes a second, it is kept for twenty."""
DEPTH_PATIENCE = 5.0


class Metrics:
    """A collector for any registry: `prometheus_client.REGISTRY.register(app.metrics)`. Its own is `registry`."""

    def __init__(self, site: Site) -> None:
        self.registry = CollectorRegistry()
        self.aside = Aside(site)
        self._depths = Depths(site, self.aside)
        self._tallies = Tallies(site.telemetry, known=site.registry.functions)
        self.registry.register(self._tallies)
        self.registry.register(self._depths)

    def collect(self) -> Iterable[Metric]:
        return self.registry.collect()

    def describe(self) -> Iterable[Metric]:
        """The names alone, which need no database."""
        return [*self._tallies.describe(), *self._depths.describe()]

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class Depths:
    """`job_queue_depth`, counted in the database when it is asked for, and kept for a few seconds.

    While it cannot be counted it is not shown: what is not known is not zero.
    """

    def __init__(self, site: Site, aside: Aside) -> None:
        self._known = site.registry.functions
        self._aside = aside
        self._lock = threading.Lock()
        self._counted: Mapping[str, int] | None = None
        self._keep_until = 0.0

    def collect(self) -> Iterable[Metric]:
        (family,) = self.describe()
        if (counted := self._current()) is not None:
            for job_type, count in self._by_type(counted).items():
                family.add_metric([job_type], count)
        return [family]

    def describe(self) -> list[GaugeMetricFamily]:
        what = "Runs that could start now: ready, or held and due. The same for every worker of the database."
        return [GaugeMetricFamily("job_queue_depth", what, labels=["job_type"])]

    def _by_type(self, counted: Mapping[str, int]) -> dict[str, int]:
        found = dict.fromkeys(self._known, 0)
        for function, count in counted.items():
            job_type = function if function in self._known else OTHER
            found[job_type] = found.get(job_type, 0) + count
        return found

    def _current(self) -> Mapping[str, int] | None:
        with self._lock:
            began = time.monotonic()
            if began >= self._keep_until:
                self._counted = self._count()
                ended = time.monotonic()
                self._keep_until = ended + max(DEPTH_KEPT_FOR, (ended - began) / DEPTH_SHARE)
            return self._counted

    def _count(self) -> Mapping[str, int] | None:
        try:
            return self._aside.ask(lambda store: store.views.depths(), timeout=DEPTH_PATIENCE)
        except Exception as error:  # whatever it is, the rest of the page must not suffer
            logger.warning("job_queue_depth cannot be counted: %s", error)
            return None
