"""`lattice-tasks workers`: who works, and asking one to finish and leave."""

from dataclasses import asdict, fields

import click

from lattice_tasks import insights
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Change, Noun, changing
from lattice_tasks.errors import WorkerNotFound
from lattice_tasks.insights import WorkerPicture
from lattice_tasks.store.workers import set_state

__all__ = ["workers"]

_FIELDS = tuple(field.name for field in fields(WorkerPicture))
_COLUMNS = ("id", "host", "pid", "state", "threads", "running", "started_at", "seen_at", "queues")


@click.group(cls=Noun)
def workers() -> None:
    """Workers: list, drain."""


@workers.command("list")
@pass_desk
def list_(desk: Desk) -> None:
    """Every registered worker process, what it runs, and when it last beat."""
    with desk.session() as (session, namespace_id):
        found = insights.list_workers(session, namespace_id)
    desk.screen.many([asdict(worker) for worker in found], _FIELDS, _COLUMNS, "workers")
    lease_s = desk.lattice.settings.lease_ms / 1_000
    for worker in found:
        if worker.silent_s > lease_s / 2:
            desk.screen.note(f"worker {worker.id} has been silent for {worker.silent_s:.0f} s; lease: {lease_s:.0f} s")


@workers.command()
@click.argument("worker_id", metavar="ID", type=int)
@changing
@pass_desk
def drain(desk: Desk, worker_id: int, change: Change) -> None:
    """Let worker ID take nothing new, finish what it runs, and stay idle until it is stopped."""
    with desk.session() as (session, namespace_id):
        found = [worker for worker in insights.list_workers(session, namespace_id) if worker.id == worker_id]
    if not found:
        raise WorkerNotFound(f"no worker {worker_id}; see `lattice-tasks workers list`")
    (worker,) = found
    what = f"worker {worker.id} ({worker.host}, pid {worker.pid}, running {worker.running})"
    desk.confirm(change, f"Drain {what}? It finishes what it runs and takes nothing new.")
    if change.is_dry:
        desk.screen.note(f"would drain {what}")
        return
    with desk.acting(change, str(worker_id)) as act, desk.session() as (session, namespace_id):
        if not set_state(session, namespace_id, worker_id, "draining"):
            raise WorkerNotFound(f"worker {worker_id} has left in the meantime")
        act.before = {"state": worker.state, "host": worker.host, "pid": worker.pid}
        act.after = {"state": "draining"}
    desk.screen.one({"id": worker_id, "state": "draining", "running": worker.running})
