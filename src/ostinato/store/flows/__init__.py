"""What a store does, written once for both databases and both colours.

A flow is a generator: it yields calls to named SQL blocks, gets their rows, and returns a result. It does not know
who executes them: an asyncpg connection, SQLite's writer thread, or the caller's own transaction through any driver.
Whoever does runs the whole flow in one transaction.
"""

from .calls import Call, Flow, Row, encoded, reading
from .cancellations import Cancellation, cancelling, ending_overdue, looking_for_overdue
from .claims import looking_ahead, owned, releasing
from .commits import committing, single_statement
from .dialect import Dialect
from .leases import burying, cancelled_of, expired, registering, renewing, rescuing, retiring
from .ledger import acknowledging, holding_drainer, resetting_drainer
from .queues import declaring, pausing, resuming
from .runs import copying, pruning, purging, retrying, tidying
from .schedules import (
    asking_the_time,
    declaring_schedules,
    keeping_schedules,
    pausing_schedule,
    planning,
    resuming_schedule,
)
from .subscriptions import (
    adding_subscription,
    declaring_subscriptions,
    having_caught_up,
    removing_subscription,
    switching_subscription,
)
from .waits import holding_waiting

__all__ = [
    "Call",
    "Cancellation",
    "Dialect",
    "Flow",
    "Row",
    "acknowledging",
    "adding_subscription",
    "asking_the_time",
    "burying",
    "cancelled_of",
    "cancelling",
    "committing",
    "copying",
    "declaring",
    "declaring_schedules",
    "declaring_subscriptions",
    "encoded",
    "ending_overdue",
    "expired",
    "having_caught_up",
    "holding_drainer",
    "holding_waiting",
    "keeping_schedules",
    "looking_ahead",
    "looking_for_overdue",
    "owned",
    "pausing",
    "pausing_schedule",
    "planning",
    "pruning",
    "purging",
    "reading",
    "registering",
    "releasing",
    "removing_subscription",
    "renewing",
    "rescuing",
    "resetting_drainer",
    "resuming",
    "resuming_schedule",
    "retiring",
    "retrying",
    "single_statement",
    "switching_subscription",
    "tidying",
]
