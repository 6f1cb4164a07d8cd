"""A card for each dead letter: what operators filter and group by, beside the letter itself, which is only bytes here.

Every change of a shelf's cards and groups is made while the head of its FIFO is held, so within one shelf nobody waits for
anybody else. A group keeps its count of hits and its hours when its letters are gone; its live ones are counted by card.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice_tasks.store.engine import POSTGRES, SQLITE, Session, Statement

__all__ = [
    "NARROWED",
    "Card",
    "Chosen",
    "GroupRow",
    "choose",
    "count_chosen",
    "drop",
    "file",
    "groups",
    "hours",
    "prune_hours",
    "put_back",
    "refile",
]

_HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of a letter without reading it.

    Attributes:
        fingerprint: of its group.
        message: the group's normalised message.
        error_class: the exception's name without its module; empty when there was none.
        replays: how many replays of it have failed.
    """

    entry_id: int
    seq: int
    fingerprint: str
    actor: str
    reason: str
    error_class: str
    message: str
    key: str | None
    parked_at: int
    replays: int = 0


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Letters of one shelf that failed alike; `live` lie there now, `hits` were ever parked, `seen` in microseconds."""

    queue_id: int
    fingerprint: str
    actor: str
    error_class: str
    message: str
    first_seen: int
    last_seen: int
    hits: int
    live: int
    newest_id: int | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which letters: each field narrows, None does not. `since` and `until` in microseconds, half-open; ids inclusive."""

    reason: str | None = None
    actor: str | None = None
    error_class: str | None = None
    key: str | None = None
    group: str | None = None
    since: int | None = None
    until: int | None = None
    worker_lost: bool | None = None
    max_replays: int | None = None
    last_id: int | None = None

    def params(self) -> list[Any]:
        """Each value twice, to see whether it narrows and to compare; the group's first letters once more, for their number."""
        lost = None if self.worker_lost is None else int(self.worker_lost)
        named = (self.reason, self.actor, self.error_class, self.key)
        numbers = (self.since, self.until, lost, self.max_replays, self.last_id)
        return [value for value in (*named, *numbers) for _ in range(2)] + [self.group] * 3


# A replay that lost its worker leaves this reason, too (`tasks/claim.rescue`).
_LOST = "case when reason = 'worker_lost' then 1 else 0 end"
_NARROWED = " and ".join(
    [f"(%s::text is null or {name} = %s)" for name in ("reason", "actor", "error_class", "key")]
    + ["(%s::bigint is null or parked_at >= %s)", "(%s::bigint is null or parked_at < %s)"]
    + [f"(%s::bigint is null or {_LOST} = %s)", "(%s::bigint is null or replays <= %s)"]
    + ["(%s::bigint is null or entry_id <= %s)"]
    + ["(%s::text is null or substr(fingerprint, 1, length(%s)) = %s)"]
)
_BARE = _NARROWED.replace("::text", "").replace("::bigint", "")
#: The condition of `Chosen`, with bare columns, for the parameters of `Chosen.params`.
NARROWED = {POSTGRES: _NARROWED, SQLITE: _BARE}
_CHOOSE = "select entry_id from lattice_letter where queue_id = %s and entry_id > %s and {} order by entry_id limit %s"
_COUNT = "select count(*) from lattice_letter where queue_id = %s and entry_id > %s and {}"

_CHOOSE_IDS = Statement(_CHOOSE.format(_NARROWED), sqlite=_CHOOSE.format(_BARE), replans=True)
_COUNT_IDS = Statement(_COUNT.format(_NARROWED), sqlite=_COUNT.format(_BARE), replans=True)
_FILE = Statement(
    postgres="""insert into lattice_letter
            (queue_id, entry_id, seq, fingerprint, actor, reason, error_class, key, parked_at, replays)
        select %s, * from unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
            %s::bigint[], %s::bigint[])""",
    sqlite="""insert into lattice_letter
            (queue_id, entry_id, seq, fingerprint, actor, reason, error_class, key, parked_at, replays)
        values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)""",
)
_DROP = Statement(
    postgres="delete from lattice_letter where queue_id = %s and entry_id = any(%s::bigint[])",
    sqlite="delete from lattice_letter where queue_id = %s and entry_id in (select value from json_each(%s))",
)
_HIT = Statement(
    """insert into lattice_group (queue_id, fingerprint, actor, error_class, message, first_seen, last_seen, hits)
       values (%s, %s, %s, %s, %s, %s, %s, %s) on conflict (queue_id, fingerprint) do update
       set last_seen = excluded.last_seen, hits = lattice_group.hits + excluded.hits"""
)
_GROUP = Statement(
    """insert into lattice_group (queue_id, fingerprint, actor, error_class, message, first_seen, last_seen, hits)
       values (%s, %s, %s, %s, %s, %s, %s, 1) on conflict do nothing"""
)
_HIT_HOUR = Statement(
    """insert into lattice_group_hour (queue_id, fingerprint, hour, hits) values (%s, %s, %s, %s)
       on conflict (queue_id, fingerprint, hour) do update set hits = lattice_group_hour.hits + excluded.hits"""
)
_GROUPS = Statement(
    """select g.queue_id, g.fingerprint, g.actor, g.error_class, g.message, g.first_seen, g.last_seen, g.hits,
           coalesce(l.live, 0), l.newest
       from lattice_group g left join (
           select queue_id, fingerprint, count(*) as live, max(entry_id) as newest from lattice_letter
           where queue_id in (select id from lattice_queue where namespace_id = %s)
           group by queue_id, fingerprint) l on l.queue_id = g.queue_id and l.fingerprint = g.fingerprint
       where g.queue_id in (select id from lattice_queue where namespace_id = %s)
       order by coalesce(l.live, 0) desc, g.last_seen desc, g.fingerprint"""
)
_HOURS = Statement(
    """select queue_id, fingerprint, hour, hits from lattice_group_hour
       where queue_id in (select id from lattice_queue where namespace_id = %s) and hour >= {now} / %s - %s
       order by hour"""
)
_NOW = Statement("select {now}")
_PRUNE_HOURS = Statement("delete from lattice_group_hour where hour < {now} / %s - %s")


def file(session: Session, queue_id: int, cards: Sequence[Card]) -> None:
    """Add the cards of letters that were just parked, and count them in their groups."""
    if cards:
        _insert(session, queue_id, cards)
        _hit(session, queue_id, cards)


def refile(session: Session, queue_id: int, cards: Sequence[Card]) -> None:
    """New cards for letters whose replay failed: another error may be another group."""
    drop(session, queue_id, [card.entry_id for card in cards])
    file(session, queue_id, cards)


def put_back(session: Session, queue_id: int, cards: Sequence[Card]) -> None:
    """Add the cards of letters that came from elsewhere: no new failure, so nothing is counted."""
    if cards:
        _insert(session, queue_id, cards)
    for fingerprint, card in sorted({card.fingerprint: card for card in cards}.items()):
        names = (fingerprint, card.actor, card.error_class, card.message)
        session.execute(_GROUP, (queue_id, *names, card.parked_at, card.parked_at))


def drop(session: Session, queue_id: int, entry_ids: Sequence[int]) -> None:
    """Remove the cards of letters that left the shelf."""
    if entry_ids:
        wanted = list(entry_ids) if session.dialect == POSTGRES else msgspec.json.encode(list(entry_ids)).decode()
        session.execute(_DROP, (queue_id, wanted))


def choose(session: Session, queue_id: int, chosen: Chosen, after: int, limit: int) -> list[int]:
    """Entry ids above `after` that are chosen, ascending, at most so many."""
    return [row[0] for row in session.fetch(_CHOOSE_IDS, (queue_id, after, *chosen.params(), limit))]


def count_chosen(session: Session, queue_id: int, chosen: Chosen, after: int = 0) -> int:
    """How many letters of the shelf with entry ids above `after` are chosen."""
    return session.fetch(_COUNT_IDS, (queue_id, after, *chosen.params()))[0][0]


def groups(session: Session, namespace_id: int) -> list[GroupRow]:
    """Every group of the namespace, those with most live letters first."""
    return [GroupRow(*row) for row in session.fetch(_GROUPS, (namespace_id, namespace_id))]


def hours(session: Session, namespace_id: int, number: int) -> tuple[int, dict[tuple[int, str], dict[int, int]]]:
    """The store's now in microseconds, and hits of the last hours by (queue id, fingerprint), by hour since 1970."""
    found: dict[tuple[int, str], dict[int, int]] = {}
    for queue_id, fingerprint, hour, hits in session.fetch(_HOURS, (namespace_id, _HOUR_US, number)):
        found.setdefault((queue_id, fingerprint), {})[hour] = hits
    return session.fetch(_NOW)[0][0], found


def prune_hours(session: Session, number: int) -> int:
    """Forget the hits of hours longer ago than so many; returns how many rows went."""
    return session.execute(_PRUNE_HOURS, (_HOUR_US, number))


def _insert(session: Session, queue_id: int, cards: Sequence[Card]) -> None:
    rows = [
        (
            one.entry_id,
            one.seq,
            one.fingerprint,
            one.actor,
            one.reason,
            one.error_class,
            one.key,
            one.parked_at,
            one.replays,
        )
        for one in cards
    ]
    if session.dialect == POSTGRES:
        session.execute(_FILE, (queue_id, *(list(column) for column in zip(*rows, strict=True))))
    else:
        session.execute_many(_FILE, [(queue_id, *row) for row in rows])


def _hit(session: Session, queue_id: int, cards: Sequence[Card]) -> None:
    """Cards of one park share its instant; a statement for each group among them."""
    alike: dict[str, list[Card]] = {}
    for card in cards:
        alike.setdefault(card.fingerprint, []).append(card)
    for fingerprint, same in sorted(alike.items()):
        first = same[0]
        seen, hits = first.parked_at, len(same)
        columns = (queue_id, fingerprint, first.actor, first.error_class, first.message, seen, seen, hits)
        session.execute(_HIT, columns)
        session.execute(_HIT_HOUR, (queue_id, fingerprint, seen // _HOUR_US, hits))
