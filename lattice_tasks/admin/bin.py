"""`lattice-tasks dlq bin`, `restore`, `retention`: what left a shelf without a replay, and how it comes back."""

from dataclasses import asdict, fields
from datetime import datetime, timedelta

import click

from lattice_tasks.admin.desk import PARTLY, Desk, pass_desk
from lattice_tasks.admin.options import Change, Verb, When, changing
from lattice_tasks.errors import LatticeError, StoreError
from lattice_tasks.masking import masked
from lattice_tasks.tasks.bin import Binned

__all__ = ["BIN_COMMANDS"]

_FIELDS = tuple(field.name for field in fields(Binned))
_COLUMNS = ("id", "queue", "entry_id", "actor", "why", "binned_at", "until", "error")
_NARROW = ("id", "queue", "actor", "why", "binned_at", "error")
_WIDE = 110  # cells that a table with every column wants
_RESTORED = ("id", "outcome", "queue", "entry_id", "task_id", "detail")


@click.command("bin", cls=Verb)
@click.option("--queue", metavar="Q", help="Only what left this queue's shelf; default: every queue's.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--before", type=click.IntRange(1), metavar="ID", help="Go on below this number.")
@pass_desk
def bin_(desk: Desk, queue: str | None, limit: int, before: int | None) -> None:
    """Dead letters that were discarded, evicted or too old, as long as they can be restored; the newest first."""
    found = desk.lattice.bin.list(queue, limit, before)
    desk.read_clock()
    records = [{**asdict(one), "error": masked(one.error)} for one in found]
    columns = _COLUMNS if desk.screen.width >= _WIDE else _NARROW
    desk.screen.many(records, _FIELDS, columns, "dead letters in the bin")
    if len(found) == limit:
        desk.screen.note(f"there may be more: --before {found[-1].id}")


@click.command(cls=Verb)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@changing
@pass_desk
def restore(desk: Desk, ids: tuple[str, ...], change: Change) -> None:
    """Put dead letters back on their shelf, by their number in `dlq bin` or their task's id.

    Each gets a new entry id, and its task is parked again. Where the shelf is full nothing happens: nobody is evicted.
    """
    records, errors = [], []
    for text in dict.fromkeys(ids):
        record, error = _restored(desk, text, change)
        records.append(record)
        errors += [error] if error else []
    desk.screen.many(records, _RESTORED, _RESTORED, "dead letters")
    if change.is_dry:
        desk.screen.note(f"would restore {len(records) - len(errors)} dead letters")
    if errors and len(errors) < len(records):
        desk.fail(PARTLY, f"{len(errors)} of {len(records)} not restored: {errors[0]}")
    if errors:
        raise errors[0]


@click.command(cls=Verb)
@click.argument("queue", metavar="QUEUE")
@click.option(
    "--after", type=When(), metavar="SPAN", help="At this age letters leave the shelf for the bin, such as 90d."
)
@click.option("--never", is_flag=True, help="They stay until somebody handles them, which is the default.")
@changing
@pass_desk
def retention(desk: Desk, queue: str, after: timedelta | datetime | None, never: bool, change: Change) -> None:
    """Show or set how long the shelf of QUEUE keeps its dead letters. Each that goes is in the bin and in the audit."""
    if isinstance(after, datetime) or (after is not None and never):
        raise click.UsageError("say --after SPAN, such as 90d, or --never")
    before = desk.lattice.bin.retention(queue)
    if (after is not None or never) and change.is_dry:
        desk.screen.note(f"would let dead letters of queue {queue} go after {after or 'never'}")
    elif after is not None or never:
        with desk.acting(change, queue) as act:
            act.before = {"dlq_retention_s": before.total_seconds() if before else None}
            desk.lattice.bin.set_retention(queue, after)
            act.after = {"dlq_retention_s": after.total_seconds() if after else None}
        before = after
    days = desk.lattice.settings.dlq_restore_days
    record = {"queue": queue, "dlq_retention_s": before.total_seconds() if before else None, "restore_days": days}
    desk.screen.one({**record, "dlq_retention_s": record["dlq_retention_s"] or "never"} if _is_table(desk) else record)


BIN_COMMANDS = (bin_, restore, retention)


def _is_table(desk: Desk) -> bool:
    return desk.screen.form == "table"


def _restored(desk: Desk, text: str, change: Change) -> tuple[dict[str, object], LatticeError | None]:
    which = int(text) if text.isascii() and text.isdecimal() else text
    try:
        if change.is_dry:
            there = desk.lattice.bin.get(which)
            facts: dict[str, object] = {"queue": there.queue, "task_id": there.task_id}
            return dict.fromkeys(_RESTORED) | facts | {"id": text, "outcome": "would_restore"}, None
        with desk.acting(change, text) as act:
            letter = desk.lattice.bin.restore(which)
            act.after = {"queue": letter.queue, "entry_id": letter.entry_id, "task_id": letter.task_id}
    except StoreError:
        raise
    except LatticeError as error:
        record = dict.fromkeys(_RESTORED) | {"id": text, "outcome": "not_restored", "detail": str(error)}
        return record, error
    values = (text, "restored", letter.queue, letter.entry_id, letter.task_id, None)
    return dict(zip(_RESTORED, values, strict=True)), None
