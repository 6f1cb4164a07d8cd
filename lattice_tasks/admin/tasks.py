"""`lattice-tasks tasks`: submitting, finding, looking at, cancelling and awaiting tasks."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

import click

from lattice_tasks import insights
from lattice_tasks.admin.desk import CONFLICT, TIMED_OUT, Desk, pass_desk
from lattice_tasks.admin.escape import one_line
from lattice_tasks.admin.options import Change, JsonText, Noun, OneOf, Seconds, When, changing
from lattice_tasks.errors import ActorUnknown, NotFinished, ReservedName
from lattice_tasks.insights import TaskPicture
from lattice_tasks.masking import hidden
from lattice_tasks.tasks.invocation import State
from lattice_tasks.why import Reason
from lattice_tasks.why import why as explain

__all__ = ["tasks"]

_FIELDS = tuple(field.name for field in fields(TaskPicture))
_COLUMNS = ("id", "queue", "actor", "state", "attempt", "submitted_at", "error")
_REASON = tuple(field.name for field in fields(Reason))
_STATES = tuple(state.value for state in State if state is not State.NEW)


@click.group(cls=Noun)
def tasks() -> None:
    """Tasks: submit, list, show, why, cancel, wait."""


@tasks.command()
@click.argument("queue")
@click.argument("actor")
@click.option("--args", type=JsonText(list, "a JSON array"), default="[]", help="Positional arguments: '[\"r1\", 2]'.")
@click.option(
    "--kwargs", type=JsonText(dict, "a JSON object"), default="{}", help="Keyword arguments: '{\"lr\": 0.2}'."
)
@click.option("--key", metavar="TEXT", help="Idempotency key: a second submit of it gives the first task's id.")
@click.option("--priority", type=int, metavar="N", help="Higher is more urgent; default 0.")
@click.option("--delay", type=When(), metavar="WHEN", help="Not before: 30, 90s, 1h30m, or an instant with its zone.")
@click.option("--deadline", type=When(), metavar="WHEN", help="Not after: a span or an instant; then it expires.")
@click.option("--force", is_flag=True, help="Also when no worker knows the actor.")
@changing
@pass_desk
def submit(
    desk: Desk,
    queue: str,
    actor: str,
    args: list[Any],
    kwargs: dict[str, Any],
    key: str | None,
    priority: int | None,
    delay: timedelta | datetime | None,
    deadline: timedelta | datetime | None,
    force: bool,
    change: Change,
) -> None:
    """Submit a task for ACTOR to QUEUE."""
    ours = [name for name in kwargs if name.startswith("_")]
    if ours:
        raise ReservedName(
            f"--kwargs: names like {ours[0]!r} are kept for us; see --key, --priority, --delay, --deadline"
        )
    with desk.session() as (session, namespace_id):
        workers = insights.live_workers(insights.list_workers(session, namespace_id), desk.lattice.settings.lease_ms)
    known = insights.known_actors(workers)
    if workers and actor not in known and not force:
        shown = ", ".join(sorted(known)[:20]) or "none"
        raise ActorUnknown(
            f"no worker knows an actor {actor!r} (known: {shown}); nothing was submitted; --force submits"
        )
    if change.is_dry:
        desk.screen.note(f"would submit {actor} to queue {queue}")
        return
    options: dict[str, Any] = {"key": key, "priority": priority, "delay": delay, "deadline": deadline}
    with desk.acting(change, queue) as act:
        job = desk.lattice.submit(queue, actor, args, kwargs, **options)
        act.after = {"task_id": job.id, "actor": actor, "created": job.created}
    if not any(queue in worker.queues for worker in workers):
        desk.screen.note(f"note: no worker serves queue {queue} at the moment")
    if not job.created:
        differs = "; it was submitted with other arguments" if job.args_mismatch else ""
        desk.screen.note(f"note: key {key!r} was there already; this is its task{differs}")
    desk.screen.value({"id": job.id, "queue": queue, "actor": actor, "created": job.created}, job.id)


@tasks.command("list")
@click.option("--queue", metavar="Q", help="Only this queue's.")
@click.option("--state", type=OneOf(_STATES), metavar="STATE", help=f"One of {', '.join(_STATES)}.")
@click.option("--actor", metavar="NAME", help="Only of this actor.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@pass_desk
def list_(desk: Desk, queue: str | None, state: str | None, actor: str | None, limit: int) -> None:
    """Tasks, the newest first."""
    with desk.session() as (session, namespace_id):
        found = insights.list_tasks(session, namespace_id, queue=queue, state=state, actor=actor, limit=limit)
    desk.screen.many([asdict(task) for task in found], _FIELDS, _COLUMNS, "tasks")
    if len(found) == limit:
        desk.screen.note(f"the newest {limit}; --limit N shows more")


@tasks.command()
@click.argument("task_id", metavar="ID")
@pass_desk
def show(desk: Desk, task_id: str) -> None:
    """One task: its state, arguments, result or error."""
    desk.screen.one(_detail(desk, task_id), blocks=("error", "traceback"))


@tasks.command()
@click.argument("task_id", metavar="ID")
@pass_desk
def why(desk: Desk, task_id: str) -> None:
    """Why a task has not started or not finished: every reason, the most decisive first, and what to do."""
    with desk.session() as (session, namespace_id):
        reasons = explain(session, namespace_id, task_id, desk.lattice.settings)
    if desk.screen.form == "table":
        lines = [one_line(reason.text) + (f"  [{one_line(reason.todo)}]" if reason.todo else "") for reason in reasons]
        desk.screen.script("".join(f"{line}\n" for line in lines))
        return
    desk.screen.many([asdict(reason) for reason in reasons], _REASON, _REASON, "reasons")


@tasks.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@changing
@pass_desk
def cancel(desk: Desk, ids: tuple[str, ...], change: Change) -> None:
    """Cancel tasks: one that has not started never will; a running one is interrupted.

    The interrupt reaches a running task at its next step of Python; a call that blocks, such as a sleep, ends first.
    """
    why = f"{change.reason or 'cancelled from the command line'} (by {desk.operator})"
    found = [_detail(desk, task_id) for task_id in dict.fromkeys(ids)]
    desk.confirm(change, f"Cancel {len(found)} task{'s' if len(found) > 1 else ''}?")
    records = []
    for task in found:
        if change.is_dry:
            outcome = "would_cancel" if State(task["state"]).is_open else task["state"]
        else:
            with desk.acting(change, task["id"]) as act:
                act.before = {"state": task["state"]}
                done = desk.lattice.job(task["id"]).cancel(reason=why)
                act.after = {"cancelled": done}
            outcome = "cancelling" if done and task["state"] == State.RUNNING else "cancelled" if done else "too_late"
        records.append({"id": task["id"], "queue": task["queue"], "actor": task["actor"], "outcome": outcome})
    columns = ("id", "queue", "actor", "outcome")
    desk.screen.many(records, columns, columns, "tasks")
    late = [record["id"] for record in records if record["outcome"] == "too_late"]
    if late:
        code = CONFLICT if len(late) == len(records) else 5
        desk.fail(code, f"{len(late)} had ended already and stay as they are: {', '.join(late)}")


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.option("--timeout", "timeout_s", type=Seconds(), metavar="SPAN", help="Give up after 30, 90s, 5m; exit 75.")
@pass_desk
def wait(desk: Desk, task_id: str, timeout_s: float | None) -> None:
    """Wait until a task has ended, and show how. Exit 0: it succeeded."""
    task = _detail(desk, task_id)
    failed = ""
    if State(task["state"]).is_open:
        desk.screen.note(f"task {task['id']} is {task['state']}; waiting for its end")
    try:
        desk.lattice.job(task["id"]).result(timeout=timeout_s)
    except NotFinished as error:
        failed = str(error)
    except TimeoutError:
        desk.fail(TIMED_OUT, f"task {task['id']} has not ended within {timeout_s:g} s; it goes on")
    desk.screen.one(_detail(desk, task_id), blocks=("error", "traceback"))
    if failed:
        desk.fail(1, failed)


def _detail(desk: Desk, task_id: str) -> Mapping[str, Any]:
    with desk.session() as (session, namespace_id):
        shown = insights.show_task(session, namespace_id, task_id)
    words = desk.lattice.settings.redact
    return {
        **asdict(shown.task),
        "args": hidden(shown.args, words),
        "kwargs": hidden(shown.kwargs, words),
        "options": hidden(shown.options, words) or None,
        "result": shown.result,
        "traceback": shown.traceback,
    }
