"""How much work a measure does."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one session; `FULL` is what the bar is meant for."""

    pairs: int = 11
    peer_pairs: int = 5
    singles: int = 2_000
    bulk: int = 100_000
    batch: int = 10_000
    drain: int = 20_000
    large_drain: int = 200_000
    pick_ups: int = 200
    pick_up_gap: float = 0.020
    producers: int = 32
    producer_processes: int = 4
    per_producer: int = 200
    pinned_runs: int = 30_000
    pinned_steps: int = 10
    ledger: int = 100_000
    dispatches: int = 1_000
    dispatch_rate: int = 100
    workflows: int = 20_000
    sleepers: int = 10_000
    sleepers_lead: float = 15.0
    sleepers_spread: float = 10.0


FULL = Sizes()
QUICK = Sizes(
    pairs=3,
    peer_pairs=2,
    singles=300,
    bulk=20_000,
    drain=5_000,
    large_drain=20_000,
    pick_ups=40,
    per_producer=25,
    pinned_runs=3_000,
    ledger=20_000,
    dispatches=200,
    workflows=4_000,
    sleepers=2_000,
    sleepers_lead=4.0,
    sleepers_spread=2.0,
)
