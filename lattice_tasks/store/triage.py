"""What operators said about groups of dead letters. Parking never touches it: whether a group is new again is told when
it is read."""

from dataclasses import dataclass
from typing import Any

from lattice_tasks.store.engine import Session, Statement

__all__ = ["SampleRow", "TriageRow", "begin_with", "of_namespace", "samples", "write"]


@dataclass(frozen=True, slots=True)
class TriageRow:
    """What was said about one group; instants in microseconds."""

    fingerprint: str
    state: str
    until: int | None
    owner: str | None
    note: str | None
    ticket: str | None
    changed_at: int
    changed_by: str


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One of a group's newest letters of one shelf."""

    queue_id: int
    fingerprint: str
    entry_id: int
    parked_at: int


_BEGIN_WITH = Statement(
    """select distinct fingerprint from lattice_group
       where queue_id in (select id from lattice_queue where namespace_id = %s)
           and substr(fingerprint, 1, length(%s)) = %s order by fingerprint"""
)
_ALL = Statement(
    """select fingerprint, state, until, owner, note, ticket, changed_at, changed_by from lattice_triage
       where namespace_id = %s"""
)
# A few steps along `lattice_letter_group` for each group: numbering all of 100,000 letters took ten times as long. SQLite
# would walk the primary key, so it is told the index, and the order of the join.
_SAMPLES = Statement(
    postgres="""select g.queue_id, g.fingerprint, s.entry_id, s.parked_at
        from lattice_group g cross join lateral (
            select l.entry_id, l.parked_at from lattice_letter l
            where l.queue_id = g.queue_id and l.fingerprint = g.fingerprint order by l.entry_id desc limit %s) s
        where g.queue_id in (select id from lattice_queue where namespace_id = %s)""",
    sqlite="""select g.queue_id, g.fingerprint, l.entry_id, l.parked_at
        from (select queue_id, fingerprint, coalesce((select n.entry_id from lattice_letter n
                  where n.queue_id = o.queue_id and n.fingerprint = o.fingerprint
                  order by n.entry_id desc limit 1 offset %s - 1), 0) as least
              from lattice_group o where queue_id in (select id from lattice_queue where namespace_id = %s) limit -1) g
        cross join lattice_letter l indexed by lattice_letter_group
            on l.queue_id = g.queue_id and l.fingerprint = g.fingerprint and l.entry_id >= g.least""",
    replans=True,
)
# `%s` after the state: None leaves what is there as it is, state and all; a state begins anew.
_WRITE = Statement(
    """insert into lattice_triage (namespace_id, fingerprint, state, until, owner, note, ticket, changed_at, changed_by)
       values (%s, %s, coalesce(%s, 'new'), {now} + %s, %s, %s, %s, {now}, %s)
       on conflict (namespace_id, fingerprint) do update set
           state = case when %s = 1 then excluded.state else lattice_triage.state end,
           until = case when %s = 1 then excluded.until else lattice_triage.until end,
           changed_at = case when %s = 1 then excluded.changed_at else lattice_triage.changed_at end,
           changed_by = excluded.changed_by,
           owner = coalesce(excluded.owner, lattice_triage.owner),
           note = coalesce(excluded.note, lattice_triage.note),
           ticket = coalesce(excluded.ticket, lattice_triage.ticket)"""
)


def begin_with(session: Session, namespace_id: int, prefix: str) -> list[str]:
    """The fingerprints of the namespace's groups that begin so."""
    return [row[0] for row in session.fetch(_BEGIN_WITH, (namespace_id, prefix, prefix))]


def of_namespace(session: Session, namespace_id: int) -> dict[str, TriageRow]:
    """What was said about each group, by fingerprint."""
    return {row[0]: TriageRow(*row) for row in session.fetch(_ALL, (namespace_id,))}


def samples(session: Session, namespace_id: int, number: int) -> list[SampleRow]:
    """The newest letters of each group of each shelf, at most so many of each."""
    return [SampleRow(*row) for row in session.fetch(_SAMPLES, (number, namespace_id))]


def write(
    session: Session,
    namespace_id: int,
    fingerprint: str,
    *,
    state: str | None,
    for_us: int | None,
    owner: str | None,
    note: str | None,
    ticket: str | None,
    by: str,
) -> None:
    """Say something about a group. None leaves what was said; an empty text takes it away."""
    changes: Any = 0 if state is None else 1
    values = (namespace_id, fingerprint, state, for_us, owner, note, ticket, by)
    session.execute(_WRITE, (*values, changes, changes, changes))
