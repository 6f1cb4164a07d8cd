"""The values that dead letters have where a filter asks for one."""

from lattice_tasks.store.engine import Session, Statement

__all__ = ["NAMED", "values"]

#: The fields of a letter whose values a person types by heart.
NAMED = ("actor", "error_class", "reason")
_VALUES = {
    name: Statement(f"select {name} from lattice_letter where queue_id = %s group by {name} order by {name} limit %s")
    for name in NAMED
}


def values(session: Session, name: str, queue_id: int, limit: int) -> list[str]:
    """Up to so many values of one of `NAMED` on the shelf of a queue, ascending."""
    return [str(row[0]) for row in session.fetch(_VALUES[name], (queue_id, limit)) if row[0] is not None]
