"""`lattice-tasks queues`: adding, looking at, pausing and resuming queues."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from lattice_tasks import insights
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Change, Noun, When, changing
from lattice_tasks.clock import us_of
from lattice_tasks.dead_letters.parking import EVICT, ON_FULL
from lattice_tasks.insights import QueuePicture
from lattice_tasks.queues.record import QueueRecord

__all__ = ["queues"]

_FIELDS = (
    "name", "kind", "state", "waiting", "scheduled", "running", "parked", "held", "oldest_waiting_at", "workers",
    "is_stalled", "retention_ms", "dlq_capacity", "dlq_on_full", "created_at", "updated_at", "id", "namespace",
)  # fmt: skip
_COLUMNS = (
    "name", "kind", "state", "waiting", "scheduled", "running", "parked", "held", "workers", "oldest_waiting_at",
)  # fmt: skip


@click.group(cls=Noun)
def queues() -> None:
    """Queues: add, list, show, depth, pause, resume."""


@queues.command()
@click.argument("name")
@click.option("--kind", default="fifo", show_default=True, metavar="KIND", help="In which order tasks are handed out.")
@click.option("--retention", type=When(), metavar="SPAN", help="How long finished tasks are kept, such as 7d.")
@click.option("--dlq-capacity", type=int, metavar="N", help="Dead letters kept.")
@click.option(
    "--dlq-on-full",
    type=click.Choice(ON_FULL),
    default=EVICT,
    show_default=True,
    help="Beyond them the oldest is evicted; or none is taken, and the queue stalls until there is room.",
)
@changing
@pass_desk
def add(
    desk: Desk,
    name: str,
    kind: str,
    retention: timedelta | None,
    dlq_capacity: int | None,
    dlq_on_full: str,
    change: Change,
) -> None:
    """Create the queue NAME. (A first submit creates its queue, too.)"""
    fields: dict[str, Any] = {
        "kind": kind.replace("-", "_"),
        "dlq_capacity": dlq_capacity,
        "dlq_on_full": dlq_on_full,
    }
    if retention is not None:
        if not isinstance(retention, timedelta):
            raise click.BadParameter("a span is needed here, such as 7d", param_hint="--retention")
        fields["retention_ms"] = us_of(retention, "retention") // 1_000
    if change.is_dry:
        desk.screen.note(f"would add queue {name}")
        return
    with desk.acting(change, name) as act:
        act.after = _settings(desk.lattice.queues.add(name, **fields))
    _show(desk, name)


@queues.command("list")
@pass_desk
def list_(desk: Desk) -> None:
    """Every queue, how much is in each of its places, and how many workers serve it."""
    with desk.session() as (session, namespace_id):
        found = insights.queue_depth(session, namespace_id, None, desk.lattice.settings.lease_ms)
    records = [_record(desk, queue) for queue in found]
    desk.screen.many(records, _FIELDS, _COLUMNS, "queues")


@queues.command()
@click.argument("name")
@pass_desk
def show(desk: Desk, name: str) -> None:
    """One queue with all its fields."""
    _show(desk, name)


@queues.command()
@click.argument("name")
@pass_desk
def depth(desk: Desk, name: str) -> None:
    """How many tasks of queue NAME wait, are scheduled, run, are parked and are held."""
    desk.screen.one(asdict(desk.lattice.queues.depth(name)))


@queues.command()
@click.argument("name")
@changing
@pass_desk
def pause(desk: Desk, name: str, change: Change) -> None:
    """Stop handing out tasks of queue NAME. Submits go on, what runs ends."""
    _switch(desk, name, "pause", change)


@queues.command()
@click.argument("name")
@changing
@pass_desk
def resume(desk: Desk, name: str, change: Change) -> None:
    """Hand out tasks of queue NAME again."""
    _switch(desk, name, "resume", change)


def _switch(desk: Desk, name: str, verb: str, change: Change) -> None:
    before = desk.lattice.queues.get(name)
    if change.is_dry:
        desk.screen.note(f"would {verb} queue {name}, which is {before.state}")
        return
    with desk.acting(change, name) as act:
        act.before = _settings(desk.lattice.queues.get(name))
        switch = desk.lattice.queues.pause if verb == "pause" else desk.lattice.queues.resume
        act.after = _settings(switch(name))
    _show(desk, name)


def _settings(queue: QueueRecord) -> dict[str, Any]:
    """What the audit keeps of a queue."""
    left_out = ("id", "namespace", "name", "created_at", "updated_at")
    return {name: value for name, value in asdict(queue).items() if name not in left_out}


def _show(desk: Desk, name: str) -> None:
    with desk.session() as (session, namespace_id):
        (found,) = insights.queue_depth(session, namespace_id, name, desk.lattice.settings.lease_ms)
    desk.screen.one(_record(desk, found))


def _record(desk: Desk, queue: QueuePicture) -> Mapping[str, Any]:
    own = {"namespace": desk.lattice.settings.namespace, "is_stalled": queue.is_stalled}
    flat = {**asdict(queue), **asdict(queue.depth), **own}
    return {name: flat[name] for name in _FIELDS}
