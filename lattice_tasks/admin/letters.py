"""Which dead letters a command means, and how it works through many of them with an answer for each.

A letter is named by its entry id on the shelf of `--queue`, or by its task's id, which needs no queue. What a command
works on is fixed before it begins: letters that arrive meanwhile are not touched.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import click

from lattice_tasks import insights
from lattice_tasks.admin.desk import CONFLICT, PARTLY, Desk
from lattice_tasks.admin.filters import Narrowed
from lattice_tasks.admin.options import Change
from lattice_tasks.admin.progress import progress
from lattice_tasks.audit import Act, ranges
from lattice_tasks.dead_letters.replay import Answer, Outcome
from lattice_tasks.dead_letters.shelf import Shelf
from lattice_tasks.errors import DeadLetterNotFound, TaskNotFound

__all__ = [
    "COLUMNS",
    "FIELDS",
    "Result",
    "Target",
    "audited",
    "counted",
    "end_with",
    "every",
    "outcomes",
    "queue_names",
    "show",
    "the_letter",
    "wanted",
    "work_through",
]

FIELDS = ("entry_id", "queue", "task_id", "outcome", "detail")
COLUMNS = ("entry_id", "queue", "outcome", "detail")
_PART = 100
_MOST_ROWS = 30
_MOST_NAMES = 5
_EVERY = Narrowed()


#: The option of verbs that take IDs or everything.
every = click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Every letter that is on the shelf of --queue now, or of --group on all; the filters narrow it.",
)


@dataclass(frozen=True, slots=True)
class Target:
    """One letter that was asked for. `detail` says why it cannot be on any shelf; empty: it was there a moment ago."""

    queue: str | None
    entry_id: int | None
    task_id: str | None = None
    detail: str = ""


@dataclass(slots=True)
class Result:
    """What became of one target; `outcome` is a word for the user."""

    target: Target
    outcome: str
    detail: str = ""

    @property
    def record(self) -> Mapping[str, Any]:
        """As it is shown."""
        target = self.target
        values = (target.entry_id, target.queue, target.task_id, self.outcome, self.detail or None)
        return dict(zip(FIELDS, values, strict=True))


@dataclass
class _Shelves:
    desk: Desk
    opened: dict[str, Shelf] = field(default_factory=dict)

    def of(self, queue: str) -> Shelf:
        if queue not in self.opened:
            self.opened[queue] = self.desk.lattice.dead_letters(queue)
        return self.opened[queue]


def wanted(
    desk: Desk, queue: str | None, ids: Sequence[str], is_all: bool, narrowed: Narrowed = _EVERY
) -> list[Target]:
    """The letters that the arguments name; with `--all`, those that lie on the shelf now, or of a group on all shelves.

    Raises:
        click.UsageError: neither or both were said, or an entry id without its queue.
        QueueNotFound, GroupNotFound: no such queue, no such group.
    """
    if is_all == bool(ids):
        raise click.UsageError("name the dead letters by ID, or say --all (not both)")
    if is_all:
        if queue is None and "group" not in narrowed.said:
            raise click.UsageError("--all needs --queue or --group: whose letters?")
        filters = narrowed.filter(desk).given
        return [
            Target(name, letter.entry_id, letter.task_id)
            for name in queue_names(desk, queue)
            for letter in desk.lattice.dead_letters(name).list(**filters)
        ]
    if not narrowed.is_empty:
        raise click.UsageError("filters narrow --all; IDs are meant as they are")
    if queue is not None:
        desk.lattice.queues.get(queue)
    named = [_target(desk, queue, text) for text in dict.fromkeys(ids)]
    twice = {(target.queue, target.entry_id or target.detail): target for target in reversed(named)}
    return [target for target in named if target in twice.values()]


def queue_names(desk: Desk, queue: str | None) -> list[str]:
    """The queue that was named, which must exist, or every queue of the namespace, by name."""
    if queue is not None:
        return [desk.lattice.queues.get(queue).name]
    return [record.name for record in desk.lattice.queues.list()]


def counted(targets: Sequence[Target]) -> str:
    """So many dead letters, and whose, for a question: `3 dead letters of queues a, b`."""
    queues = sorted({target.queue for target in targets if target.queue is not None})
    noun = f"{len(targets)} dead letter{'s' if len(targets) > 1 else ''}"
    if not queues:
        return noun
    if len(queues) > _MOST_NAMES:
        return f"{noun} of {len(queues)} queues"
    return f"{noun} of queue{'s' if len(queues) > 1 else ''} {', '.join(queues)}"


def the_letter(desk: Desk, queue: str | None, text: str) -> Target:
    """The one letter that an argument names.

    Raises:
        DeadLetterNotFound: it cannot be on any shelf.
    """
    (target,) = wanted(desk, queue, [text], is_all=False)
    if target.detail:
        raise DeadLetterNotFound(target.detail)
    return target


def work_through(
    desk: Desk, targets: Sequence[Target], label: str, done: str, act: Callable[[Shelf, Sequence[int]], list[Answer]]
) -> list[Result]:
    """Do it to every target, a part at a time, in the order given; `done` is the outcome's word when it was done."""
    shelves, results = _Shelves(desk), {}
    words = {Outcome.DONE: done, Outcome.UNKNOWN: "not_found"}
    by_queue: dict[str, list[Target]] = {}
    for target in targets:
        if target.detail or target.queue is None:
            results[target] = Result(target, "not_found", target.detail)
        else:
            by_queue.setdefault(target.queue, []).append(target)
    with progress(desk.screen, label, len(targets)) as advance:
        for queue, ours in by_queue.items():
            for start in range(0, len(ours), _PART):
                part = {target.entry_id or 0: target for target in ours[start : start + _PART]}
                for answer in act(shelves.of(queue), list(part)):
                    target = part[answer.entry_id]
                    results[target] = Result(target, words.get(answer.outcome, answer.outcome.value), answer.detail)
                advance(len(part))
    return [results[target] for target in targets]


def audited(desk: Desk, change: Change, targets: Sequence[Target]) -> AbstractContextManager[Act]:
    """The audit's block around work on many letters; `outcomes` of the results go into `after` of the act."""
    queues = sorted({target.queue for target in targets if target.queue is not None})
    return desk.in_parts(change, ", ".join(queues), letters=_by_queue(targets))


def outcomes(results: Sequence[Result]) -> dict[str, Any]:
    """Outcome → queue → entry ids, as the audit keeps them."""
    words = dict.fromkeys(result.outcome for result in results)
    return {word: _by_queue([result.target for result in results if result.outcome == word]) for word in words}


def _by_queue(targets: Sequence[Target]) -> dict[str, str]:
    entry_ids: dict[str, list[int]] = {}
    for target in targets:
        if target.queue is not None and target.entry_id is not None:
            entry_ids.setdefault(target.queue, []).append(target.entry_id)
    return {queue: ranges(ids) for queue, ids in entry_ids.items()}


def show(desk: Desk, results: Sequence[Result], good: Sequence[str]) -> None:
    """Every result; of many, a table holds only those that went wrong, and a count."""
    shown = list(results)
    if desk.screen.form == "table" and len(results) > _MOST_ROWS:
        shown = [result for result in results if result.outcome not in good]
        counted = Counter(_said(result.outcome).replace("_", " ") for result in results)
        desk.screen.script(", ".join(f"{count} {outcome}" for outcome, count in counted.items()) + "\n")
        if not shown:
            return
    records = [result.record for result in shown]
    if desk.screen.form == "table":
        records = [{**record, "outcome": _said(record["outcome"])} for record in records]
    desk.screen.many(records, FIELDS, COLUMNS, "dead letters")


def end_with(desk: Desk, results: Sequence[Result], good: Sequence[str]) -> None:
    """Leave with the exit code that tells how much was done: all, some, or nothing and why.

    Raises:
        click.exceptions.Exit: unless everything was done.
    """
    failed = [result for result in results if result.outcome not in good]
    if not failed:
        return
    bad = {result.outcome for result in failed}
    why = failed[0].detail or failed[0].outcome.replace("_", " ")
    desk.screen.complain(
        f"error: {len(failed)} of {len(results)} not done: {why}" if len(results) > 1 else f"error: {why}"
    )
    if any(result.outcome in good for result in results):
        raise click.exceptions.Exit(PARTLY)
    codes = {"not_found": DeadLetterNotFound.exit_code, "already_handled": CONFLICT}
    raise click.exceptions.Exit(codes.get(bad.pop(), 1) if len(bad) == 1 else 1)


def _said(outcome: str) -> str:
    """An outcome in a person's words."""
    return "being replayed" if outcome == Outcome.ALREADY_HANDLED else outcome


def _target(desk: Desk, queue: str | None, text: str) -> Target:
    if text.isascii() and text.isdecimal():
        if queue is None:
            raise click.UsageError(f"dead letter {text}: entry ids count per queue; add --queue, or give the task's id")
        try:
            return Target(queue, int(text), desk.lattice.dead_letters(queue).get(int(text)).task_id or None)
        except DeadLetterNotFound as error:
            return Target(queue, int(text), detail=str(error))
    try:
        with desk.session() as (session, namespace_id):
            task = insights.show_task(session, namespace_id, text).task
    except TaskNotFound:
        return Target(queue, None, detail=f"no dead letter and no task {text}")
    if task.entry_id is None or (queue is not None and task.queue != queue):
        if task.replaced_by is not None:
            return Target(queue, None, task.id, f"task {task.id} was edited: {task.replaced_by} took its place")
        where = f" of queue {queue}" if queue else ""
        return Target(
            queue, None, task.id, f"task {task.id} is {task.state} in queue {task.queue}; not on the shelf{where}"
        )
    return Target(task.queue, task.entry_id, task.id)
