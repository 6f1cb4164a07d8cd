"""`lattice-tasks dlq plan` and what follows it: bulk work on dead letters that is looked at before it is done."""

import shlex
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from types import FrameType
from typing import Any

import click
import msgspec

from lattice_tasks import insights
from lattice_tasks.admin.desk import PARTLY, Desk, pass_desk
from lattice_tasks.admin.filters import Narrowed, narrowing
from lattice_tasks.admin.options import Change, OneOf, Verb, changing
from lattice_tasks.admin.rates import Rates, Share, Sizes, Speed
from lattice_tasks.dead_letters.plan import DISCARD, FINISHED, OUTCOMES, REPLAY, STOPPED, VERBS, Group, Plan, PlanItem
from lattice_tasks.tasks.plans import CANARY, CONCURRENCY, STOP_AT

__all__ = ["PLAN_COMMANDS"]

INTERRUPTED = 130
_FIELDS = (
    "id", "verb", "state", "why", "owner", "total", "waiting", "replaying", "done", "failed_again", "skipped",
    "poisoned", "already_replaying", "created_at", "ended_at", "queue", "filter", "to_queue", "to_actor",
    "includes_repeat", "reason", "by_queue", "by_reason", "by_actor", "last_ids", "group_count", "groups", "digest",
)  # fmt: skip
_COLUMNS = (
    "id", "verb", "state", "total", "waiting", "replaying", "done", "failed_again", "skipped", "created_at", "queue",
)  # fmt: skip
_NARROW = ("id", "verb", "state", "total", "done", "failed_again", "skipped", "created_at")
_WIDE = 110  # cells that a table with every column wants
_ITEM_FIELDS = ("plan", "queue", "entry_id", "task_id", "group", "outcome", "detail", "moved_to", "ended_at")
_MOST_GROUPS = 10


@click.command(cls=Verb)
@click.option("--queue", metavar="Q", help="Only this queue's shelf; default: every queue's.")
@click.option("--verb", type=click.Choice(VERBS), default=REPLAY, show_default=True, help="What shall be done to them.")
@click.option("--include-repeat", is_flag=True, help="Also letters whose replays have failed again and again.")
@click.option("--to-queue", metavar="Q", help="Replay them in this queue, whatever the redirects say.")
@click.option("--to-actor", metavar="NAME", help="Replay them as this task, whatever the redirects say.")
@click.option("--reason", "why", metavar="TEXT", help="Why you do it: `apply` writes it into the audit.")
@narrowing(changes=True)
@pass_desk
def plan(
    desk: Desk,
    queue: str | None,
    verb: str,
    include_repeat: bool,
    to_queue: str | None,
    to_actor: str | None,
    why: str | None,
    narrowed: Narrowed,
) -> None:
    """Freeze which dead letters are meant, and look at them, before anything is done.

    What is parked later does not belong to the plan; of what has changed until it is applied you are told then.
    """
    chosen = narrowed.filter(desk)
    found = desk.lattice.plans.make(
        chosen, verb=verb, queue=queue, include_repeat=include_repeat, to_queue=to_queue, to_actor=to_actor, reason=why
    )
    _show(desk, found)
    desk.screen.note(f"nothing was done yet; {found.verb} these with: lattice-tasks dlq apply {found.id}")
    _warn_unserved(desk, found)
    if found.made.poisoned:
        desk.screen.note(f"{found.made.poisoned} left out: replayed in vain too often; --include-repeat takes them in")


@click.command(cls=Verb)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@pass_desk
def plans(desk: Desk, limit: int) -> None:
    """Plans, the newest first, and how far they are."""
    found = desk.lattice.plans.list(limit)
    desk.read_clock()
    columns = _COLUMNS if desk.screen.width >= _WIDE else _NARROW
    desk.screen.many([_record(one) for one in found], _FIELDS, columns, "plans")


@click.command("plan-show", cls=Verb)
@click.argument("name", metavar="PLAN")
@pass_desk
def plan_show(desk: Desk, name: str) -> None:
    """One plan: what it means to do, its groups with samples, and how far it is."""
    _show(desk, desk.lattice.plans.get(name))
    changes = desk.lattice.plans.changes(name)
    if changes:
        told = ", ".join(f"{count} {what}" for what, count in changes.items())
        desk.screen.note(f"out of date: since the plan, {told}")


@click.command(cls=Verb)
@click.argument("name", metavar="PLAN")
@click.option(
    "--only", type=OneOf(tuple(OUTCOMES.values())), metavar="OUTCOME",
    help="Only: waiting, replaying, done, failed-again, skipped.",
)  # fmt: skip
@pass_desk
def report(desk: Desk, name: str, only: str | None) -> None:
    """What has become of each letter of a plan; as a table, how many of each outcome and those that went wrong.

    With -o jsonl, json or csv: one record for each letter.
    """
    items = (one for one in desk.lattice.plans.items(name) if only is None or one.outcome == only)
    if desk.screen.form != "table":
        desk.screen.stream((_item(one) for one in items), _ITEM_FIELDS)
        return
    found = desk.lattice.plans.get(name)
    desk.read_clock()
    desk.screen.one({field: value for field, value in _record(found).items() if field in _SUMMARY})
    shown = [_item(one) for one, _ in zip(_of_interest(items, only), range(_MOST_ROWS), strict=False)]
    if shown:
        desk.screen.script("\n")
        desk.screen.many(shown, _ITEM_FIELDS, ("entry_id", "queue", "outcome", "detail"), "letters")
    if len(shown) == _MOST_ROWS:
        desk.screen.note(f"only the first {_MOST_ROWS}; all of them with -o jsonl")


@click.command(cls=Verb)
@click.argument("name", metavar="PLAN")
@click.option("--rate", type=Speed(), metavar="N/s", help="Letters a second, or 30/m, 100/h; default: no limit.")
@click.option(
    "--concurrency", type=int, default=CONCURRENCY, show_default=True, metavar="N", help="Replays out at once."
)
@click.option(
    "--canary", type=Sizes(), default=",".join(map(str, CANARY)), show_default=True, metavar="N,N",
    help="Steps that go first; each is awaited, and may stop the rest.",
)  # fmt: skip
@click.option("--no-canary", is_flag=True, help="All at once.")
@click.option(
    "--stop-at", type=Share(), default=f"{STOP_AT:.0%}", show_default=True, metavar="SHARE",
    help="Stop when more of the replays fail than this.",
)  # fmt: skip
@click.option("--skip-changed", is_flag=True, help="Skip letters that changed since the plan, instead of refusing it.")
@click.option("--continue", "go_on", is_flag=True, help="Go on although it has stopped by itself; it may stop again.")
@click.option("--override", is_flag=True, help="Go on, and stop no more.")
@click.option("--if-unchanged", "digest", metavar="DIGEST", help="Refuse a plan with another digest than this.")
@changing
@pass_desk
def apply(desk: Desk, /, name: str, canary: tuple[int, ...], no_canary: bool, change: Change, **how: Any) -> None:
    """Do what was planned, oldest first.

    The canary steps go first; when too many replays fail, it stops by itself. Each letter is worked on once per plan,
    whatever happens: interrupt it, kill it, and apply it again.
    """
    goes_on = how["go_on"] or how["override"]
    count = desk.lattice.plans.check(name, skip_changed=how["skip_changed"], go_on=goes_on, digest=how["digest"])
    found = desk.lattice.plans.get(name)
    _warn_unserved(desk, found)
    desk.confirm(change, _question(found, count))
    if change.is_dry:
        _show(desk, found)
        left = found.waiting - count
        desk.screen.note(
            f"would {found.verb} {count} dead letters" + (f", and skip {left} that changed" if left else "")
        )
        return
    change = replace(change, reason=change.reason or found.made.reason)
    intended = {"plan": name, "verb": found.verb, "letters": found.waiting, "digest": found.digest}
    rates = Rates(desk.screen, found)
    with desk.in_parts(change, name, **intended) as act, _interrupts() as stopping, rates:
        ended = desk.lattice.plans.apply(
            name, canary=() if no_canary else canary, stopping=stopping, on_progress=rates, **how
        )
        act.after = {field: _record(ended)[field] for field in ("state", "done", "failed_again", "skipped", "waiting")}
    _show_end(desk, ended)


@click.command(cls=Verb)
@click.argument("name", metavar="PLAN")
@changing
@pass_desk
def pause(desk: Desk, name: str, change: Change) -> None:
    """Let whoever applies a plan rest, within a second; what is under way ends."""
    _switch(desk, name, "pause", change)


@click.command(cls=Verb)
@click.argument("name", metavar="PLAN")
@changing
@pass_desk
def resume(desk: Desk, name: str, change: Change) -> None:
    """Let whoever applies a paused plan go on."""
    _switch(desk, name, "resume", change)


PLAN_COMMANDS = (plan, plans, plan_show, report, apply, pause, resume)
_SUMMARY = (
    "id", "verb", "state", "why", "owner", "total", "waiting", "replaying", "done", "failed_again", "skipped", "ended_at",
)  # fmt: skip
_MOST_ROWS = 30


def _switch(desk: Desk, name: str, verb: str, change: Change) -> None:
    before = desk.lattice.plans.get(name)
    if change.is_dry:
        desk.screen.note(f"would {verb} plan {name}, which is {before.state}")
        return
    with desk.acting(change, name) as act:
        act.before = {"state": before.state}
        after = desk.lattice.plans.pause(name) if verb == "pause" else desk.lattice.plans.resume(name)
        act.after = {"state": after.state}
    desk.read_clock()
    desk.screen.one({field: value for field, value in _record(after).items() if field in _SUMMARY})


def _warn_unserved(desk: Desk, found: Plan) -> None:
    """One line when no live worker serves a queue in which letters of the plan would be replayed."""
    if found.verb != REPLAY:
        return
    with desk.session() as (session, namespace_id):
        router = desk.lattice.redirects.router(session, found.made.to_queue, found.made.to_actor)
        workers = insights.live_workers(insights.list_workers(session, namespace_id), desk.lattice.settings.lease_ms)
    served = {queue for worker in workers for queue in worker.queues}
    idle = sorted({router.queue_of(queue) for queue in found.made.by_queue} - served)
    if idle:
        names = ", ".join(idle[:_MOST_GROUPS])
        desk.screen.note(
            f"warning: no live worker serves {names}: replays will wait there; start one with "
            f"`lattice-tasks worker APP --queues {shlex.quote(','.join(idle))}`"
        )


def _question(found: Plan, count: int) -> str:
    queues = found.made.by_queue
    where = f"queue {next(iter(queues))}" if len(queues) == 1 else f"{len(queues)} queues"
    verb = "Discard" if found.verb == DISCARD else "Replay"
    return f"{verb} {count:,} dead letters of {where} (plan {found.id})?"


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that a part in hand is finished first; a second Ctrl-C breaks off."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, before[number])

    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, leave)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_end(desk: Desk, ended: Plan) -> None:
    """The numbers, and how to go on where there is something left.

    Raises:
        click.exceptions.Exit: with 130 when it was interrupted, 5 when it stopped or not every letter went well.
    """
    desk.read_clock()
    record = _record(ended)
    if desk.screen.form == "table":
        desk.screen.one({field: record[field] for field in _SUMMARY})
    else:
        desk.screen.one(record)
    again = f"lattice-tasks dlq apply {ended.id}"
    if ended.state == STOPPED:
        desk.fail(
            PARTLY, f"plan {ended.id} stopped: {ended.why}; go on with `{again} --continue`, or with --override to "
            "stop no more"
        )  # fmt: skip
    if ended.state != FINISHED:
        desk.fail(INTERRUPTED, f"interrupted; plan {ended.id} is paused, go on with `{again} --yes`")
    if ended.failed_again or ended.skipped:
        bad = [f"{ended.failed_again} failed again"] if ended.failed_again else []
        bad += [f"{ended.skipped} {'was' if ended.skipped == 1 else 'were'} skipped"] if ended.skipped else []
        text = f"{', '.join(bad)}; see `lattice-tasks dlq report {ended.id}`"
        desk.fail(PARTLY, text)


def _show(desk: Desk, found: Plan) -> None:
    desk.read_clock()
    record = _record(found)
    if desk.screen.form != "table":
        desk.screen.one(record)
        return
    for name in ("by_queue", "by_reason", "by_actor"):
        record[name] = tuple(f"{value}: {count}" for value, count in record[name].items())
    record["filter"] = tuple(f"{name}={value}" for name, value in record["filter"].items()) or None
    record["last_ids"] = None
    record["groups"] = _groups(found)
    desk.screen.one({name: value for name, value in record.items() if value not in (0, ())}, blocks=("groups",))


def _groups(found: Plan) -> str:
    lines = []
    for group in found.made.groups[:_MOST_GROUPS]:
        lines.append(f"{group.count:>7}  {group.fingerprint}  {group.actor}: {group.message}")
        some = ", ".join(f"{sample.entry_id} ({sample.queue})" for sample in group.samples)
        lines.append(f"{'':9}such as {some}")
    left = found.made.group_count - min(_MOST_GROUPS, len(found.made.groups))
    return "\n".join(lines + ([f"{'':9}and {left} groups more: -o json shows the largest 200"] if left > 0 else []))


def _record(found: Plan) -> dict[str, Any]:
    flat: dict[str, Any] = {**asdict(found), **{name: getattr(found.made, name) for name in _MADE}}
    flat["already_replaying"] = found.made.replaying
    flat["filter"] = msgspec.to_builtins(found.made.filter)
    flat["groups"] = [_group(group) for group in found.made.groups]
    return {name: flat[name] for name in _FIELDS}


_MADE = (
    "queue", "to_queue", "to_actor", "includes_repeat", "reason", "by_queue", "by_reason", "by_actor", "last_ids",
    "group_count",    "poisoned",
)  # fmt: skip


def _group(group: Group) -> Mapping[str, Any]:
    found: Mapping[str, Any] = msgspec.to_builtins(group)
    return found


def _item(one: PlanItem) -> Mapping[str, Any]:
    return asdict(one)


def _of_interest(items: Iterator[PlanItem], wanted: str | None) -> Iterator[PlanItem]:
    return (one for one in items if wanted is not None or one.outcome in ("failed_again", "skipped"))
