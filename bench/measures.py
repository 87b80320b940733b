"""What is measured, between whom, and the bar that each comparison is held against."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench import samples
from bench.arenas import Arena
from bench.contenders import StoreName
from bench.peers import PEERS, WORKFLOWS
from bench.samples import Entrant, Sample
from bench.sizes import Sizes
from bench.workflows import STEPS

OSTINATO = Entrant("ostinato", "ostinato")
OSTINATO_QUIET = Entrant("ostinato, no wake-ups", "ostinato", wake_ups=False)
BARE = Entrant("bare loop", "bare")
BARE_QUIET = Entrant("bare loop, no wake-ups", "bare", wake_ups=False)
BARE_JSON = Entrant("bare loop, one JSON parameter", "bare-json", wake_ups=False)
LEDGER = Entrant("ostinato", "ostinato-ledger")
BARE_EVENTS = Entrant("bare inserts", "bare-events")
FLOWS = Entrant("ostinato", "ostinato-workflows")
SLEEPERS = Entrant("ostinato", "ostinato-sleepers")
BARE_FLOWS = Entrant("bare group commit", "bare-workflows")
PEER_ENTRANTS = tuple(Entrant(peer.label, peer.name, peer=peer) for peer in PEERS if peer.queues)
PEER_FLOWS = tuple(Entrant(peer.label, f"{peer.name}{WORKFLOWS}", peer=peer) for peer in PEERS if peer.workflow_share)

LESS_IS_BETTER = ("p50_ms", "p99_ms", "max_ms", "rss_mb", "peak_mb")


@dataclass(frozen=True, slots=True)
class Bar:
    """What a comparison has to reach, and what it hopes for."""

    at_least: float | None = None
    at_most: float | None = None
    goal: float | None = None

    def passes(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def reaches_goal(self, value: float) -> bool:
        return self.goal is not None and value >= self.goal

    def __str__(self) -> str:
        bound = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        return bound if self.goal is None else f"{bound} (goal {self.goal:g})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One entrant's metric over another's, pair by pair; without a baseline, the metric itself."""

    metric: str
    subject: Entrant
    baseline: Entrant | None
    bar: Bar | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of figure, taken from each entrant in turn, round after round."""

    key: str
    store: StoreName
    title: str
    metrics: dict[str, str]
    take: Callable[[Arena, Entrant, Sizes], Awaitable[Sample]]
    entrants: tuple[Entrant, ...]
    comparisons: tuple[Comparison, ...]
    size: Callable[[Entrant, Sizes], str] | None = None

    @property
    def name(self) -> str:
        return f"{self.key}-{self.store}"

    @property
    def beside_peers(self) -> bool:
        return self.key.startswith(PEERS_KEY)

    def rounds(self, sizes: Sizes) -> int:
        return sizes.peer_pairs if self.beside_peers else sizes.pairs


PEERS_KEY = "peers-"

RATE = {"rate": "/s"}
DRAIN = RATE | {"rss_mb": "MB", "startup_seconds": "s to the first run"}
FLOW_RATES = {"rate": "workflows/s", "step_rate": "steps/s", "rss_mb": "MB"}
LATENESS = {"p50_ms": "ms late p50", "p99_ms": "ms late p99", "max_ms": "ms late at most"}
LATENESS |= {"rss_mb": "MB asleep", "peak_mb": "MB at most"}
PICK_UP = {"p50_ms": "ms p50", "p99_ms": "ms p99", "after_commit_p50_ms": "ms p50 after the commit"}

WORKER_MEMORY = Comparison("rss_mb", OSTINATO, None, Bar(at_most=100))


def measures(sizes: Sizes) -> list[Measure]:
    return [
        *enqueueing("postgres", sizes, singly=Bar(at_least=0.75), in_bulk=Bar(at_least=0.4, goal=0.6)),
        *draining("postgres", sizes, Bar(at_least=0.6, goal=0.8)),
        picking_up("postgres", Bar(at_most=1.5)),
        *producing(sizes, Bar(at_least=0.9)),
        *recording("postgres", sizes, Bar(at_least=0.4)),
        *draining_the_ledger("postgres", sizes, Bar(at_least=20_000)),
        dispatching("postgres", sizes, Bar(at_most=25)),
        flowing("postgres", sizes, Bar(at_least=0.2)),
        *sleeping("postgres", sizes),
        *enqueueing("sqlite", sizes, singly=None, in_bulk=None),
        *draining("sqlite", sizes, Bar(at_least=0.4)),
        picking_up("sqlite", None),
        *recording("sqlite", sizes, Bar(at_least=0.4)),
        *draining_the_ledger("sqlite", sizes, Bar(at_least=20_000)),
        dispatching("sqlite", sizes, Bar(at_most=25)),
        flowing("sqlite", sizes, Bar(at_least=0.2)),
        *sleeping("sqlite", sizes),
        *beside_peers(),
    ]


def enqueueing(store: StoreName, sizes: Sizes, *, singly: Bar | None, in_bulk: Bar | None) -> list[Measure]:
    """The bare inserts ring no bell, Ostinato does as it does by default."""
    return [
        Measure(
            "single", store, "enqueue singly", RATE, samples.enqueue_singly,
            (OSTINATO, BARE_QUIET),
            (Comparison("rate", OSTINATO, BARE_QUIET, singly),),
        ),
        Measure(
            "bulk", store, f"enqueue {sizes.bulk:,} in batches of {sizes.batch:,}", RATE, samples.enqueue_in_bulk,
            (OSTINATO, BARE_QUIET, BARE_JSON),
            (Comparison("rate", OSTINATO, BARE_QUIET, in_bulk), Comparison("rate", OSTINATO, BARE_JSON)),
        ),
    ]  # fmt: skip


def draining(store: StoreName, sizes: Sizes, bar: Bar) -> list[Measure]:
    comparisons = (Comparison("rate", OSTINATO, BARE, bar), WORKER_MEMORY)
    return [
        Measure(
            "drain", store, f"drain {sizes.drain:,} no-op runs", DRAIN, samples.drain,
            (OSTINATO, BARE), comparisons,
        ),
        Measure(
            "drain-large", store, f"drain {sizes.large_drain:,} no-op runs", DRAIN, samples.large_drain,
            (OSTINATO, BARE), comparisons,
        ),
    ]  # fmt: skip


def picking_up(store: StoreName, bar: Bar | None) -> Measure:
    return Measure(
        "pickup", store, "pick-up by an idle worker", PICK_UP, samples.pick_up,
        (OSTINATO, BARE),
        (Comparison("p50_ms", OSTINATO, BARE, bar), Comparison("p99_ms", OSTINATO, BARE)),
    )  # fmt: skip


def producing(sizes: Sizes, bar: Bar) -> list[Measure]:
    """PostgreSQL only: SQLite's workers watch the data version, which costs writers nothing."""
    entrants = (OSTINATO, OSTINATO_QUIET, BARE, BARE_QUIET)
    comparisons = (
        Comparison("rate", OSTINATO, OSTINATO_QUIET, bar),
        Comparison("rate", BARE, BARE_QUIET),
        Comparison("rate", OSTINATO_QUIET, BARE_QUIET),
    )
    return [
        Measure(
            "producers", "postgres", f"{sizes.producers} producers, no worker", RATE, samples.producers,
            entrants, comparisons,
        ),
        Measure(
            "producers-live", "postgres", f"{sizes.producers} producers beside a worker", RATE,
            samples.producers_beside_a_worker, entrants, comparisons,
        ),
    ]  # fmt: skip


def recording(store: StoreName, sizes: Sizes, in_bulk: Bar) -> list[Measure]:
    return [
        Measure(
            "record", store, "record singly", RATE, samples.record_singly,
            (LEDGER, BARE_EVENTS),
            (Comparison("rate", LEDGER, BARE_EVENTS),),
        ),
        Measure(
            "record-bulk", store, f"record {sizes.bulk:,} in batches of {sizes.batch:,}", RATE, samples.record_in_bulk,
            (LEDGER, BARE_EVENTS),
            (Comparison("rate", LEDGER, BARE_EVENTS, in_bulk),),
        ),
    ]  # fmt: skip


def draining_the_ledger(store: StoreName, sizes: Sizes, bar: Bar) -> list[Measure]:
    comparisons = (Comparison("rate", LEDGER, None, bar),)
    return [
        Measure(
            "ledger-drain", store, f"drain {sizes.ledger:,} events against 1 subscription", RATE,
            samples.drain_ledger, (LEDGER,), comparisons,
        ),
        Measure(
            "ledger-drain-many", store, f"drain {sizes.ledger:,} events against 1,000 subscriptions", RATE,
            samples.drain_ledger_against_many, (LEDGER,), comparisons,
        ),
        Measure(
            "ledger-drain-filters", store, f"drain {sizes.ledger:,} events against 1,000 subscriptions with filters",
            RATE, samples.drain_ledger_through_filters, (LEDGER,), (Comparison("rate", LEDGER, None, None),),
        ),
    ]  # fmt: skip


def dispatching(store: StoreName, sizes: Sizes, bar: Bar) -> Measure:
    return Measure(
        "dispatch", store, f"event to run start at {sizes.dispatch_rate} events/s", PICK_UP, samples.dispatch,
        (LEDGER,),
        (Comparison("p99_ms", LEDGER, None, bar),),
    )  # fmt: skip


def flowing(store: StoreName, sizes: Sizes, bar: Bar) -> Measure:
    """The bare code commits each step before the next one too, and shares its commits between workflows."""
    title = f"run {sizes.workflows:,} workflows of {len(STEPS)} no-op steps"
    comparisons = (Comparison("rate", FLOWS, BARE_FLOWS, bar), Comparison("rss_mb", FLOWS, None, Bar(at_most=100)))
    return Measure("workflows", store, title, FLOW_RATES, samples.workflows, (FLOWS, BARE_FLOWS), comparisons)


def sleeping(store: StoreName, sizes: Sizes) -> list[Measure]:
    """By and by each has to wake in time; all at once there is work to do first."""
    memory = Comparison("peak_mb", SLEEPERS, None, Bar(at_most=150))
    return [
        Measure(
            "sleepers", store, f"{sizes.sleepers:,} sleepers, due over {sizes.sleepers_spread:g} s", LATENESS,
            samples.sleepers_by_and_by, (SLEEPERS,),
            (Comparison("max_ms", SLEEPERS, None, Bar(at_most=1000)), memory),
        ),
        Measure(
            "sleepers-at-once", store, f"{sizes.sleepers:,} sleepers, due at once", LATENESS,
            samples.sleepers, (SLEEPERS,),
            (Comparison("max_ms", SLEEPERS, None, Bar(at_most=5000)), memory),
        ),
    ]  # fmt: skip


def beside_peers() -> list[Measure]:
    """Ostinato and the peers in turn, each at the sizes that its speed allows; rates compare all the same."""
    return [
        _beside_peers(
            "single", "enqueue singly", RATE, samples.enqueue_singly,
            lambda entrant, sizes: f"{sizes.singles:,}",
        ),
        _beside_peers(
            "bulk", "enqueue in bulk", RATE, samples.enqueue_in_bulk,
            lambda entrant, sizes: f"{entrant.bulk(sizes):,} by {entrant.batch(sizes):,}",
        ),
        _beside_peers(
            "drain", "drain no-op jobs", RATE | {"rss_mb": "MB"}, samples.drain,
            lambda entrant, sizes: f"{entrant.drain(sizes):,}",
        ),
        _beside_peers(
            "pickup", "pick-up by an idle worker", {"p50_ms": "ms p50", "p99_ms": "ms p99"}, samples.pick_up,
            lambda entrant, sizes: f"{sizes.pick_ups:,}",
        ),
        _flowing_beside_peers(),
    ]  # fmt: skip


def _flowing_beside_peers() -> Measure:
    """The bars are what 0.2 of the bare code came to when the peers were first looked at."""
    bars = {"Absurd": Bar(at_least=15), "DBOS": Bar(at_least=40)}
    return Measure(
        f"{PEERS_KEY}workflows", "postgres", f"run workflows of {len(STEPS)} no-op steps", FLOW_RATES,
        samples.workflows, (FLOWS, *PEER_FLOWS),
        tuple(
            Comparison(metric, FLOWS, entrant, bars.get(entrant.label) if metric == "rate" else None)
            for metric in FLOW_RATES
            for entrant in PEER_FLOWS
        ),
        lambda entrant, sizes: f"{entrant.workflows(sizes):,}",
    )  # fmt: skip


def _beside_peers(
    key: str,
    title: str,
    metrics: dict[str, str],
    take: Callable[[Arena, Entrant, Sizes], Awaitable[Sample]],
    size: Callable[[Entrant, Sizes], str],
) -> Measure:
    comparisons = tuple(Comparison(metric, OSTINATO, entrant) for metric in metrics for entrant in PEER_ENTRANTS)
    return Measure(f"{PEERS_KEY}{key}", "postgres", title, metrics, take, (OSTINATO, *PEER_ENTRANTS), comparisons, size)
