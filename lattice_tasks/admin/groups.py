"""`lattice-tasks dlq groups`, `group` and `mark`: what is wrong, how much of it, since when, and who sees to it."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any

import click

from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Change, OneOf, Seconds, Verb, changing
from lattice_tasks.admin.screen import Screen, since
from lattice_tasks.dead_letters.groups import SHOWN_DIGITS, Group, GroupState, Sample
from lattice_tasks.errors import DeadLetterNotFound

__all__ = ["group", "groups", "mark"]

_FIELDS = tuple(field.name for field in fields(Group))
_STATES = tuple(state.value for state in GroupState)
_WIDE = 110  # cells that a table with every column wants
_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"


@click.command(cls=Verb)
@click.option("--queue", metavar="Q", help="Only groups with letters of this queue.")
@click.option("--state", type=OneOf(_STATES), metavar="STATE", help=f"Only these: {', '.join(_STATES)}.")
@click.option("--all", "is_all", is_flag=True, help="Also snoozed and resolved ones, and those whose letters are gone.")
@pass_desk
def groups(desk: Desk, queue: str | None, state: str | None, is_all: bool) -> None:
    """Dead letters that failed alike, most first: what wants to be looked at."""
    if queue is not None:
        desk.lattice.queues.get(queue)
    found = desk.lattice.letter_groups.list(queue=queue, state=state)
    desk.read_clock()
    shown = found if is_all or state else [one for one in found if _wants_attention(one)]
    columns = ["group", "live", "trend_24h", "first_seen", "last_seen", "state", "owner", "actor", "error"]
    if desk.screen.width < _WIDE:  # the trend tells since when, roughly
        columns = [name for name in columns if name not in ("first_seen", "last_seen")]
    if not any(one.owner for one in shown):
        columns.remove("owner")
    records = [_row(desk.screen, one) if desk.screen.form == "table" else asdict(one) for one in shown]
    desk.screen.many(records, _FIELDS, columns, "groups")
    if records and desk.screen.form == "table":
        unit = "an hour" if desk.screen.width >= _WIDE else "3 hours"
        desk.screen.note(f"TREND: the last 24 h, one column {unit}")
    _tell_rest(desk, found, shown)


@click.command(cls=Verb)
@click.argument("name", metavar="GROUP")
@pass_desk
def group(desk: Desk, name: str) -> None:
    """One group in full, with its newest letters, and what to do next. GROUP: its first digits, 6 at least."""
    found = desk.lattice.letter_groups.get(name)
    desk.read_clock()
    _show(desk, found)


@click.command(cls=Verb)
@click.argument("name", metavar="GROUP")
@click.option("--state", type=OneOf(_STATES), metavar="STATE", help=f"One of {', '.join(_STATES)}.")
@click.option("--for", "snooze_s", type=Seconds(), metavar="SPAN", help="With --state snoozed: 2h, 3d.")
@click.option("--owner", metavar="WHO", help="Who sees to it; an empty text takes it away, as with the next two.")
@click.option("--note", metavar="TEXT", help="What is known of it, on one line.")
@click.option("--ticket", metavar="URL", help="Where it is dealt with.")
@changing
@pass_desk
def mark(
    desk: Desk,
    name: str,
    state: str | None,
    snooze_s: float | None,
    owner: str | None,
    note: str | None,
    ticket: str | None,
    change: Change,
) -> None:
    """Say what is known of a group.

    known: seen, stays in the list. snoozed: out of sight for a time. resolved: out of sight until its next letter. A group
    that was hit since is new again by itself.
    """
    before = desk.lattice.letter_groups.get(name)
    if change.is_dry:
        desk.screen.note(f"would mark group {before.fingerprint[:SHOWN_DIGITS]} {state or before.state}")
        return
    with desk.acting(change, before.fingerprint) as act:
        found = desk.lattice.letter_groups.mark(
            before.fingerprint,
            state=state,
            snooze=None if snooze_s is None else timedelta(seconds=snooze_s),
            owner=owner,
            note=note,
            ticket=ticket,
            by=desk.operator,
        )
        act.before, act.after = _said(before), _said(found)
    desk.read_clock()
    _show(desk, found)


def _wants_attention(one: Group) -> bool:
    return one.live > 0 and one.state in (GroupState.NEW, GroupState.KNOWN)


def _tell_rest(desk: Desk, found: Sequence[Group], shown: Sequence[Group]) -> None:
    rest = Counter(
        one.state.value if one.state in (GroupState.SNOOZED, GroupState.RESOLVED) else "without letters"
        for one in found
        if one not in shown
    )
    if rest:
        told = ", ".join(f"{count} {what}" for what, count in sorted(rest.items()))
        desk.screen.note(f"not shown: {told}; --all shows them")


def _row(screen: Screen, one: Group) -> Mapping[str, Any]:
    return {
        "group": one.fingerprint[:SHOWN_DIGITS],
        "live": one.live,
        "trend_24h": _bars(screen, one.trend if screen.width >= _WIDE else _shortened(one.trend)),
        "first_seen": one.first_seen,
        "last_seen": one.last_seen,
        "state": _state(one),
        "owner": one.owner,
        "actor": ", ".join(one.actors),
        "error": _error(one),
    }


def _show(desk: Desk, one: Group) -> None:
    if desk.screen.form != "table":
        desk.screen.one(asdict(one))
        return
    until = f" until {one.until:%Y-%m-%d %H:%M:%SZ}" if one.until else ""
    record = {
        "group": one.fingerprint,
        "state": _state(one),
        "snoozed": until.removeprefix(" ") or None,
        "owner": one.owner,
        "ticket": one.ticket,
        "note": one.note,
        "said": one.changed_at,
        "said by": one.changed_by or None,
        "actor": ", ".join(one.actors),
        "queues": ", ".join(one.queues),
        "live": one.live,
        "hits": one.hits,
        "first_seen": one.first_seen,
        "last_seen": one.last_seen,
        "trend 24h": f"{_bars(desk.screen, one.trend)}  at most {max(one.trend)} an hour",
        "version": ", ".join(one.versions) or None,
        "error": _error(one),
        "newest": "\n".join(_sample(desk, sample) for sample in one.samples),
        "next": "\n".join(_next(one)),
    }
    desk.screen.one(record, blocks=("error", "newest", "next"))


def _sample(desk: Desk, sample: Sample) -> str:
    age = since(sample.parked_at, desk.screen.now) if desk.screen.now else ""
    try:
        letter = desk.lattice.dead_letters(sample.queue).get(sample.entry_id)
    except DeadLetterNotFound:  # somebody was faster
        return f"{sample.entry_id}  {sample.queue}  {age}"
    told = letter.error.splitlines()[0] if letter.error else ""
    return f"{sample.entry_id}  {sample.queue}  {age}  {told}"


def _next(one: Group) -> list[str]:
    short, program = one.fingerprint[:SHOWN_DIGITS], "lattice-tasks dlq"
    lines = []
    if one.samples:
        first = f"{one.samples[0].entry_id} --queue {shlex.quote(one.samples[0].queue)}"
        lines = [
            f"look at one  {program} show {first}",
            f"try one      {program} replay {first} --wait 30",
            f"try all      {program} replay --all --group {short}",
        ]
    return [
        *lines,
        f"not now      {program} mark {short} --state snoozed --for 2h",
        f"it is fixed  {program} mark {short} --state resolved",
    ]


def _said(one: Group) -> dict[str, Any]:
    until = one.until.isoformat() if one.until else None
    said = {"state": one.state.value, "until": until, "owner": one.owner, "note": one.note, "ticket": one.ticket}
    return {name: value for name, value in said.items() if value is not None}


def _state(one: Group) -> str:
    return "reopened" if one.reopened else one.state.value


def _error(one: Group) -> str:
    return one.message or one.error_class or "-"


def _shortened(trend: Sequence[int]) -> list[int]:
    """Three hours a bar, for a narrow terminal."""
    return [sum(trend[at : at + 3]) for at in range(0, len(trend), 3)]


def _bars(screen: Screen, trend: Sequence[int]) -> str:
    """One bar for each number, the lowest for none at all only."""
    bars = _BARS if screen.may_speak(_BARS) else _PLAIN_BARS
    most = max(trend, default=0)
    return "".join(bars[0 if not one else max(1, round(one / most * (len(bars) - 1)))] for one in trend)
