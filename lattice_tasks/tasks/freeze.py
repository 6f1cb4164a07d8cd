"""Freezing a plan: which letters it holds, what they have in common, and the digest that stands for them."""

from collections.abc import Mapping, Sequence
from typing import Any

from lattice_tasks.dead_letters.filters import Filter
from lattice_tasks.dead_letters.plan import Digest, grouped
from lattice_tasks.queues.record import QueueRecord, shelf_tree
from lattice_tasks.store import plans as rows
from lattice_tasks.store import words
from lattice_tasks.store.engine import Session

__all__ = ["digest_of", "freeze", "why_nothing"]

_PAGE = 5_000
_SAMPLES = 3
_MOST_WORDS, _EVERY_WORD = 10, 100_000


def freeze(
    session: Session, plan_id: int, shelves: Sequence[QueueRecord], chosen: Filter, below: int
) -> dict[str, Any]:
    """Make the items; the facts of the plan's definition."""
    last_ids, poisoned, replaying = {}, 0, 0
    for shelf in shelves:
        tree = shelf_tree(shelf.id)
        last_ids[shelf.name] = rows.high_water(session, tree)
        narrowed = chosen.chosen(last_ids[shelf.name])
        rows.freeze(session, plan_id, shelf.id, tree, narrowed, below)
        left = rows.left_out(session, shelf.id, tree, narrowed, below)
        poisoned, replaying = poisoned + left[0], replaying + left[1]
    names = {shelf.id: shelf.name for shelf in shelves}
    tallies = rows.tallies(session, plan_id)
    counts: dict[str, dict[str, int]] = {"by_queue": {}, "by_reason": {}, "by_actor": {}}
    for one in tallies:
        kinds = (("by_queue", names[one.queue_id]), ("by_reason", one.reason), ("by_actor", one.actor))
        for kind, value in kinds:
            counts[kind][value] = counts[kind].get(value, 0) + one.count
    groups, number = grouped(tallies, rows.samples(session, plan_id, _SAMPLES), names)
    return {
        **counts,
        "last_ids": {name: last for name, last in last_ids.items() if last},
        "poisoned": poisoned,
        "replaying": replaying,
        "groups": groups,
        "group_count": number,
    }


def digest_of(session: Session, plan_id: int, asked: Mapping[str, Any]) -> tuple[str, int]:
    """Over what was asked for and every item, a page at a time; and how many there are."""
    digest, after, total = Digest(asked), (0, 0), 0
    while True:
        page = rows.page(session, plan_id, after, _PAGE)
        digest.add(page)
        total += len(page)
        if len(page) < _PAGE:
            return digest.hex(), total
        after = (page[-1].queue_id, page[-1].entry_id)


def why_nothing(session: Session, shelves: Sequence[QueueRecord], chosen: Filter, found: Mapping[str, Any]) -> str:
    """Why a plan holds no letter: what was left out, or which value of the filter no letter has."""
    parts = []
    if found["poisoned"]:
        parts.append(f"{found['poisoned']} left out: replayed in vain too often; --include-repeat takes them in")
    if found["replaying"]:
        parts.append(f"{found['replaying']} left out: being replayed")
    for name in words.NAMED:
        wanted = chosen.given.get(name)
        known = {one for shelf in shelves for one in words.values(session, name, shelf.id, _EVERY_WORD)}
        if wanted is not None and known and wanted not in known:
            there = ", ".join(sorted(known)[:_MOST_WORDS])
            parts.append(f"no letter has {name.replace('_', ' ')} {wanted!r:.80}; there are {there}")
    return "; ".join(["the plan matches no dead letter (total 0), and was not kept", *parts])
