"""Plans: the values an operator sees, and what is stored of one when it is made.

A plan is a frozen set of dead letters and one verb for them. It is made first and looked at, and applied later; what was
parked meanwhile does not belong to it, and what has changed meanwhile is told.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from lattice_tasks import clock
from lattice_tasks.dead_letters.filters import Filter
from lattice_tasks.store import plans as rows
from lattice_tasks.store.plans import ItemRow, PlanRow, Tally

__all__ = [
    "DISCARD",
    "FINISHED",
    "INTERRUPTED",
    "LEASE_S",
    "OUTCOMES",
    "PAUSED",
    "PLANNED",
    "REPLAY",
    "RUNNING",
    "STOPPED",
    "VERBS",
    "Definition",
    "Digest",
    "Group",
    "Plan",
    "PlanItem",
    "Sample",
    "grouped",
    "item_of",
    "plan_of",
]

REPLAY, DISCARD = "replay", "discard"
VERBS = (REPLAY, DISCARD)

#: `stopped`: by its own rule. `interrupted` is nowhere stored: it runs, and its owner has not beaten for a lease.
PLANNED, RUNNING, PAUSED, STOPPED, FINISHED = "planned", "running", "paused", "stopped", "finished"
INTERRUPTED = "interrupted"

#: An owner that has not beaten for so long has lost the plan to whoever wants it.
LEASE_S = 5.0

#: What has become of an item.
OUTCOMES = {
    rows.PENDING: "waiting",
    rows.OUT: "replaying",
    rows.DONE: "done",
    rows.FAILED: "failed_again",
    rows.SKIPPED: "skipped",
}
_MOST_GROUPS = 200


class Sample(msgspec.Struct, frozen=True):
    """One letter of a group."""

    queue: str
    entry_id: int
    task_id: str


class Group(msgspec.Struct, frozen=True):
    """Letters of a plan that failed alike, and some of them."""

    fingerprint: str
    actor: str
    message: str
    count: int
    samples: tuple[Sample, ...] = ()


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, and what was found.

    Attributes:
        queue: whose shelf; None: every one of the namespace.
        reason: why an operator does it.
        last_ids: by queue, the last entry id that its shelf had issued.
        poisoned: letters left out because their replays failed too often.
        replaying: letters left out because somebody replays them.
        groups: the largest ones, of `group_count`.
    """

    filter: Filter
    queue: str | None
    includes_repeat: bool
    to_queue: str | None
    to_actor: str | None
    reason: str | None
    last_ids: dict[str, int]
    poisoned: int
    replaying: int
    by_queue: dict[str, int]
    by_reason: dict[str, int]
    by_actor: dict[str, int]
    groups: tuple[Group, ...]
    group_count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan and how far it is.

    Attributes:
        id: short, unique in the namespace.
        state: planned, running, paused, stopped, finished, or interrupted.
        why: of a plan that stopped or was paused.
        owner: who applies it, `host:pid`; None: nobody.
        digest: SHA-256, in hexadecimal, over what shall be done to which letters.
    """

    id: str
    verb: str
    state: str
    why: str | None
    owner: str | None
    total: int
    waiting: int
    replaying: int
    done: int
    failed_again: int
    skipped: int
    digest: str
    created_at: datetime
    ended_at: datetime | None
    made: Definition


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One letter of a plan, and what has become of it.

    Attributes:
        outcome: waiting, replaying, done, failed_again or skipped.
        moved_to: queue and entry id, when it was redirected.
    """

    plan: str
    queue: str
    entry_id: int
    task_id: str
    group: str
    outcome: str
    detail: str | None
    moved_to: tuple[str, int] | None
    ended_at: datetime | None


class Digest:
    """SHA-256 over what was asked for, and over items that are added in the order of their queue and entry ids.

    Args:
        asked: namespace, verb, filter and target: the same letters under another verb are another plan.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._hash = hashlib.sha256(msgspec.json.encode(asked, order="sorted") + b"\n")

    def add(self, items: Iterable[ItemRow]) -> None:
        """Add a page."""
        lines = (f"{one.queue_id}:{one.entry_id}:{one.task_id}:{one.parked_at}\n" for one in items)
        self._hash.update("".join(lines).encode())

    def hex(self) -> str:
        """Of all that was added."""
        return self._hash.hexdigest()


def grouped(
    tallies: Sequence[Tally], samples: Mapping[str, Sequence[tuple[int, int, str]]], names: Mapping[int, str]
) -> tuple[tuple[Group, ...], int]:
    """The largest groups, and how many there are; `names` are the queues' by id."""
    counts: Counter[str] = Counter()
    first: dict[str, Tally] = {}
    for tally in tallies:
        counts[tally.fingerprint] += tally.count
        first.setdefault(tally.fingerprint, tally)
    shown = []
    for fingerprint, count in counts.most_common(_MOST_GROUPS):
        some = tuple(
            Sample(names[queue_id], entry_id, task_id) for queue_id, entry_id, task_id in samples.get(fingerprint, ())
        )
        shown.append(Group(fingerprint, first[fingerprint].actor, first[fingerprint].message, count, some))
    return tuple(shown), len(counts)


def plan_of(row: PlanRow, counts: Mapping[int, int]) -> Plan:
    """The plan in a row, with its items counted by state."""
    is_held = bool(row.owner) and row.now_us - row.beat_at < LEASE_S * 1_000_000
    state = INTERRUPTED if row.state == RUNNING and not is_held else row.state
    return Plan(
        id=row.name,
        verb=row.verb,
        state=state,
        why=row.why,
        owner=row.owner.rpartition(":")[0] if is_held else None,
        total=row.total,
        waiting=counts.get(rows.PENDING, 0),
        replaying=counts.get(rows.OUT, 0),
        done=counts.get(rows.DONE, 0),
        failed_again=counts.get(rows.FAILED, 0),
        skipped=counts.get(rows.SKIPPED, 0),
        digest=row.digest,
        created_at=clock.from_us(row.created_at),
        ended_at=None if row.ended_at is None else clock.from_us(row.ended_at),
        made=msgspec.json.decode(row.definition, type=Definition),
    )


def item_of(plan: str, row: ItemRow, names: Mapping[int, str]) -> PlanItem:
    """The item in a row; `names` are the queues' by id."""
    moved = None
    if row.to_queue_id is not None and row.to_queue_id != row.queue_id:
        moved = (names.get(row.to_queue_id, str(row.to_queue_id)), row.to_entry_id or 0)
    return PlanItem(
        plan=plan,
        queue=names.get(row.queue_id, str(row.queue_id)),
        entry_id=row.entry_id,
        task_id=row.task_id,
        group=row.fingerprint,
        outcome=OUTCOMES[row.state],
        detail=row.detail,
        moved_to=moved,
        ended_at=None if row.ended_at is None else clock.from_us(row.ended_at),
    )
