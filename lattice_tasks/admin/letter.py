"""`lattice-tasks dlq show`: one dead letter, all that is known of it, beside the last good run of its actor."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

import click

from lattice_tasks import insights
from lattice_tasks.admin import letters
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Verb
from lattice_tasks.admin.screen import since
from lattice_tasks.dead_letters.call import Call, Difference, call_of, names_in, path_part
from lattice_tasks.dead_letters.comparison import Comparison
from lattice_tasks.dead_letters.entry import DeadLetter, Life
from lattice_tasks.dead_letters.fingerprint import fingerprint
from lattice_tasks.errors import TaskNotFound
from lattice_tasks.masking import HIDDEN, hidden, is_secret

__all__ = ["FIELDS", "difference_lines", "difference_records", "record_of", "show"]

FIELDS = (
    "entry_id", "task_id", "queue", "actor", "group", "reason", "error", "attempts", "parked_at", "submitted_at", "key",
    "priority", "worker", "version", "is_replaying", "earlier_lives",
)  # fmt: skip
_LIFE = ("ended", "parked_at", "reason", "error", "traceback", "attempts", "worker", "version")
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_MOST_CELLS = 60  # of one value in a difference


@click.command(cls=Verb)
@click.argument("letter_id", metavar="ID")
@click.option("--queue", metavar="Q", help="The queue; not needed with a task's id.")
@pass_desk
def show(desk: Desk, letter_id: str, queue: str | None) -> None:
    """One dead letter: why it failed, what it was called with, what the last good run did otherwise, every life.

    Arguments whose names look like secrets are shown as *** (setting `redact`).
    """
    target = letters.the_letter(desk, queue, letter_id)
    shelf = desk.lattice.dead_letters(target.queue or "")
    letter = shelf.get(target.entry_id or 0)
    comparison = shelf.compare(letter.entry_id) if letter.is_readable else Comparison(None, 0)
    desk.read_clock()
    words = desk.lattice.settings.redact
    call = call_of(letter.body)
    record = {**record_of(letter, shelf.queue_name), "replay_of": _parent_of(desk, letter)}
    if desk.screen.form == "table":
        record |= _texts(desk, letter, shelf.queue_name, call, comparison, words)
    else:
        record |= _facts(letter, call, comparison, words)
    if not letter.is_readable:
        record["body"] = letter.body
    desk.screen.one(record, blocks=("error", "arguments", "difference", "lives", "notes", "traceback", "next"))


def record_of(letter: DeadLetter, queue: str) -> dict[str, Any]:
    """A letter in the fields of a list."""
    known = {
        "queue": queue,
        "group": fingerprint(letter.actor, letter.error, letter.traceback),
        "earlier_lives": letter.failed_replays,
    }
    return {name: known[name] if name in known else getattr(letter, name) for name in FIELDS}


def difference_records(found: Sequence[Difference], words: Sequence[str]) -> list[dict[str, Any]]:
    """Differences as data, secrets hidden."""
    return [
        {
            "path": one.path,
            "kind": one.kind,
            "before": None if one.kind == "added" else _shown(one.path, one.before, words),
            "after": None if one.kind == "removed" else _shown(one.path, one.after, words),
        }
        for one in found
    ]


def difference_lines(found: Sequence[Difference], words: Sequence[str]) -> list[str]:
    """Differences as a person reads them: `~ kwargs.lr  0.1 -> 5`, secrets hidden."""
    width = max((len(one.path) for one in found), default=0)
    lines = []
    for one, record in zip(found, difference_records(found, words), strict=True):
        sides = [_brief(record[side]) for side, kind in (("before", "added"), ("after", "removed")) if one.kind != kind]
        lines.append(f"{_SIGNS[one.kind]} {one.path.ljust(width)}  {' -> '.join(sides)}")
    return lines


def _shown(path: str, value: Any, words: Sequence[str]) -> Any:
    return HIDDEN if any(is_secret(name, words) for name in names_in(path)[1:]) else hidden(value, words)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_CELLS else text[: _MOST_CELLS - 1] + "…"


def _parent_of(desk: Desk, letter: DeadLetter) -> str | None:
    try:
        with desk.session() as (session, namespace_id):
            return insights.show_task(session, namespace_id, letter.task_id).task.replay_of
    except TaskNotFound:  # a letter that cannot be read names none
        return None


def _facts(letter: DeadLetter, call: Call | None, comparison: Comparison, words: Sequence[str]) -> dict[str, Any]:
    good = comparison.good
    return {
        "args": None if call is None else hidden(call.args, words),
        "kwargs": None if call is None else hidden(call.kwargs, words),
        "options": (hidden(call.options, words) or None) if call else None,
        "lives": [{name: getattr(life, name) for name in _LIFE} for life in _lives(letter)],
        "forgotten_lives": letter.forgotten_lives,
        "notes": [{"at": note.at, "text": note.text} for note in letter.notes],
        "traceback": letter.traceback or None,
        "last_good_run": None if good is None else {
            "task_id": good.task_id,
            "submitted_at": good.submitted_at,
            "finished_at": good.finished_at,
            "failures": good.failures,
        },
        "looked_at": comparison.looked_at,
        "differences": difference_records(comparison.differences, words),
    }  # fmt: skip


def _texts(
    desk: Desk, letter: DeadLetter, queue: str, call: Call | None, comparison: Comparison, words: Sequence[str]
) -> dict[str, Any]:
    return {
        "arguments": None if call is None else _arguments(call, words),
        "difference": _difference(desk, call, comparison, words),
        "lives": _told_lives(desk, letter),
        "notes": "\n".join(f"{note.at:%Y-%m-%d %H:%M:%SZ}  {note.text}" for note in letter.notes),
        "traceback": letter.traceback or None,
        "next": _next(letter, queue),
    }


def _next(letter: DeadLetter, queue: str) -> str:
    if letter.is_replaying:
        return f"how it goes  lattice-tasks tasks show {letter.task_id}"
    place, program = f"{letter.entry_id} --queue {shlex.quote(queue)}", "lattice-tasks dlq"
    if not letter.is_readable:
        return f"give it up   {program} discard {place}"
    return "\n".join(
        [
            f"try again    {program} replay {place} --wait 30",
            f"repair it    {program} edit {place} --set PATH=JSON",
            f"give it up   {program} discard {place}",
        ]
    )


def _arguments(call: Call, words: Sequence[str]) -> str:
    """One argument a line where it fits; what is nested opens up."""
    lines = [f"args.{position} = {_pretty(value, words)}" for position, value in enumerate(call.args)]
    lines += [f"kwargs.{path_part(name)} = {_pretty(value, words, name)}" for name, value in call.kwargs.items()]
    lines += [f"option {name} = {_pretty(value, words, name)}" for name, value in call.options.items()]
    return "\n".join(lines) or "none"


def _pretty(value: Any, words: Sequence[str], name: str = "") -> str:
    shown = HIDDEN if is_secret(name, words) else hidden(value, words)
    if shown == HIDDEN:
        return HIDDEN
    text = json.dumps(shown, ensure_ascii=False)
    return text if len(text) <= _MOST_CELLS else json.dumps(shown, ensure_ascii=False, indent=2)


def _difference(desk: Desk, call: Call | None, comparison: Comparison, words: Sequence[str]) -> str:
    good, now = comparison.good, desk.screen.now
    if good is None:
        return f"no good run of this actor among the last {comparison.looked_at:,} tasks"
    if call is None:
        return "the message cannot be read"
    age = since(good.finished_at or good.submitted_at, now) if now else ""
    head = f"to the last good run, {good.task_id}, {age}"
    lines = difference_lines(comparison.differences, words) or ["none: it succeeded with the same arguments"]
    return "\n".join([head, *lines])


def _lives(letter: DeadLetter) -> list[Life]:
    last = Life(**{name: getattr(letter, name) for name in _LIFE})
    return [*letter.lives, last]


def _told_lives(desk: Desk, letter: DeadLetter) -> str:
    lines = []
    for life in _lives(letter):
        age = f" ({since(life.parked_at, desk.screen.now)})" if desk.screen.now else ""
        failures = f"{life.attempts} attempt{'' if life.attempts == 1 else 's'} failed"
        where = f", on {life.worker}" if life.worker else ""
        version = f", version {life.version}" if life.version else ""
        lines.append(f"{life.parked_at:%Y-%m-%d %H:%M:%SZ}{age}  {life.ended}: {life.reason.replace('_', '-')}")
        lines.append(f"    {failures}{where}{version}")
        lines.append(f"    {life.error.splitlines()[0] if life.error else ''}")
    if letter.forgotten_lives:
        lines.insert(3, f"… {letter.forgotten_lives} more lives that are not kept …")
    return "\n".join(lines)
