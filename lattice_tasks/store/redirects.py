"""The rows of redirect rules: what a queue or an actor is called now."""

from dataclasses import dataclass

from lattice_tasks.store.engine import Session, Statement

__all__ = ["RedirectRow", "add", "list_all", "remove"]


@dataclass(frozen=True, slots=True)
class RedirectRow:
    """One rule. `kind` is `queue` or `actor`; `queue` is whose letters an actor's rule is for, empty: every queue's."""

    id: int
    kind: str
    queue: str
    source: str
    target: str
    created_at: int


_ADD = Statement(
    """insert into lattice_redirect (namespace_id, kind, queue, source, target, created_at)
       values (%s, %s, %s, %s, %s, {now}) on conflict do nothing
       returning id, kind, queue, source, target, created_at"""
)
_LIST = Statement(
    "select id, kind, queue, source, target, created_at from lattice_redirect where namespace_id = %s order by id"
)
_REMOVE = Statement("delete from lattice_redirect where namespace_id = %s and id = %s")


def add(session: Session, namespace_id: int, kind: str, queue: str, source: str, target: str) -> RedirectRow | None:
    """A new rule; None: there is one for this source."""
    rows = session.fetch(_ADD, (namespace_id, kind, queue, source, target))
    return RedirectRow(*rows[0]) if rows else None


def list_all(session: Session, namespace_id: int) -> list[RedirectRow]:
    """Every rule, the oldest first."""
    return [RedirectRow(*row) for row in session.fetch(_LIST, (namespace_id,))]


def remove(session: Session, namespace_id: int, redirect_id: int) -> bool:
    """Remove a rule; False: there is none of this id."""
    return session.execute(_REMOVE, (namespace_id, redirect_id)) == 1
