"""Named counters that expire, for rate limiters, barriers and groups."""

from collections.abc import Sequence

from lattice_tasks.store.engine import POSTGRES, Session, Statement

__all__ = ["add", "add_within_sum", "change", "prune", "value"]

_ADD = Statement(
    """insert into lattice_counter (key, value, expires_at) values (%s, %s, {now} + %s)
       on conflict (key) do update set value = excluded.value, expires_at = excluded.expires_at
           where lattice_counter.expires_at <= {now}"""
)
_ENSURE = Statement(
    """insert into lattice_counter (key, value, expires_at) values (%s, 0, {now} + %s)
       on conflict (key) do update set value = 0, expires_at = excluded.expires_at
           where lattice_counter.expires_at <= {now}"""
)
_CHANGE = Statement(
    """update lattice_counter set value = value + %s, expires_at = {now} + %s
       where key = %s and value + %s >= %s and value + %s <= %s"""
)
_VALUE = Statement("select value from lattice_counter where key = %s and expires_at > {now}")
_SUM = Statement(
    postgres="select coalesce(sum(value), 0)::bigint from lattice_counter where key = any(%s) and expires_at > {now}",
    sqlite="select value from lattice_counter where key = %s and expires_at > {now}",
)
_LOCK = Statement("update lattice_counter set value = value where key = %s")
_PRUNE = Statement("delete from lattice_counter where expires_at <= {now}")

_LOWEST, _HIGHEST = -(2**62), 2**62


def add(session: Session, key: str, start: int, ttl_ms: int) -> bool:
    """Make the counter unless it exists; whether it was made."""
    return session.execute(_ADD, (key, start, ttl_ms * 1_000)) == 1


def change(session: Session, key: str, amount: int, minimum: int | None, maximum: int | None, ttl_ms: int) -> bool:
    """Add `amount` unless that leaves the bounds; a missing counter starts at zero. Whether it was changed."""
    low = _LOWEST if minimum is None else minimum
    high = _HIGHEST if maximum is None else maximum
    with session.transaction():
        session.execute(_ENSURE, (key, ttl_ms * 1_000))
        return session.execute(_CHANGE, (amount, ttl_ms * 1_000, key, amount, low, amount, high)) == 1


def add_within_sum(session: Session, key: str, keys: Sequence[str], amount: int, maximum: int, ttl_ms: int) -> bool:
    """Add `amount` to one counter unless the sum of them all would pass `maximum`."""
    with session.transaction():
        for one in sorted({key, *keys}):
            session.execute(_ENSURE, (one, ttl_ms * 1_000))
            session.execute(_LOCK, (one,))
        if session.dialect == POSTGRES:
            total = session.fetch(_SUM, (list(keys),))[0][0]
        else:
            total = sum(row[0] for one in keys for row in session.fetch(_SUM, (one,)))
        if total + amount > maximum:
            return False
        return session.execute(_CHANGE, (amount, ttl_ms * 1_000, key, amount, _LOWEST, amount, _HIGHEST)) == 1


def value(session: Session, key: str) -> int:
    """The counter's value, 0 when it is missing or expired."""
    rows = session.fetch(_VALUE, (key,))
    return rows[0][0] if rows else 0


def prune(session: Session) -> int:
    """Remove the expired; returns how many."""
    return session.execute(_PRUNE)
