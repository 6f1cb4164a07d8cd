"""Counters of failed attempts, shared by all processes: one row for each thing that failed and has not succeeded since.

A counter that nobody has raised for its idle time does not count any more, whether it was pruned yet or not.
"""

from collections.abc import Sequence

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = ["any_known", "clear", "prune", "record"]

# The upsert holds its row until the transaction ends: of two that fail at once one counts after the other.
_RECORD = Statement("""
    insert into lattice_failure (scope, digest, attempts, failed_at) values (%s, %s, 1, {now})
    on conflict (scope, digest) do update set failed_at = excluded.failed_at,
        attempts = case when lattice_failure.failed_at <= {now} - %s then 1 else lattice_failure.attempts + 1 end
    returning attempts
""")
_KNOWN = Statement("select 1 from lattice_failure where scope = %s and digest = %s")
_ANY_KNOWN = Statement("""
    select 1 from unnest(%s::text[], %s::bytea[]) as g (scope, digest) cross join lateral (
        select 1 from lattice_failure f where f.scope = g.scope and f.digest = g.digest limit 1) f limit 1
""")
_CLEAR = Statement("delete from lattice_failure where scope = %s and digest = %s")
_PRUNE = Statement(
    postgres="""
    delete from lattice_failure where ctid = any(array(
        select ctid from lattice_failure where failed_at <= {now} - %s order by failed_at limit %s for update skip locked))
    """,
    sqlite="""
    delete from lattice_failure where (scope, digest) in (
        select scope, digest from lattice_failure where failed_at <= {now} - %s order by failed_at limit %s)
    """,
)


def record(session: Session, scope: str, digest: bytes, idle_us: int) -> int:
    """Count a failure; returns how many there are with it. Its row stays locked until the transaction ends."""
    attempts: int = session.fetch(_RECORD, (scope, digest, idle_us))[0][0]
    return attempts


def clear(session: Session, scope: str, digest: bytes) -> None:
    """Forget the failures of what succeeded; where there are none, nothing is written or locked."""
    if session.fetch(_KNOWN, (scope, digest)):
        session.execute(_CLEAR, (scope, digest))


def any_known(session: Session, things: Sequence[tuple[str, bytes]]) -> bool:
    """Whether one of these (scope, digest) has failed before."""
    if session.dialect == POSTGRES:
        return bool(session.fetch(_ANY_KNOWN, ([one[0] for one in things], [one[1] for one in things])))
    return any(session.fetch(_KNOWN, one) for one in things)


def prune(session: Session, idle_us: int, limit: int) -> int:
    """Remove counters that nobody has raised for so long, at most `limit`; returns how many."""
    return session.execute(_PRUNE, (idle_us, limit))
