"""`lattice-tasks fifo`: looking at FIFO queues. Nothing here changes one: to dequeue is the work of whoever reads it."""

from collections.abc import Mapping
from typing import Any

import click

from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Noun
from lattice_tasks.fifo import JSON, LatticeQueue, QueueEntry

__all__ = ["fifo"]

_NOT_FOUND = 3
_FIELDS = ("entry_id", "size_bytes", "encoding", "value")


@click.group(cls=Noun)
def fifo() -> None:
    """FIFO queues of the app: list, count, peek. They are looked at and stay as they are."""


@fifo.command("list")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="At most so many.")
@pass_desk
def list_(desk: Desk, name: str, limit: int) -> None:
    """The entries of NAME, the first to leave first."""
    found = _queue(desk, name).list(limit)
    desk.screen.many([_record(entry) for entry in found], _FIELDS, _FIELDS, "entries")
    if len(found) == limit:
        desk.screen.note(f"the first {limit}; --limit N shows more")


@fifo.command()
@click.argument("name")
@pass_desk
def count(desk: Desk, name: str) -> None:
    """How many entries wait in NAME."""
    waiting = _queue(desk, name).count()
    desk.screen.value({"count": waiting}, str(waiting))


@fifo.command()
@click.argument("name")
@pass_desk
def peek(desk: Desk, name: str) -> None:
    """The entry that leaves NAME next. Exit 3: it is empty."""
    entry = _queue(desk, name).peek()
    if entry is None:
        desk.fail(_NOT_FOUND, f"queue {name!r} is empty")
    desk.screen.one(_record(entry))


class _AsStored:
    """Bytes, whatever the app's serializer has made them of."""

    def serialize(self, value: Any) -> bytes:
        raise NotImplementedError

    def deserialize(self, data: bytes) -> bytes:
        return data


def _queue(desk: Desk, name: str) -> LatticeQueue[bytes]:
    return desk.lattice.fifo(name, serializer=_AsStored())


def _record(entry: QueueEntry[bytes]) -> Mapping[str, Any]:
    encoding, value = _read(entry.value)
    return {"entry_id": entry.entry_id, "size_bytes": len(entry.value), "encoding": encoding, "value": value}


def _read(data: bytes) -> tuple[str, Any]:
    """JSON as what it says; anything else as text, with what is none of it written out."""
    try:
        return "json", JSON.deserialize(data)
    except (ValueError, RecursionError):
        return "bytes", data.decode("utf-8", "backslashreplace")
