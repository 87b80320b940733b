"""`ostinato worker`: a process that works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from .options import app_of, connection_options, duration, wait_for

if TYPE_CHECKING:
    from ..app import App
    from ..config import Queue


@click.command(short_help="Work: claim runs and execute them until told to stop.")
@click.argument("app_name", metavar="MODULE:APP", required=False)
@click.option("--queues", metavar="NAME[:N],…", help="Queues to work on, and how many of its runs at a time.")
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs at a time, of each queue without N.")
@click.option("--lease", callback=duration, metavar="TIME", help="How long others wait before they take over (30s).")
@click.option("--poll", callback=duration, metavar="TIME", help="How often to look without being woken (30s).")
@click.option("--shutdown-grace", callback=duration, metavar="TIME", help="How long running runs may go on (30s).")
@click.option("--notify/--no-notify", default=None, help="Whether to be woken by the database, or only to poll.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve /metrics, /livez and /readyz there (0: any free port). Else $OSTINATO_METRICS_PORT.",
)
@click.option("--metrics-host", metavar="HOST", help="On which address (127.0.0.1). Else $OSTINATO_METRICS_HOST.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Else $OSTINATO_LOG_LEVEL.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Else $OSTINATO_LOG_FORMAT.")
@connection_options
@click.pass_context
def worker(
    context: click.Context,
    app_name: str | None,
    queues: str | None,
    concurrency: int | None,
    lease: float | None,
    poll: float | None,
    shutdown_grace: float | None,
    notify: bool | None,
    metrics_port: int | None,
    metrics_host: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Work: claim runs of the App's functions and execute them.

    The first SIGTERM or Ctrl-C stops claiming and lets running runs end within the shutdown grace; what has not ended
    by then, or at the second signal, is given back to the queue at once.

    \b
      ostinato worker radio:app
      ostinato worker radio:app --queues default:10,mail:5 --log-format json
      ostinato worker radio:app --metrics-port 9464
    """
    from .logs import set_up_logs

    context.meta["ostinato.app"] = app_name or _required(context)
    app = app_of(context)
    set_up_logs(log_level, log_format)
    app.configure(
        queues=_queues(app.settings.queues, queues, concurrency),
        lease=lease,
        poll=poll,
        shutdown_grace=shutdown_grace,
        notify=notify,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
    )
    _say_what_starts(app, chosen=queues is not None)
    wait_for(app.run_worker())


def _required(context: click.Context) -> str:
    reference = context.meta.get("ostinato.app")
    if reference is None:
        raise click.UsageError("name the App to work for, like: ostinato worker radio:app", context)
    return str(reference)


def _queues(configured: Mapping[str, Queue], chosen: str | None, concurrency: int | None) -> Mapping[str, Queue] | None:
    """The queues to work on. What else the app says of a queue, such as its cap, stays as it is."""
    from ..config import queues_from

    if chosen is None and concurrency is None:
        return None
    wanted = queues_from(chosen, "--queues") if chosen is not None else configured
    unnumbered = _unnumbered(chosen) if chosen is not None else set(configured)
    numbers = {name: concurrency if concurrency and name in unnumbered else wanted[name].concurrency for name in wanted}
    return {name: replace(configured.get(name, wanted[name]), concurrency=number) for name, number in numbers.items()}


def _unnumbered(chosen: str) -> set[str]:
    return {part.strip() for part in chosen.split(",") if ":" not in part}


def _say_what_starts(app: App, *, chosen: bool) -> None:
    from ..config import redacted
    from ..telemetry import logger

    count = len(app.registry.functions)
    functions = "1 function" if count == 1 else f"{count} functions"
    logger.info("working for %s on %s", functions, redacted(app.settings.url))
    for spec in app.registry if not chosen else ():
        if spec.queue not in app.settings.queues:
            logger.warning(
                "nobody works on queue %r of function %r here; name it in the App's queues= or in --queues",
                spec.queue,
                spec.name,
            )
