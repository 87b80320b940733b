"""The trace of the enqueuing code, carried into the run as W3C trace context, when OpenTelemetry is in use.

It is in use when the application has imported its API and has set a tracer provider, or is inside a span; for a run
that carries a trace it is enough that the API can be imported. Otherwise nothing is imported and nothing is done.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Raw, json

from ..model.outcome import Cancelled, Done, Failed, GivenBack, Interrupted, Lost, Outcome, Settled, Unknown
from ..model.run import Claimed

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_API = "opentelemetry.trace"
_NOTHING: AbstractContextManager[None] = nullcontext()
_TRACE_ID = re.compile(r'"traceparent": ?"[0-9a-f]{2}-([0-9a-f]{32})-')


def trace_id_of(trace: str | None) -> str | None:
    """The id of the trace that a run carries.

    >>> trace_id_of('{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}')
    '0af7651916cd43dd8448eb211c80319c'
    """
    found = None if trace is None else _TRACE_ID.search(trace)
    return None if found is None else found[1]


# --- enqueuing ------------------------------------------------------------------------------------------------------


def sending(function: str) -> AbstractContextManager[Span | None]:
    """A span around enqueuing, whose context the runs carry; see `sent`."""
    return _send_span(function) if _in_use() else _NOTHING


def sent(span: Span | None, queue: str | None, ids: Sequence[str]) -> None:
    """Says on the span what was enqueued."""
    if span is not None:
        if queue is not None:
            span.set_attribute("messaging.destination.name", queue)
        if len(ids) == 1:
            span.set_attribute("messaging.message.id", ids[0])
        else:
            span.set_attribute("messaging.batch.message_count", len(ids))


def carried() -> Raw | None:
    """The current context, for a run that is about to be inserted."""
    if sys.modules.get(_API) is None:
        return None
    carrier: dict[str, str] = {}
    _bridge().propagator.inject(carrier)
    return Raw(json.encode(carrier)) if carrier else None


def _send_span(function: str) -> AbstractContextManager[Span]:
    bridge = _bridge()
    kind, attributes = bridge.api.SpanKind.PRODUCER, _attributes("send", function)
    return bridge.tracer().start_as_current_span(f"send {function}", kind=kind, attributes=attributes)


# --- executing ------------------------------------------------------------------------------------------------------


class Processing:
    """The span around one attempt."""

    def __init__(self, bridge: _Bridge, run: Claimed, worker: str) -> None:
        self._bridge = bridge
        parent = bridge.context_of(run.trace)
        self._span = bridge.tracer().start_span(
            f"process {run.function}",
            context=parent,
            kind=bridge.api.SpanKind.CONSUMER,
            attributes={
                **_attributes("process", run.function),
                "messaging.destination.name": run.queue,
                "messaging.message.id": run.id,
                "messaging.client.id": worker,
                "ostinato.attempt": run.attempt,
            },
        )
        self._token = bridge.contexts.attach(bridge.api.set_span_in_context(self._span, parent))

    @property
    def trace_id(self) -> str | None:
        seen = self._span.get_span_context()
        return self._bridge.api.format_trace_id(seen.trace_id) if seen.is_valid else None

    def end(self, outcome: Outcome) -> None:
        """The attempt is over; what went wrong is recorded."""
        self._span.set_attribute("ostinato.outcome", _WORDS[type(outcome)])
        match outcome:
            case Failed(code, message, error):
                self._fail(code, message)
                if error is not None:
                    self._span.add_event("exception", _exception(error, outcome))
            case Interrupted(message):
                self._fail("store_unavailable", message)
            case Lost():
                self._fail("lease_lost", "the run belongs to another worker by now")
        self._span.end()
        self._bridge.contexts.detach(self._token)

    def _fail(self, code: str, message: str) -> None:
        self._span.set_attribute("error.type", code)
        self._span.set_status(self._bridge.api.Status(self._bridge.api.StatusCode.ERROR, message))


def _exception(error: BaseException, failed: Failed) -> dict[str, str]:
    """What `record_exception` would say, without asking the exception, which may raise another."""
    kind = type(error)
    return {
        "exception.type": f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": failed.message,
        "exception.stacktrace": failed.traceback or "",
    }


def processing(run: Claimed, worker: str) -> Processing | None:
    """The span for an attempt that begins now, current from now on in this task; None when nobody traces."""
    if run.trace is None:
        return Processing(_bridge(), run, worker) if _API in sys.modules and _in_use() else None
    return Processing(_bridge(), run, worker) if _importable() else None


_WORDS: dict[type[Outcome], str] = {
    Done: "completed",
    Settled: "completed",
    Failed: "failed",
    Cancelled: "cancelled",
    GivenBack: "given_back",
    Interrupted: "interrupted",
    Unknown: "unknown_function",
    Lost: "lost",
}


# --- OpenTelemetry --------------------------------------------------------------------------------------------------


def _in_use() -> bool:
    api: Any = sys.modules.get(_API)
    if api is None:
        return False
    if not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return True
    return bool(api.get_current_span().get_span_context().is_valid)


@cache
def _importable() -> bool:
    return _API in sys.modules or (find_spec("opentelemetry") is not None and find_spec(_API) is not None)


def _attributes(operation: str, function: str) -> dict[str, str | int]:
    return {
        "messaging.system": "ostinato",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "ostinato.function": function,
    }


class _Bridge:
    """What we use of the API, imported when it is first needed."""

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.api, self.contexts = trace, context
        self.propagator = TraceContextTextMapPropagator()
        self._provider: object = None
        self._tracer: Tracer | None = None

    def tracer(self) -> Tracer:
        """The tracer of the provider that is set by now."""
        provider = self.api.get_tracer_provider()
        if self._tracer is None or provider is not self._provider:
            self._provider, self._tracer = provider, provider.get_tracer("ostinato")
        return self._tracer

    def context_of(self, trace: str | None) -> Context:
        """The context that a run carries, and nothing of the one in which the worker was started."""
        return self.propagator.extract(_carrier(trace), context=self.contexts.Context())


@cache
def _bridge() -> _Bridge:
    return _Bridge()


def _carrier(trace: str | None) -> dict[str, str]:
    """What was carried, as far as it can be understood: plain SQL may have written anything."""
    try:
        return json.decode(trace, type=dict[str, str]) if trace else {}
    except DecodeError:
        return {}
