"""What the engine may ask of a database. Every verb is atomic; there are no optional ones."""

from .care import Diagnosis, Migrations
from .commits import Caller, Commits, Transaction, refuse_other_dialect
from .ledger import Bearings, Ledger, Pass
from .signals import (
    LEDGER,
    RESULTS,
    CancelAsked,
    EventsRecorded,
    Listener,
    ListenerChanged,
    Rung,
    RunsEnded,
    SchedulesChanged,
    Signal,
    queue_topic,
)
from .store import Store
from .values import DeclaredDrainer, DeclaredFunction, DeclaredQueue, Ended, Fence, MigrationView
from .verbs import Verbs
from .views import Views
from .work import Claims, Leases, Schedules

__all__ = [
    "LEDGER",
    "RESULTS",
    "Bearings",
    "Caller",
    "CancelAsked",
    "Claims",
    "Commits",
    "DeclaredDrainer",
    "DeclaredFunction",
    "DeclaredQueue",
    "Diagnosis",
    "Ended",
    "EventsRecorded",
    "Fence",
    "Leases",
    "Ledger",
    "Listener",
    "ListenerChanged",
    "MigrationView",
    "Migrations",
    "Pass",
    "Rung",
    "RunsEnded",
    "Schedules",
    "SchedulesChanged",
    "Signal",
    "Store",
    "Transaction",
    "Verbs",
    "Views",
    "queue_topic",
    "refuse_other_dialect",
]
