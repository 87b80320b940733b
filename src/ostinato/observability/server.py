"""`/metrics`, `/livez`, `/readyz` and `/healthz`, over HTTP, from threads of their own."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from msgspec import json
from prometheus_client import CONTENT_TYPE_LATEST

from ..engine.worker import Worker
from ..errors import ConfigError
from ..telemetry import MetricsServed, Telemetry, logger
from .health import LOOP_LIMIT, Health, Pulse, Report
from .metrics import Metrics

POLL = 0.1
SLOWEST_CLIENT = 5.0


class Answer(NamedTuple):
    status: int
    kind: str
    body: bytes


class MetricsServer:
    """Where a worker can be asked how it is."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@contextmanager
def serving(
    metrics: Metrics, worker: Worker, telemetry: Telemetry, *, host: str, port: int, loop_limit: float = LOOP_LIMIT
) -> Iterator[MetricsServer]:
    """Answers for a worker of the running event loop, for the block. Port 0 is any that is free."""
    pulse = Pulse(asyncio.get_running_loop())
    health = Health(worker, metrics.aside, pulse, loop_limit=loop_limit)
    pages = {
        "/metrics": lambda: Answer(200, CONTENT_TYPE_LATEST, metrics.text()),
        "/livez": lambda: _told(health.alive(), worker),
        "/readyz": lambda: _told(health.ready(), worker),
        "/healthz": lambda: _told(health.ready(), worker),
    }
    server = _bound(host, port, pages, pulse.beat)
    thread = threading.Thread(target=server.serve_forever, args=(POLL,), name="ostinato metrics", daemon=True)
    thread.start()
    served = MetricsServer(host, server.server_address[1])
    telemetry.announce(MetricsServed(url=served.url))
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        metrics.aside.close()


def _told(report: Report, worker: Worker) -> Answer:
    body = {"status": "ok" if report.well else "failing", "worker": worker.id, "checks": report.checks}
    return Answer(200 if report.well else 503, "application/json", json.encode(body))


Pages = dict[str, Callable[[], Answer]]


def _bound(host: str, port: int, pages: Pages, beat: Callable[[], None]) -> _Server:
    try:
        return _Server(host, port, pages, beat)
    except OSError as error:
        raise ConfigError(
            f"metrics cannot be served on {host}:{port}: {error.strerror or error}; "
            "choose another with --metrics-port and --metrics-host, or port 0 for any that is free"
        ) from error


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_port = False  # two workers on one port would each be asked half of the time

    def __init__(self, host: str, port: int, pages: Pages, beat: Callable[[], None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages, self._beat = pages, beat
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without looking up our own name, which may take as long as the resolver likes

    def service_actions(self) -> None:
        self._beat()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # else the client went away
            logger.exception("a question to the metrics server failed")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SLOWEST_CLIENT
    server_version = "ostinato"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        page = self.server.pages.get(path)
        self._send(page() if page else _missing(path, self.server.pages))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Who asks whether we are well does not want to read of it in the log."""

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _missing(path: str, pages: Pages) -> Answer:
    body = {"error": f"there is nothing at {path}; there are {', '.join(pages)}"}
    return Answer(404, "application/json", json.encode(body))
