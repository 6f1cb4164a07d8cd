"""`lattice-tasks audit`: who changed what, when and why, and whether that is still what was written."""

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

import click

from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Noun, When
from lattice_tasks.admin.progress import progress
from lattice_tasks.audit import AuditRecord

__all__ = ["audit"]

_FIELDS = tuple(field.name for field in fields(AuditRecord))
_FAULTS = {
    "changed": "was changed",
    "removed": "was removed",
    "reordered": "was put in another order",
    "cut_off": "and what followed was cut off",
}
_COLUMNS = ("n", "at", "who", "verb", "target", "phase", "reason", "what")


class _Kept(click.ParamType[tuple[int, str]]):
    """The number and hash of a record."""

    name = "record"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, str]:
        found = re.fullmatch(r"([1-9]\d{0,17}):([0-9a-fA-F]{64})", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not N:HASH, as `lattice-tasks audit verify` prints them", param, ctx)
        return int(found[1]), found[2]


@click.group(cls=Noun)
def audit() -> None:
    """The audit: list, verify.

    Every command that changes something is recorded, and what a full shelf evicts. Who acts: LATTICE_OPERATOR, else the
    user of this host.
    """


@audit.command("list")
@click.option(
    "--since", type=When(), metavar="WHEN", help="Not older than 90s, 1h30m, 7d, or an instant with its zone."
)
@click.option("--who", metavar="NAME", help="Only what this one did.")
@click.option("--verb", metavar="COMMAND", help="Only this command, such as 'queues pause'.")
@click.option("--target", metavar="NAME", help="Only what was done to this queue, task id or worker id.")
@click.option("--unfinished", "is_unfinished", is_flag=True, help="Only what began and never ended.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@pass_desk
def list_(
    desk: Desk,
    since: timedelta | datetime | None,
    who: str | None,
    verb: str | None,
    target: str | None,
    is_unfinished: bool,
    limit: int,
) -> None:
    """Records, the newest first. What takes many steps has two: begun and ended."""
    desk.read_clock()
    if isinstance(since, timedelta) and desk.screen.now is not None:
        since = desk.screen.now - since
    found = desk.lattice.audit.list(
        since=since if isinstance(since, datetime) else None,
        who=who,
        verb=verb,
        target=target,
        is_unfinished=is_unfinished,
        limit=limit,
    )
    records = [asdict(record) for record in found]
    if desk.screen.form == "table":
        records = [{**record, "what": _what(record["before"], record["after"])} for record in records]
    desk.screen.many(records, _FIELDS, _COLUMNS, "records")
    if len(found) == limit:
        desk.screen.note(f"the newest {limit}; --limit N shows more")


@audit.command()
@click.option("--kept", type=_Kept(), metavar="N:HASH", help="And record N must still have this hash.")
@pass_desk
def verify(desk: Desk, kept: tuple[int, str] | None) -> None:
    """Check every record against its hash, its place and the head of the chain. Exit 1: something is wrong.

    Who can write to the database can write a whole new chain. Keep the number and hash that this prints somewhere else, and
    give them to --kept the next time.
    """
    with progress(desk.screen, "verifying", desk.lattice.audit.count()) as advance:
        verdict = desk.lattice.audit.verify(advance, kept)
    fault = verdict.fault
    whole = (
        f"the audit is whole: {_counted(verdict.records)}, each as it was written and in its place\n"
        f"head {verdict.records}:{verdict.head}"
    )
    record = {
        "whole": fault is None,
        "records": verdict.records,
        "head": verdict.head or None,
        "wrong": fault.n if fault else None,
        "kind": fault.kind if fault else None,
        "detail": fault.detail if fault else None,
    }
    if fault is None or desk.screen.form != "table":
        desk.screen.value(record, whole)
    if fault is not None:
        sound = f"{_counted(verdict.records)} before it as written" if verdict.records else "none before it"
        desk.fail(1, f"the audit is not whole: record {fault.n} {_FAULTS[fault.kind]}: {fault.detail} ({sound})")


def _counted(number: int) -> str:
    return f"{number} record{'' if number == 1 else 's'}"


def _what(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What differs, for a person; of an intention, all of it."""
    parts = []
    for name in dict.fromkeys((*before, *after)):
        if name in before and name in after:
            parts += [f"{name} {before[name]} → {after[name]}"] if before[name] != after[name] else []
        elif name in after or not after:
            parts.append(f"{name} {_plain({**before, **after}[name])}")
    return ", ".join(parts) or "-"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items()) or "none"
    return str(value)
