"""OpenTelemetry: the trace of the enqueuing code goes on in the run."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from ostinato import App, Cancel, Retry, Run, RunCancelled, RunFailed
from ostinato.engine.tracing import trace_id_of
from ostinato.telemetry import JsonFormatter, RunClaimed, RunCompleted
from ostinato.telemetry import RunFailed as RunFailedEvent
from ostinato.testing.probe import Probe
from tests.engine.databases import Database

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
PARENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def only(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = named(spans, name)
    return span


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    return int(span.context.span_id)


def stored(database: Database) -> list[Any]:
    """The traces that runs carry, as Python values."""
    rows = database.query("select trace from ostinato_runs order by id")
    return [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]


async def done(app: App, function: str, given: dict[str, Any] | None = None, **options: Any) -> str:
    """Enqueues a run in a worker, and waits until it has ended."""
    with Probe(app.telemetry) as probe:
        async with app.worker():
            handle = await app.enqueue(function, given or {}, **options)
            await handle.result(timeout=10)
            await probe.next(RunCompleted, run_id=handle.id)
    return handle.id


# --- one trace


async def test_the_run_goes_on_in_the_trace_that_enqueued_it(app: App, spans: InMemorySpanExporter, database: Database):
    """The user's span, around `send`, around `process`: one trace, with what messaging spans are searched by."""

    @app.function
    async def enrich(run: Run) -> str:
        return f"{trace.get_current_span().get_span_context().trace_id:032x}"

    async with app.worker() as worker:
        with trace.get_tracer("test").start_as_current_span("request") as request:
            handle = await enrich.enqueue()
        seen = await handle.result(timeout=10)

    send, process = only(spans, "send enrich"), only(spans, "process enrich")
    assert seen == f"{request.get_span_context().trace_id:032x}"
    assert {span.context.trace_id for span in (send, process)} == {request.get_span_context().trace_id}
    assert (parent_of(send), parent_of(process)) == (request.get_span_context().span_id, id_of(send))
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "ostinato",
        "messaging.destination.name": "default",
        "messaging.message.id": handle.id,
        "ostinato.function": "enrich",
    }
    assert attributes(send) == {**common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert attributes(process) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": worker.id,
        "ostinato.attempt": 1,
        "ostinato.outcome": "completed",
    }
    assert [list(each) for each in stored(database)] == [["traceparent"]]


async def test_a_plain_function_is_in_the_span_too(app: App, spans: InMemorySpanExporter):
    """In its thread, and what it enqueues from there belongs to the same trace."""

    @app.function
    def outer(run: Run) -> str:
        with run.transaction() as tx:  # type: ignore[attr-defined]
            tx.enqueue("inner")
        return f"{trace.get_current_span().get_span_context().span_id:016x}"

    @app.function
    async def inner() -> None: ...

    with Probe(app.telemetry) as probe:
        async with app.worker():
            handle = await outer.enqueue()
            seen = await handle.result(timeout=10)
            await probe.next(RunCompleted, function="inner")

    process = only(spans, "process outer")
    assert seen == f"{id_of(process):016x}"
    assert parent_of(only(spans, "send inner")) == id_of(process)
    assert parent_of(only(spans, "process inner")) == id_of(only(spans, "send inner"))


async def test_many_runs_share_one_send(app: App, spans: InMemorySpanExporter):
    """Each is processed in a span of its own below it."""

    @app.function
    async def enrich(n: int) -> None: ...

    async with app.worker():
        for handle in await enrich.enqueue_many([{"n": n} for n in range(3)]):
            await handle.result(timeout=10)

    send = only(spans, "send enrich")
    assert attributes(send)["messaging.batch.message_count"] == 3
    assert {parent_of(span) for span in named(spans, "process enrich")} == {id_of(send)}
    assert len(named(spans, "process enrich")) == 3


async def test_a_transaction_carries_its_trace(app: App, spans: InMemorySpanExporter):
    """`tx.enqueue` and `tx.enqueue_many` are sends as well."""

    @app.function
    async def enrich() -> None: ...

    with Probe(app.telemetry) as probe:
        async with app.worker():
            async with app.transaction() as tx:
                first = await tx.enqueue(enrich)
                (second,) = await tx.enqueue_many(enrich, [{}])
            for run_id in (first, second):
                await probe.next(RunCompleted, run_id=run_id)
    sends = named(spans, "send enrich")
    assert [attributes(span)["messaging.message.id"] for span in sends] == [first, second]
    assert {parent_of(span) for span in named(spans, "process enrich")} == {id_of(span) for span in sends}


async def test_the_state_of_the_trace_is_carried(app: App, spans: InMemorySpanExporter, database: Database):
    """What vendors put beside the ids arrives in the handler."""

    @app.function
    async def enrich() -> str:
        return trace.get_current_span().get_span_context().trace_state.to_header()

    remote = SpanContext(TRACE_ID, 0xB7AD6B7169203331, True, TraceFlags(1), TraceState([("vendor", "value")]))
    async with app.worker():
        with trace.use_span(NonRecordingSpan(remote)):
            handle = await enrich.enqueue()
        assert await handle.result(timeout=10) == "vendor=value"
    assert [each["tracestate"] for each in stored(database)] == ["vendor=value"]


# --- what goes wrong


async def test_errors_are_recorded(app: App, spans: InMemorySpanExporter):
    """Each attempt is a span with its exception, below the one that enqueued the run."""

    @app.function(retry=Retry("0s"))
    async def doomed() -> None:
        raise ValueError("out of tune")

    async with app.worker():
        handle = await doomed.enqueue()
        with pytest.raises(RunFailed):
            await handle.result(timeout=10)

    attempts = named(spans, "process doomed")
    assert [attributes(span)["ostinato.attempt"] for span in attempts] == [1, 2]
    for span in attempts:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "out of tune")
        assert (attributes(span)["error.type"], attributes(span)["ostinato.outcome"]) == ("ValueError", "failed")
        (event,) = span.events
        assert (event.name, (event.attributes or {})["exception.message"]) == ("exception", "out of tune")
        assert parent_of(span) == id_of(only(spans, "send doomed"))


async def test_an_exception_that_cannot_be_printed_is_recorded_all_the_same(app: App, spans: InMemorySpanExporter):
    """And its run is settled."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot even say what is wrong")

    @app.function(retry=Retry.none())
    async def odd() -> None:
        raise Unprintable

    async with app.worker():
        handle = await odd.enqueue()
        with pytest.raises(RunFailed):
            await handle.result(timeout=10)

    (event,) = only(spans, "process odd").events
    assert "Unprintable" in str((event.attributes or {})["exception.type"])


async def test_a_cancelled_run_is_no_error(app: App, spans: InMemorySpanExporter):
    @app.function
    async def unwanted() -> None:
        raise Cancel("not today")

    async with app.worker():
        handle = await unwanted.enqueue()
        with pytest.raises(RunCancelled):
            await handle.result(timeout=10)
    span = only(spans, "process unwanted")
    assert (span.status.status_code, attributes(span)["ostinato.outcome"]) == (StatusCode.UNSET, "cancelled")


async def test_a_refused_enqueue_is_an_error_of_its_send(app: App, spans: InMemorySpanExporter):
    async with app:
        with pytest.raises(LookupError):
            await app.enqueue("nobody_knows_it", {})
    assert only(spans, "send nobody_knows_it").status.status_code is StatusCode.ERROR


# --- without a context


async def test_a_run_without_a_trace_begins_one(app: App, spans: InMemorySpanExporter, database: Database):
    """Plain SQL knows nothing of tracing. Nor is the run a child of whatever the worker was started in."""

    @app.function
    async def enrich() -> None: ...

    with Probe(app.telemetry) as probe, trace.get_tracer("test").start_as_current_span("start of the worker"):
        async with app.worker():
            database.query(plain_sql(database))
            await probe.next(RunCompleted, run_id="01PLAIN")
    assert parent_of(only(spans, "process enrich")) is None
    assert stored(database) == [None]


@pytest.mark.parametrize(
    "carried", ['{"traceparent": "nonsense"}', '{"traceparent": 7}', '"text"', "[]", '{"other": "thing"}']
)
async def test_a_trace_that_cannot_be_read_is_none(
    app: App, spans: InMemorySpanExporter, database: Database, carried: str
):
    """Whoever wrote it: the run is executed."""

    @app.function
    async def enrich() -> None: ...

    with Probe(app.telemetry) as probe:
        async with app.worker():
            database.query(plain_sql(database, trace=carried))
            completed = await probe.next(RunCompleted, run_id="01PLAIN")
    span = only(spans, "process enrich")
    assert parent_of(span) is None
    assert completed.trace_id == f"{span.context.trace_id:032x}"


def plain_sql(database: Database, trace: str | None = None) -> str:
    """An insert by hand, due at once."""
    now = str(time.time_ns() // 1000) if database.dialect == "sqlite" else "now()"
    carried = "null" if trace is None else f"'{trace}'"
    return (
        "insert into ostinato_runs (id, function, queue, state, run_at, due, invoked_by, created_at, input, trace) "
        f"values ('01PLAIN', 'enrich', 'default', 'ready', {now}, 1, 'sql', {now}, '{{}}', {carried})"
    )


async def test_without_a_provider_nothing_is_carried(app: App, database: Database):
    """The API is imported here, and nobody has set it up."""

    @app.function
    async def enrich() -> bool:
        return trace.get_current_span().get_span_context().is_valid

    async with app.worker():
        assert await (await enrich.enqueue()).result(timeout=10) is False
    assert stored(database) == [None]


async def test_without_a_provider_the_callers_context_is_passed_on(app: App, database: Database):
    """As a proxy does: a context that came in goes on to the handler, and nobody records anything."""

    @app.function
    async def enrich() -> str:
        return f"{trace.get_current_span().get_span_context().trace_id:032x}"

    remote = SpanContext(TRACE_ID, 0xB7AD6B7169203331, True, TraceFlags(1))
    async with app.worker():
        with trace.use_span(NonRecordingSpan(remote)):
            handle = await enrich.enqueue()
        assert await handle.result(timeout=10) == f"{TRACE_ID:032x}"
    assert stored(database) == [PARENT]


# --- logs


class Lines(logging.Handler):
    """A handler that keeps its lines as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


async def test_logs_carry_the_trace(app: App, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch):
    """The run's own log, and what the worker says of it."""
    lines, logger = Lines(), logging.getLogger("ostinato")
    monkeypatch.setattr(logger, "handlers", [lines])
    before = logger.level
    logger.setLevel(logging.INFO)

    @app.function(retry=Retry("0s"))
    async def enrich(run: Run) -> None:
        run.log.info("looking for %s", "Moon Pix")
        if run.attempt == 1:
            raise ValueError("out of tune")

    await done(app, "enrich", queue="default")
    logger.setLevel(before)
    trace_id = f"{only(spans, 'send enrich').context.trace_id:032x}"
    told = [line for line in lines.lines if line["event"].startswith(("job", "run"))]
    assert {line.get("trace_id") for line in told} == {trace_id}
    # An end is told when its commit has come back; the next attempt, claimed on another connection, may be told first.
    by_attempt = [[line["event"] for line in told if line["attempt"] == attempt] for attempt in (1, 2)]
    assert by_attempt == [["job_claimed", "run_log", "job_failed"], ["job_claimed", "run_log", "job_completed"]]


async def test_without_a_trace_logs_have_none(app: App):
    """Not even an empty field."""
    with Probe(app.telemetry) as probe:

        @app.function(retry=Retry.none())
        async def enrich(run: Run) -> None:
            assert "trace_id" not in (run.log.extra or {})

        async with app.worker():
            handle = await enrich.enqueue()
            await handle.result(timeout=10)
        (claimed,), (completed,) = probe.seen(RunClaimed), probe.seen(RunCompleted)
    assert (claimed.trace_id, completed.trace_id) == (None, None)
    assert probe.seen(RunFailedEvent) == []


@pytest.mark.parametrize("text", [json.dumps(PARENT), json.dumps(PARENT, separators=(",", ":"))])
def test_the_id_is_read_as_either_database_writes_it(text: str):
    """With a space after the colon, or without."""
    assert trace_id_of(text) == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("text", [None, "{}", '{"traceparent": "00-short-01"}', "[1]"])
def test_what_is_no_trace_has_no_id(text: str | None):
    assert trace_id_of(text) is None


# --- never required


WORKS = """
import asyncio, sys
{before}
from ostinato import App
app = App("{url}")

@app.function
async def enrich(run) -> dict:
    return dict(run.log.extra)

async def main():
    async with app.worker():
        found = await (await enrich.enqueue()).result(timeout=10)
        carried = await {carried}
        print(found.get("trace_id"), carried)

async def with_trace():
    from msgspec import Raw
    from ostinato.model.change import RunInserted
    from ostinato.ids import new_id
    run = RunInserted(new_id(), "enrich", Raw(b"{{}}"), queue="default", trace=Raw(b'{parent}'))
    async with app._site.store() as store:
        await store.commit([run])
    return (await app.runs.handle(run.id).result(timeout=10)).get("trace_id")

async def nothing():
    return "opentelemetry" in sys.modules

asyncio.run(main())
"""


def run_apart(database: Database, *, before: str = "", carried: str) -> str:
    source = WORKS.format(before=before, url=database.url, carried=carried, parent=json.dumps(PARENT))
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", source]
    ended = subprocess.run(command, check=False, cwd=root, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_it_is_not_imported_unless_it_is_in_use(database: Database):
    """A process that never asked for it works without."""
    assert run_apart(database, carried="nothing()") == "None False"


def test_it_need_not_be_installed(database: Database):
    """A run that carries a trace is executed where it is missing; its id is in the logs all the same."""
    missing = 'sys.modules["opentelemetry"] = None'
    assert run_apart(database, before=missing, carried="with_trace()") == "None 0af7651916cd43dd8448eb211c80319c"
