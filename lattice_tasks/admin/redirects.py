"""`lattice-tasks dlq redirects`: what queues and tasks are called now, for replays of their old dead letters."""

from dataclasses import asdict, fields

import click

from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Change, Noun, changing
from lattice_tasks.tasks.redirects import Redirect

__all__ = ["redirects"]

_FIELDS = tuple(field.name for field in fields(Redirect))
_COLUMNS = ("id", "kind", "source", "target", "queue", "created_at")


@click.group(cls=Noun)
def redirects() -> None:
    """Redirects: add, list, remove.

    When a queue or a task was renamed, its old dead letters are replayed under the new name. A letter keeps its task's
    id and key, its message stays as it was, and it says what it was.
    """


@redirects.command()
@click.option("--from-queue", metavar="Q", help="Letters of this queue …")
@click.option("--to-queue", metavar="Q", help="… are replayed in this one.")
@click.option("--from-actor", metavar="NAME", help="Letters of this actor …")
@click.option("--to-actor", metavar="NAME", help="… are replayed as this one's.")
@click.option("--queue", metavar="Q", help="With --from-actor: only letters of this queue.")
@changing
@pass_desk
def add(
    desk: Desk,
    from_queue: str | None,
    to_queue: str | None,
    from_actor: str | None,
    to_actor: str | None,
    queue: str | None,
    change: Change,
) -> None:
    """Redirect one queue to another, or one actor to another, for every replay from now on."""
    source, target = from_queue or from_actor, to_queue or to_actor
    if change.is_dry:
        desk.screen.note(f"would redirect {source} to {target}")
        return
    with desk.acting(change, f"{source} → {target}") as act:
        made = desk.lattice.redirects.add(
            from_queue=from_queue, to_queue=to_queue, from_actor=from_actor, to_actor=to_actor, queue=queue
        )
        act.after = {"id": made.id, "kind": made.kind, "source": made.source, "target": made.target}
    desk.read_clock()
    desk.screen.one(asdict(made))


@redirects.command("list")
@pass_desk
def list_(desk: Desk) -> None:
    """Every redirect, the oldest first."""
    found = desk.lattice.redirects.list()
    desk.read_clock()
    desk.screen.many([asdict(one) for one in found], _FIELDS, _COLUMNS, "redirects")


@redirects.command()
@click.argument("redirect_id", metavar="ID", type=int)
@changing
@pass_desk
def remove(desk: Desk, redirect_id: int, change: Change) -> None:
    """Remove a redirect. What was replayed under it stays where it is."""
    if change.is_dry:
        desk.screen.note(f"would remove redirect {redirect_id}")
        return
    with desk.acting(change, str(redirect_id)) as act:
        found = {one.id: one for one in desk.lattice.redirects.list()}.get(redirect_id)
        desk.lattice.redirects.remove(redirect_id)
        if found is not None:
            act.before = {"kind": found.kind, "source": found.source, "target": found.target}
    desk.screen.note(f"redirect {redirect_id} removed")
