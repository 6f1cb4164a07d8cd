"""`lattice-tasks db`: the schema of the store, its soundness, and what may be thrown away."""

from dataclasses import asdict, fields

import click

from lattice_tasks import insights
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Change, Noun, changing
from lattice_tasks.insights import Check
from lattice_tasks.store.schema import status
from lattice_tasks.tasks.invocation import State

__all__ = ["db"]


@click.group(cls=Noun)
def db() -> None:
    """The store: migrate, check, prune."""


@db.command()
@changing
@pass_desk
def migrate(desk: Desk, change: Change) -> None:
    """Bring the store to the schema of this version. Safe to run from several hosts at once."""
    if change.is_dry:
        _, pending, _ = status(desk.lattice.engine)
        names = pending
    else:
        names = desk.lattice.migrate()
        if names:  # afterwards: before it there may be no table to record it in
            with desk.acting(change, "schema") as act:
                act.after = {"applied": list(names)}
    state = "pending" if change.is_dry else "applied"
    desk.screen.many(
        [{"name": name, "state": state} for name in names], ("name", "state"), ("name", "state"), "migrations to apply"
    )


@db.command()
@pass_desk
def check(desk: Desk) -> None:
    """Look for what must never be: invocations without a place, places without one, lost dead letters. Exit 1 if any."""
    with desk.session() as (session, namespace_id):
        found = insights.check_integrity(session)
        counted = insights.count_states(session, namespace_id)
    names = tuple(field.name for field in fields(Check))
    desk.screen.many([asdict(each) for each in found], names, ("code", "count", "means"), "checks")
    shown = ", ".join(f"{counted[state]} {state}" for state in State if counted.get(state))
    desk.screen.note(f"{sum(counted.values())} tasks kept in this namespace" + (f": {shown}" if shown else ""))
    faults = sum(each.count for each in found)
    if faults:
        desk.fail(
            1, f"{faults} fault{'s' if faults > 1 else ''} found; keep a copy of the store before you change anything"
        )
    desk.screen.note("the store is sound")


@db.command()
@changing
@pass_desk
def prune(desk: Desk, change: Change) -> None:
    """Remove finished tasks past their queue's retention. Workers do this by themselves; this does it now."""
    if change.is_dry:
        desk.screen.note("would remove finished tasks past their queue's retention; parked ones are never removed")
        return
    with desk.in_parts(change, "finished tasks", retention_ms=desk.lattice.settings.retention_ms) as act:
        removed = desk.lattice.prune()
        act.after = {"pruned": removed}
    desk.screen.one({"pruned": removed})
