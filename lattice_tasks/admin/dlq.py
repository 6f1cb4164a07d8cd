"""`lattice-tasks dlq`: looking at dead letters and discarding them; replaying them is in `replays.py`."""

import json
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from lattice_tasks.admin import letters
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Change, Noun, OneOf, changing
from lattice_tasks.admin.replays import replay
from lattice_tasks.dead_letters.entry import REASONS, DeadLetter

__all__ = ["dlq"]

_FIELDS = (
    "entry_id", "task_id", "queue", "actor", "reason", "error", "attempts", "parked_at", "submitted_at", "key",
    "priority", "worker", "version", "is_replaying", "earlier_lives",
)  # fmt: skip
_COLUMNS = ("entry_id", "queue", "actor", "reason", "attempts", "parked_at", "is_replaying", "error")
_TAGS = ", ".join(REASONS).replace("_", "-")
_GOOD = ("discarded", "would_discard")


@click.group(cls=Noun)
def dlq() -> None:
    """Dead letters: list, count, show, discard, replay.

    A dead letter is a task that failed for good. Name it by its entry id with --queue, or by its task's id.
    """


@dlq.command("list")
@click.option("--queue", metavar="Q", help="Only this queue's shelf; default: every queue's.")
@click.option("--only", "--reason", "reason", type=OneOf(REASONS), metavar="TAG", help=f"Only this reason: {_TAGS}.")
@click.option("--actor", metavar="NAME", help="Only letters of this actor.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N letters of each queue, the oldest.")
@pass_desk
def list_(desk: Desk, queue: str | None, reason: str | None, actor: str | None, limit: int | None) -> None:
    """Dead letters, the oldest first."""
    found: list[DeadLetter] = []
    for name in _queues(desk, queue):
        found += desk.lattice.dead_letters(name).list(reason=reason, actor=actor, limit=limit)
    desk.read_clock()
    desk.screen.many([_record(letter) for letter in found], _FIELDS, _COLUMNS, "dead letters")


@dlq.command()
@click.option("--queue", metavar="Q", help="Only this queue's shelf; default: every queue's.")
@pass_desk
def count(desk: Desk, queue: str | None) -> None:
    """How many dead letters there are."""
    total = sum(desk.lattice.dead_letters(name).count() for name in _queues(desk, queue))
    desk.screen.value({"count": total}, str(total))


@dlq.command()
@click.argument("letter_id", metavar="ID")
@click.option("--queue", metavar="Q", help="The queue; not needed with a task's id.")
@pass_desk
def show(desk: Desk, letter_id: str, queue: str | None) -> None:
    """One dead letter: what was asked, why it failed, and its earlier lives."""
    target = letters.the_letter(desk, queue, letter_id)
    letter = desk.lattice.dead_letters(target.queue or "").get(target.entry_id or 0)
    desk.read_clock()
    message = _message(letter.body)
    lives: Any = [msgspec.to_builtins(life) for life in letter.lives]
    if desk.screen.form == "table":
        lives = "\n".join(f"{life.parked_at:%Y-%m-%dT%H:%M:%SZ}  {life.ended}: {life.error}" for life in letter.lives)
    record = {
        **_record(letter),
        "args": message.get("args"),
        "kwargs": message.get("kwargs"),
        "options": message.get("options") or None,
        "lives": lives or None,
        "traceback": letter.traceback or None,
    }
    if not letter.is_readable:
        record["body"] = letter.body
    desk.screen.one(record, blocks=("error", "traceback", "lives"))


@dlq.command()
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--queue", metavar="Q", help="The queue; not needed with tasks' ids.")
@click.option("--all", "is_all", is_flag=True, help="Every letter on the shelf of --queue.")
@click.option("--only", type=OneOf(REASONS), metavar="TAG", help=f"With --all, only this reason: {_TAGS}.")
@click.option("--actor", metavar="NAME", help="With --all: only letters of this actor.")
@changing
@pass_desk
def discard(
    desk: Desk,
    ids: tuple[str, ...],
    queue: str | None,
    is_all: bool,
    only: str | None,
    actor: str | None,
    change: Change,
) -> None:
    """Throw dead letters away for good; their tasks end as discarded."""
    targets = letters.wanted(desk, queue, ids, is_all, only, actor)
    if not targets:
        desk.screen.many([], letters.FIELDS, letters.COLUMNS, "dead letters")
        return
    noun = f"{len(targets)} dead letter{'s' if len(targets) > 1 else ''}" + (f" of queue {queue}" if queue else "")
    desk.confirm(change, f"Discard {noun} for good?")
    if change.is_dry:
        results = [letters.Result(target, "would_discard", target.detail) for target in targets]
    else:
        with letters.audited(desk, change, targets) as act:
            results = letters.work_through(
                desk, targets, "discarding", "discarded", lambda shelf, part: shelf.discard_many(part)
            )
            act.after = letters.outcomes(results)
    letters.show(desk, results, _GOOD)
    letters.end_with(desk, results, _GOOD)


dlq.add_command(replay)


def _queues(desk: Desk, queue: str | None) -> list[str]:
    if queue is not None:
        return [desk.lattice.queues.get(queue).name]
    return [record.name for record in desk.lattice.queues.list()]


def _record(letter: DeadLetter) -> dict[str, Any]:
    earlier = len(letter.lives) + letter.forgotten_lives
    return {name: earlier if name == "earlier_lives" else getattr(letter, name) for name in _FIELDS}


def _message(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
