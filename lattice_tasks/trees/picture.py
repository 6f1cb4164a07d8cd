"""Which trees there are, as frozen values."""

from dataclasses import dataclass
from datetime import datetime

from lattice_tasks import clock
from lattice_tasks.keys import tree_key
from lattice_tasks.store import registry
from lattice_tasks.store.engine import Session

__all__ = ["TreePicture", "list_trees"]


@dataclass(frozen=True, slots=True)
class TreePicture:
    """One tree. `mode`: how it is replicated, or None; `changed_at`: by its last stamp, None before the first change."""

    name: str
    mode: str | None
    created_at: datetime
    changed_at: datetime | None


def list_trees(session: Session, namespace_id: int) -> list[TreePicture]:
    """Every tree of the namespace, by name; those of the system are none of anybody's."""
    prefix = tree_key(namespace_id)
    return [
        TreePicture(
            name=name.removeprefix(prefix),
            mode=mode,
            created_at=clock.from_us(created_at),
            changed_at=clock.from_us(wall // clock.TICKS_PER_US) if wall else None,
        )
        for name, mode, wall, created_at in registry.list_trees(session, prefix)
    ]
