"""`lattice-tasks dlq`: listing, counting and discarding dead letters; the other verbs have a file each."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from lattice_tasks.admin import letters
from lattice_tasks.admin.bin import BIN_COMMANDS
from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.edits import edit
from lattice_tasks.admin.export import export
from lattice_tasks.admin.filters import Narrowed, narrowing
from lattice_tasks.admin.groups import group, groups, mark
from lattice_tasks.admin.letter import FIELDS, record_of, show
from lattice_tasks.admin.options import Change, Noun, changing
from lattice_tasks.admin.plans import PLAN_COMMANDS
from lattice_tasks.admin.redirects import redirects
from lattice_tasks.admin.replays import replay
from lattice_tasks.dead_letters.groups import SHOWN_DIGITS

__all__ = ["dlq"]

_GOOD = ("discarded", "would_discard")
_WIDE = 110  # cells that a list with every column wants


@click.group(cls=Noun)
def dlq() -> None:
    """Dead letters: tasks that failed for good.

    `groups` says what is wrong, `show` looks at one, `replay` tries again, `edit` repairs, `discard` gives up. Name a letter
    by its entry id with --queue, or by its task's id.
    """


@dlq.command("list")
@click.option("--queue", metavar="Q", help="Only this queue's shelf; default: every queue's.")
@narrowing(changes=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@click.option("--after", metavar="PLACE", help="Where the last page ended; a page says it.")
@pass_desk
def list_(desk: Desk, queue: str | None, narrowed: Narrowed, limit: int, after: str | None) -> None:
    """Dead letters, queue by queue, the oldest first, a page at a time."""
    names = letters.queue_names(desk, queue)
    begins_at, last_id = _place(queue, after)
    filters = narrowed.filter(desk).given
    found: list[dict[str, Any]] = []
    more = 0
    for name in names:
        if begins_at is not None and name < begins_at:
            continue
        shelf, above = desk.lattice.dead_letters(name), last_id if name == begins_at else 0
        page = shelf.list(limit=limit - len(found), after=above, **filters) if len(found) < limit else []
        found += [record_of(letter, name) for letter in page]
        if len(found) >= limit:
            more += shelf.count(after=page[-1].entry_id if page else above, **filters)
    desk.read_clock()
    _show_list(desk, found, queue)
    if more:
        place = str(found[-1]["entry_id"]) if queue else f"{found[-1]['queue']}/{found[-1]['entry_id']}"
        desk.screen.note(f"{more} more; the next page: --after {place}")


@dlq.command()
@click.option("--queue", metavar="Q", help="Only this queue's shelf; default: every queue's.")
@narrowing(changes=False)
@pass_desk
def count(desk: Desk, queue: str | None, narrowed: Narrowed) -> None:
    """How many dead letters there are."""
    filters = narrowed.filter(desk).given
    total = sum(desk.lattice.dead_letters(name).count(**filters) for name in letters.queue_names(desk, queue))
    desk.screen.value({"count": total}, str(total))


@dlq.command()
@click.argument("ids", metavar="ID...", nargs=-1)
@click.option("--queue", metavar="Q", help="The queue; not needed with tasks' ids.")
@letters.every
@narrowing(changes=True)
@changing
@pass_desk
def discard(
    desk: Desk,
    ids: tuple[str, ...],
    queue: str | None,
    is_all: bool,
    narrowed: Narrowed,
    change: Change,
) -> None:
    """Give dead letters up: their tasks end as discarded. `dlq restore` brings them back for some days."""
    targets = letters.wanted(desk, queue, ids, is_all, narrowed)
    if not targets:
        desk.screen.many([], letters.FIELDS, letters.COLUMNS, "dead letters")
        return
    desk.confirm(change, f"Discard {letters.counted(targets)}{_until(desk)}?")
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


for _verb in (groups, group, mark, show, replay, edit, *PLAN_COMMANDS, *BIN_COMMANDS, redirects, export):
    dlq.add_command(_verb)


def _until(desk: Desk) -> str:
    """Whether it can be undone, and how long."""
    days = desk.lattice.settings.dlq_restore_days
    return f", which can be restored for {days} day{'' if days == 1 else 's'}" if days else " for good"


def _place(queue: str | None, after: str | None) -> tuple[str | None, int]:
    """The queue and the entry id behind which a page begins; (None, 0) for the first page."""
    if after is None:
        return None, 0
    name, _, entry_id = after.rpartition("/")
    if not (entry_id.isascii() and entry_id.isdecimal()) or not (name or queue):
        raise click.UsageError(f"--after {after!r} is no place; it is an entry id with --queue, else QUEUE/ID")
    return name or queue, int(entry_id)


def _show_list(desk: Desk, found: Sequence[Mapping[str, Any]], queue: str | None) -> None:
    """Columns that would say the same in every row, or nothing, give their room to the error."""
    columns = ["entry_id", "queue", "group", "actor", "reason", "attempts", "parked_at", "is_replaying", "error"]
    if not any(one["is_replaying"] for one in found):
        columns.remove("is_replaying")
    if desk.screen.width < _WIDE:
        alike = {"reason"} if len({one["reason"] for one in found}) == 1 else set()
        idle = {"attempts", *alike, *({"queue"} if queue else ())}
        columns = [name for name in columns if name not in idle]
    shown = found
    if desk.screen.form == "table":
        shown = [{**one, "group": one["group"][:SHOWN_DIGITS]} for one in found]
    desk.screen.many(shown, FIELDS, columns, "dead letters")
