"""How each single figure is taken: one contender, one fresh database, fresh processes."""

from dataclasses import dataclass, replace
from statistics import median, quantiles

from bench.arenas import Arena
from bench.children import children, perform
from bench.contenders import Target
from bench.ledger import MATCHING
from bench.peers import Peer
from bench.roles import WARM_UPS, Result, Task
from bench.sizes import Sizes
from bench.sleepers import lateness
from bench.workflows import STEPS

Sample = dict[str, float]
Series = dict[str, list[int]]

LIVE_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender as it enters a measure: under a label, with or without wake-ups, a peer at its own sizes."""

    label: str
    contender: str
    wake_ups: bool = True
    peer: Peer | None = None

    def task(self, arena: Arena, url: str, role: str, **options: object) -> Task:
        return Task(self.contender, arena.store, Target(url, wake_ups=self.wake_ups), role, options)

    def batch(self, sizes: Sizes) -> int:
        return min(self.peer.batch, self.bulk(sizes)) if self.peer else sizes.batch

    def bulk(self, sizes: Sizes) -> int:
        return int(sizes.bulk * self.peer.bulk_share) if self.peer else sizes.bulk

    def drain(self, sizes: Sizes) -> int:
        return int(sizes.drain * self.peer.drain_share) if self.peer else sizes.drain

    def workflows(self, sizes: Sizes) -> int:
        return int(sizes.workflows * self.peer.workflow_share) if self.peer else sizes.workflows


async def enqueue_singly(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        result = await perform(entrant.task(arena, url, "enqueue_singly", count=sizes.singles))
    _check_all_wait(entrant, result, sizes.singles + WARM_UPS)
    return {"rate": sizes.singles / result["seconds"]}


async def enqueue_in_bulk(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        count = entrant.bulk(sizes)
        options = {"count": count, "batch": entrant.batch(sizes), "warm_up": WARM_UPS}
        result = await perform(entrant.task(arena, url, "enqueue_in_bulk", **options))
    _check_all_wait(entrant, result, count + WARM_UPS)
    return {"rate": count / result["seconds"]}


def _check_all_wait(entrant: Entrant, result: Result, count: int) -> None:
    if result["waiting"] != count:
        raise AssertionError(f"{entrant.label} has {result['waiting']} jobs waiting of the {count} it was given")


async def drain(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    return await _drain(arena, entrant, entrant.drain(sizes), entrant.batch(sizes))


async def large_drain(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    return await _drain(arena, entrant, sizes.large_drain, sizes.batch)


async def _drain(arena: Arena, entrant: Entrant, count: int, batch: int) -> Sample:
    async with arena.fresh(entrant.contender) as url:
        filled = await perform(entrant.task(arena, url, "enqueue_in_bulk", count=count, batch=batch, warm_up=0))
        _check_all_wait(entrant, filled, count)
        await arena.settle(url)
        result = await perform(entrant.task(arena, url, "drain", count=count))
    _check_all_ran_once(entrant, result, count)
    kept = ("startup_seconds", "rss_mb", "peak_mb")
    return {"rate": count / result["seconds"]} | {name: result[name] for name in kept}


def _check_all_ran_once(entrant: Entrant, result: Result, count: int) -> None:
    """A figure of work that was not done is no figure."""
    if not result["completed"] == result["handled"] == count:
        raise AssertionError(f"{entrant.label} completed {result['completed']} and ran {result['handled']} of {count}")


async def workflows(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    count = entrant.workflows(sizes)
    async with arena.fresh(entrant.contender) as url:
        options = {"count": count, "batch": entrant.batch(sizes), "warm_up": 0}
        filled = await perform(entrant.task(arena, url, "enqueue_in_bulk", **options))
        _check_all_wait(entrant, filled, count)
        await arena.settle(url)
        result = await perform(entrant.task(arena, url, "drain_workflows", count=count))
    steps = len(STEPS) * count
    if not (result["completed"], result["handled"], result["steps"]) == (count, steps, steps):
        raise AssertionError(
            f"{entrant.label} completed {result['completed']} of {count} workflows, "
            f"ran {result['handled']} and stored {result['steps']} of {steps} steps"
        )
    rates = {"rate": count / result["seconds"], "step_rate": steps / result["seconds"]}
    return rates | {name: result[name] for name in ("startup_seconds", "rss_mb", "peak_mb")}


async def pick_up(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    """From the call of enqueue in one process to the entry into the handler in another."""
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        count = sizes.pick_ups + WARM_UPS
        worker_task = entrant.task(arena, url, "pick_up", count=count)
        sender_task = entrant.task(arena, url, "send_now_and_then", count=count, gap=sizes.pick_up_gap)
        async with children(worker_task, sender_task) as (worker, sender):
            await worker.go()
            await sender.go()
            sent = await sender.result()
            await worker.ready()
            await worker.go()
            result = await worker.result()
    _check_all_ran_once(entrant, result, count)
    return _latencies(sent, result["entered_ns"])


def _latencies(sent: Result, entered: dict[str, int]) -> Sample:
    numbers = list(sent["sent_ns"])[WARM_UPS:]
    total = [(entered[n] - sent["sent_ns"][n]) / 1e6 for n in numbers]
    after_commit = [(entered[n] - sent["acknowledged_ns"][n]) / 1e6 for n in numbers]
    return {"p50_ms": median(total), "p99_ms": quantiles(total, n=100)[98], "after_commit_p50_ms": median(after_commit)}


async def producers(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    """Nobody works: the figure is the inserts' own."""
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        return await _produce(arena, entrant, url, sizes)


async def producers_beside_a_worker(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    """A worker takes the jobs as they come: woken, or polling often where there are no wake-ups."""
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        task = entrant.task(arena, url, "work")
        if not entrant.wake_ups:
            task = replace(task, target=replace(task.target, poll_seconds=LIVE_POLL_SECONDS))
        async with children(task) as (worker,):
            await worker.go()
            sample = await _produce(arena, entrant, url, sizes)
            await worker.ready()
            await worker.go()
            await worker.result()
        return sample


async def _produce(arena: Arena, entrant: Entrant, url: str, sizes: Sizes) -> Sample:
    each = sizes.producers // sizes.producer_processes
    task = entrant.task(arena, url, "produce", producers=each, count=sizes.per_producer)
    async with children(*[task] * sizes.producer_processes) as started:
        for child in started:
            await child.go()
        results = [await child.result() for child in started]
    seconds = (max(r["ended_ns"] for r in results) - min(r["started_ns"] for r in results)) / 1e9
    return {"rate": sizes.producers * sizes.per_producer / seconds}


async def record_singly(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        result = await perform(entrant.task(arena, url, "record_singly", count=sizes.singles))
    _check_all_recorded(entrant, result, sizes.singles + WARM_UPS)
    return {"rate": sizes.singles / result["seconds"]}


async def record_in_bulk(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        options = {"count": sizes.bulk, "batch": sizes.batch}
        result = await perform(entrant.task(arena, url, "record_in_bulk", **options))
    _check_all_recorded(entrant, result, sizes.bulk + WARM_UPS)
    return {"rate": sizes.bulk / result["seconds"]}


def _check_all_recorded(entrant: Entrant, result: Result, count: int) -> None:
    if result["recorded"] != count:
        raise AssertionError(f"{entrant.label} has {result['recorded']} events of the {count} it was given")


async def drain_ledger(
    arena: Arena, entrant: Entrant, sizes: Sizes, *, subscriptions: int = 1, filtered: bool = False
) -> Sample:
    """One event in a hundred matches one of the subscriptions, and starts a run."""
    async with arena.fresh(entrant.contender) as url:
        options = {"count": sizes.ledger, "batch": sizes.batch, "subscriptions": subscriptions, "filtered": filtered}
        _check_all_recorded(entrant, await perform(entrant.task(arena, url, "fill_ledger", **options)), sizes.ledger)
        await arena.settle(url)
        result = await perform(entrant.task(arena, url, "drain_ledger"))
    if (result["drained"], result["started"]) != (sizes.ledger, sizes.ledger // MATCHING):
        raise AssertionError(f"{entrant.label} drained {result['drained']} and started {result['started']}")
    return {"rate": sizes.ledger / result["seconds"]}


async def drain_ledger_against_many(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    return await drain_ledger(arena, entrant, sizes, subscriptions=1000)


async def drain_ledger_through_filters(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    """Each event is put before the filter of one subscription, which wants one in a hundred."""
    return await drain_ledger(arena, entrant, sizes, subscriptions=1000, filtered=True)


async def dispatch(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    """From the call of record in one process to the entry into the run that the event starts in another."""
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        count = sizes.dispatches + WARM_UPS
        worker_task = entrant.task(arena, url, "serve_events", count=count)
        sender_task = entrant.task(arena, url, "record_at_a_rate", count=count, rate=sizes.dispatch_rate)
        async with children(worker_task, sender_task) as (worker, sender):
            await worker.go()
            await sender.go()
            sent = await sender.result()
            await worker.ready()
            await worker.go()
            result = await worker.result()
    if result["started"] != count:
        raise AssertionError(f"{entrant.label} started {result['started']} runs for {count} events")
    return _latencies(sent, result["entered_ns"])


async def sleepers(arena: Arena, entrant: Entrant, sizes: Sizes, *, spread: float = 0.0) -> Sample:
    """Everybody sleeps before the first is due, or it would be another figure."""
    async with arena.fresh(entrant.contender) as url:
        await arena.settle(url)
        options = {"count": sizes.sleepers, "lead": sizes.sleepers_lead, "spread": spread}
        result = await perform(entrant.task(arena, url, "wake_sleepers", **options))
    if not result["asleep"] == result["completed"] == sizes.sleepers:
        raise AssertionError(
            f"{entrant.label} had {result['asleep']} asleep and completed {result['completed']} of {sizes.sleepers}"
        )
    if (earliest := min(result["late_ms"])) < 0:
        raise AssertionError(f"{entrant.label} woke somebody {-earliest:.1f} ms too early")
    return lateness(result["late_ms"]) | {name: result[name] for name in ("rss_mb", "peak_mb")}


async def sleepers_by_and_by(arena: Arena, entrant: Entrant, sizes: Sizes) -> Sample:
    return await sleepers(arena, entrant, sizes, spread=sizes.sleepers_spread)


async def claims(arena: Arena, entrant: Entrant, sizes: Sizes) -> dict[str, Series]:
    """Buffers per claim by runs drained, under each label that the contender reports."""
    async with arena.fresh(entrant.contender) as url:
        options = {"count": sizes.pinned_runs, "steps": sizes.pinned_steps}
        result = await perform(entrant.task(arena, url, "measure_claims", **options))
    if result["completed"] != sizes.pinned_runs:
        raise AssertionError(f"{entrant.label} completed {result['completed']} of {sizes.pinned_runs}")
    return {label: {"drained": result["drained"], "buffers": found} for label, found in result["buffers"].items()}
