"""`lattice-tasks worker` and `dev`: running an app's tasks in supervised processes."""

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import click

from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Verb, When
from lattice_tasks.broker.child import command_of
from lattice_tasks.broker.supervisor import Supervisor
from lattice_tasks.clock import us_of
from lattice_tasks.errors import AppImportFailed
from lattice_tasks.insights import has_wal_fault
from lattice_tasks.masking import masked
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import POSTGRES, SQLITE
from lattice_tasks.telemetry import Telemetry, make_log

__all__ = ["dev", "worker"]

_KILL_AFTER_S = 5.0  # beyond what a child has for its own shutdown
_APPS = ("tasks.py", "app.py")


@click.command(cls=Verb)
@click.argument("app")
@click.option("--queues", metavar="Q,…", help="Serve only these; default: every queue the app declares.")
@click.option("--processes", type=click.IntRange(1, 1_000), metavar="N", help="Default: one per CPU.")
@click.option(
    "--threads", type=click.IntRange(1, 1_000), default=8, show_default=True, metavar="N", help="Per process."
)
@click.option(
    "--shutdown-timeout", type=When(), default="600s", show_default=True, metavar="SPAN", help="For running tasks."
)
@pass_desk
def worker(
    desk: Desk, app: str, queues: str | None, processes: int | None, threads: int, shutdown_timeout: timedelta
) -> int:
    """Run the tasks of APP: a module, module:attribute, or a file such as tasks.py.

    SIGTERM and Ctrl-C stop in good order, a second one at once. SIGHUP restarts one process after the other.
    """
    names = [name.strip() for name in (queues or "").split(",") if name.strip()]
    return _supervise(desk, app, names, processes or os.cpu_count() or 1, threads, _milliseconds(shutdown_timeout))


@click.command(cls=Verb)
@click.argument("app", required=False)
@click.option(
    "--threads", type=click.IntRange(1, 1_000), default=4, show_default=True, metavar="N", help="Of the worker."
)
@pass_desk
def dev(desk: Desk, app: str | None, threads: int) -> int:
    """Run one worker process for development. APP: default tasks.py, or app.py, of this folder."""
    found = app or next((name for name in _APPS if Path(name).is_file()), None)
    if found is None:
        raise AppImportFailed(
            f"there is neither {' nor '.join(_APPS)} in {Path.cwd()}; name the app: lattice-tasks dev APP"
        )
    settings = desk.settings()
    shape = "one embedded file, no services" if settings.store_url.startswith("sqlite:") else "a server"
    wakes = masked(settings.broker_url) or "none: workers look for work every few moments"
    desk.screen.note(f"app     {found}")
    desk.screen.note(f"store   {masked(settings.store_url)} ({shape})")
    desk.screen.note(f"broker  {wakes}")
    desk.screen.note(f"worker  1 process, {threads} threads; Ctrl-C stops it")
    desk.screen.note("look    lattice-tasks queues list | tasks list | dlq list")
    return _supervise(desk, found, [], 1, threads, 10_000)


def _supervise(
    desk: Desk, app: str, queues: Sequence[str], processes: int, threads: int, shutdown_timeout_ms: int
) -> int:
    level = "debug" if desk.is_verbose else "warning" if desk.given.get("quiet") else None
    settings = desk.settings(log_level=level)
    _warn_of_sqlite(desk, settings, processes)
    supervisor = Supervisor(
        command_of(app, queues, threads, shutdown_timeout_ms),
        processes,
        Telemetry(make_log(settings.log_level)),
        kill_after_s=shutdown_timeout_ms / 1_000 + _KILL_AFTER_S,
        environment=os.environ | _handed_on(desk, level),
    )
    return supervisor.run()


def _handed_on(desk: Desk, level: str | None) -> dict[str, str]:
    """Flags as environment for the children: not on their command line, where `ps` would show a password."""
    names = ("store_url", "broker_url", "namespace", "config")
    given = {f"LATTICE_{name.upper()}": desk.given[name] for name in names if name in desk.given}
    return given | ({"LATTICE_LOG_LEVEL": level} if level else {})


def _warn_of_sqlite(desk: Desk, settings: Settings, processes: int) -> None:
    engine = SQLITE if settings.store_url.startswith("sqlite:") else POSTGRES
    if processes > 1 and has_wal_fault(engine):
        desk.screen.complain(
            "warning: this SQLite can damage a file that several processes write; run with --processes 1, "
            "install pysqlite3, or use Postgres (see lattice-tasks doctor)"
        )


def _milliseconds(span: object) -> int:
    if not isinstance(span, timedelta):
        raise click.BadParameter("a span is needed here, such as 60s", param_hint="--shutdown-timeout")
    return us_of(span, "shutdown_timeout") // 1_000
