"""Checks of a PostgreSQL server. Each looks at the facts and answers with findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...model.diagnosis import ServerFacts
from .findings import Finding, counted, error, lasting, note, ok, warning

OLDEST = 150000
CONNECTIONS_OF_A_WORKER = 22
SHORTEST_STATEMENT = 10_000
SHORTEST_IDLE = 60_000
MANY_TRANSACTIONS = 1_000_000
MANY_DEAD = 10_000

Check = Callable[[ServerFacts], Iterator[Finding]]


def version(facts: ServerFacts) -> Iterator[Finding]:
    if facts.version_number < OLDEST:
        yield error("server", f"PostgreSQL {facts.version} is too old", "use PostgreSQL 15 or newer")
    else:
        yield ok("server", f"PostgreSQL {facts.version}, as the role {facts.role}")


def writable(facts: ServerFacts) -> Iterator[Finding]:
    if facts.standby:
        yield error("server", "this is a standby, which cannot be written to", "name the primary's address")
    elif facts.settings.get("default_transaction_read_only") == "on":
        yield error(
            "server", "default_transaction_read_only is on: nothing can be written", "set it to off for this role"
        )


def durability(facts: ServerFacts) -> Iterator[Finding]:
    """What makes an acknowledged commit survive a crash of the machine."""
    found = [*_durability(facts)]
    yield from found or [ok("durability", "commits are flushed before they are acknowledged")]


def _durability(facts: ServerFacts) -> Iterator[Finding]:
    if facts.settings.get("fsync") == "off":
        yield error(
            "durability",
            "fsync is off: a crash of the machine may lose everything, not only the last commits",
            "set fsync = on in postgresql.conf and reload",
        )
    if facts.settings.get("full_page_writes") == "off":
        yield warning(
            "durability",
            "full_page_writes is off: a page that a crash cut in half cannot be repaired",
            "set full_page_writes = on, unless the file system writes pages whole",
        )
    if facts.settings.get("synchronous_commit") == "off":
        yield warning(
            "durability",
            "synchronous_commit is off: a crash may lose runs whose enqueue was acknowledged",
            "set synchronous_commit = on for the role and database that enqueue",
        )


def vacuum(facts: ServerFacts) -> Iterator[Finding]:
    """Runs are updated a few times each: what is dead must be removed."""
    runs = facts.runs
    if facts.settings.get("autovacuum") == "off" or facts.settings.get("track_counts") == "off":
        yield warning(
            "vacuum", "autovacuum does not run: dead rows of runs are never removed", "set autovacuum = on and reload"
        )
    elif runs is not None and not runs.autovacuum:
        yield warning(
            "vacuum",
            "autovacuum is switched off for the table runs",
            "alter the table: reset (autovacuum_enabled)",
        )
    if runs is None:
        return
    if runs.dead >= MANY_DEAD and runs.dead > runs.live:
        yield warning(
            "vacuum",
            f"the table runs has {runs.dead:,} dead rows beside {runs.live:,} live ones, in {runs.bytes >> 20:,} MiB",
            "end what holds the horizon (below), then vacuum the table",
        )
    else:
        yield ok("vacuum", f"the table runs has {runs.live:,} live and {runs.dead:,} dead rows")


def timeouts(facts: ServerFacts) -> Iterator[Finding]:
    """Limits of the server's that end our sessions, or that would end those in our way."""
    if not _milliseconds(facts, "idle_in_transaction_session_timeout"):
        yield note(
            "timeouts",
            "sessions may stay idle in a transaction for ever; one that does keeps vacuum from removing anything",
            "set idle_in_transaction_session_timeout = '10min'",
        )
    for name in ("statement_timeout", "transaction_timeout", "lock_timeout"):
        if 0 < _milliseconds(facts, name) < SHORTEST_STATEMENT:
            yield warning(
                "timeouts",
                f"{name} is {_milliseconds(facts, name)} ms: bulk enqueues and transactions of handlers may be cut off",
                f"alter role {facts.role} set {name} = '1min'",
            )
    if 0 < _milliseconds(facts, "idle_session_timeout") < SHORTEST_IDLE:
        yield warning(
            "timeouts",
            f"idle_session_timeout is {_milliseconds(facts, 'idle_session_timeout')} ms: it ends sleeping workers' "
            "connections",
            f"alter role {facts.role} set idle_session_timeout = 0",
        )


def _milliseconds(facts: ServerFacts, name: str) -> int:
    return int(facts.settings.get(name, "0"))


def connections(facts: ServerFacts) -> Iterator[Finding]:
    most = int(facts.settings.get("max_connections", "100"))
    reserved = sum(int(facts.settings.get(f"{who}reserved_connections", "0")) for who in ("superuser_", ""))
    room = max(0, most - reserved - facts.connections)
    if facts.pooled:
        yield ok(
            "connections", f"{facts.connections} of {most} are in use; the pooler decides how many more are opened"
        )
    elif room < CONNECTIONS_OF_A_WORKER:
        yield warning(
            "connections",
            f"{facts.connections} of {most} are in use, with room for {room}; a worker opens up to "
            f"{CONNECTIONS_OF_A_WORKER}",
            "raise max_connections, or put pgbouncer between",
        )
    else:
        yield ok("connections", f"{facts.connections} of {most} are in use")


def transactions(facts: ServerFacts) -> Iterator[Finding]:
    """While a transaction is open, vacuum cannot remove what died after its start."""
    for open_one in facts.transactions:
        who = " of ".join(filter(None, (open_one.application, open_one.role))) or "somebody"
        yield warning(
            "transactions",
            f"{who} (pid {open_one.pid}) has had a transaction open for {lasting(open_one.seconds)}"
            + (f", {open_one.state}" if open_one.state else ""),
            f"see what it does; to end it: select pg_terminate_backend({open_one.pid})",
        )
    if facts.prepared:
        yield warning(
            "transactions",
            f"{counted(facts.prepared, 'prepared transaction')} waited for minutes to be ended",
            "see pg_prepared_xacts; commit prepared or rollback prepared",
        )
    if not facts.transactions and not facts.prepared:
        yield ok("transactions", "none has been open for long")
    if facts.hidden_sessions:
        yield note(
            "transactions",
            f"what {counted(facts.hidden_sessions, 'session')} of other roles do cannot be seen",
            f"grant pg_read_all_stats to {facts.role}",
        )


def horizon(facts: ServerFacts) -> Iterator[Finding]:
    held = facts.horizon
    if held is None:
        yield ok("horizon", "nothing keeps vacuum from removing dead rows")
    elif held.transactions >= MANY_TRANSACTIONS:
        yield warning(
            "horizon",
            f"{held.holder} keeps vacuum from removing what died in the last {held.transactions:,} transactions",
            "end it, or drop it if nobody needs it any more",
        )
    else:
        yield ok("horizon", f"{counted(held.transactions, 'transaction')} old, held by {held.holder}")


CHECKS: tuple[Check, ...] = (version, writable, durability, vacuum, transactions, horizon, timeouts, connections)
