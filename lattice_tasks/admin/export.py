"""`lattice-tasks dlq export`: dead letters as a stream of records for other tools, without secrets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from lattice_tasks.admin import letters
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.filters import Narrowed, narrowing
from lattice_tasks.admin.letter import record_of
from lattice_tasks.admin.options import Verb
from lattice_tasks.dead_letters.call import call_of
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.fingerprint import error_class_of
from lattice_tasks.masking import hidden, masked

__all__ = ["export"]

_FIELDS = (
    "entry_id", "task_id", "queue", "actor", "group", "reason", "error_class", "error", "attempts", "failed_replays",
    "parked_at", "submitted_at", "key", "priority", "worker", "version", "is_replaying",
)  # fmt: skip
_CALL = ("args", "kwargs")
_PAGE = 500


@click.command(cls=Verb)
@click.option("--queue", metavar="Q", help="Only this queue's shelf; default: every queue's.")
@click.option("--with-arguments", is_flag=True, help="Also what the tasks were called with; secrets are shown as ***.")
@narrowing(changes=False)
@pass_desk
def export(desk: Desk, queue: str | None, with_arguments: bool, narrowed: Narrowed) -> None:
    """Dead letters as jsonl, or with -o csv or json, queue by queue, the oldest first; any number of them.

    Passwords in URLs are hidden, and arguments are left out unless asked for.
    """
    filters = narrowed.filter(desk).given
    words = desk.lattice.settings.redact if with_arguments else None
    names = letters.queue_names(desk, queue)
    count = desk.screen.stream(_records(desk, names, filters, words), (*_FIELDS, *(_CALL if with_arguments else ())))
    desk.screen.note(f"{count} dead letters")


def _records(
    desk: Desk, names: Sequence[str], filters: Mapping[str, Any], words: Sequence[str] | None
) -> Iterator[Mapping[str, Any]]:
    for name in names:
        shelf, after = desk.lattice.dead_letters(name), 0
        while page := shelf.list(limit=_PAGE, after=after, **filters):
            yield from (_record(letter, name, words) for letter in page)
            after = page[-1].entry_id


def _record(letter: DeadLetter, queue: str, words: Sequence[str] | None) -> Mapping[str, Any]:
    known = {
        **record_of(letter, queue),
        "error_class": error_class_of(letter.error, letter.traceback),
        "error": masked(letter.error),
        "key": masked(letter.key) if letter.key else letter.key,
        "failed_replays": letter.failed_replays,
    }
    record = {name: known[name] for name in _FIELDS}
    if words is not None:
        call = call_of(letter.body)
        record["args"] = hidden(call.args, words) if call else None
        record["kwargs"] = hidden(call.kwargs, words) if call else None
    return record
