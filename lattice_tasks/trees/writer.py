"""One change of a tree: under its head's lock, with stamps that rise, journaled when the tree is replicated.

Stamps are ticked here and nowhere else, by the store's clock, from the last stamp that the head holds: so they rise over
every process, restart and step of a clock, in the order in which the changes commit.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lattice_tasks.clock import TICKS_PER_US, Version
from lattice_tasks.errors import InvalidInput, OperationMismatch
from lattice_tasks.keys import require_key
from lattice_tasks.store import journal, registry
from lattice_tasks.store import tree as cells
from lattice_tasks.store.engine import Session
from lattice_tasks.store.journal import Record
from lattice_tasks.store.tree import Cell

__all__ = ["Change", "Writer", "writing"]

_MAX_WALL = 2**62
_MAX_COUNTER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Change:
    """What shall become of a key: a value, that may expire after `ttl_us`, or None: deleted."""

    value: bytes | None
    ttl_us: int | None = None


class Writer:
    """A tree whose head is held: what is read here stays true until the transaction ends. Made by `writing`."""

    def __init__(self, session: Session, tree: str, site_id: str) -> None:
        self._session = session
        self._site_id = site_id
        self._head = registry.hold(session, tree)
        self._stamp = self._head.stamp
        self._records: list[Record] = []
        self.tree_id = self._head.tree_id
        self.mode = self._head.mode
        self.now_us = self._head.now_us  #: the store's clock

    def live(self, keys: Sequence[str]) -> dict[str, Cell]:
        """Those of these keys that somebody sees, with their cells."""
        found = cells.cells_of(self._session, self.tree_id, keys)
        return {key: cell for key, cell in found.items() if cell.is_live(self.now_us)}

    def put(self, changes: Mapping[str, Change]) -> Version:
        """Make changes, each a change of its own to whoever follows the journal; returns the last one's version."""
        made = [self._cell(key, change) for key, change in changes.items()]
        if made:
            cells.write(self._session, self.tree_id, made)
        self._records += [_record(cell) for cell in made]
        return self._version

    def put_together(self, changes: Mapping[str, Change], transaction_id: str, operation_id: str | None) -> bool:
        """Make changes as one batch, also to whoever follows the journal.

        Args:
            operation_id: when given, the batch is made once for this id; again with the same keys changes nothing.

        Returns:
            Whether it was made now.

        Raises:
            OperationMismatch: the id was used for other keys.
        """
        if operation_id is not None and not self._decides(operation_id, changes):
            return False
        unseen = [key for key, change in changes.items() if change.value is None]
        seen = self.live(unseen) if unseen else {}
        made = [self._cell(key, change) for key, change in changes.items() if change.value is not None or key in seen]
        if not made:
            return True
        cells.write(self._session, self.tree_id, made)
        records = [*map(_record, made), Record(journal.COMMIT, self._tick())]
        self._records += [
            replace(record, transaction_id=transaction_id, batch_size=len(made), batch_index=at)
            for at, record in enumerate(records)
        ]
        return True

    def delete_range(self, start: str, end: str) -> int:
        """Delete what lives in [start, end); journaled also when that is nothing, for another site may hold keys there."""
        version = self._tick()
        self._records.append(Record(journal.DELETE_RANGE, version, start, end))
        return cells.kill_range(self._session, self.tree_id, start, end, version, self.now_us)

    def merge(self, foreign: Sequence[Cell]) -> list[str]:
        """Let cells of other sites in where they are later than ours; their versions stay, our stamps go above them.

        In any order, however often, the same cells leave the same tree.

        Returns:
            The keys that changed.

        Raises:
            InvalidInput: a key, stamp or origin that no site makes; nothing was written.
        """
        newest: dict[str, Cell] = {}
        for cell in foreign:
            _require_mergeable(cell)
            newest[cell.key] = cells.later(newest[cell.key], cell) if cell.key in newest else cell
            self._stamp = self._stamp.merge(cell.version.stamp, self._now)
        ours = cells.cells_of(self._session, self.tree_id, list(newest))
        won = [cell for key, cell in newest.items() if key not in ours or cells.later(ours[key], cell) is cell]
        if won:
            cells.write(self._session, self.tree_id, [self._buried(cell) for cell in won])
        self._records += [_record(cell) for cell in won]
        return [cell.key for cell in won]

    def replicate(self, mode: str | None) -> None:
        """Journal the changes from the next one on; None: no more."""
        registry.set_mode(self._session, self.tree_id, mode)

    @property
    def _now(self) -> int:
        return self.now_us * TICKS_PER_US

    @property
    def _version(self) -> Version:
        return Version(self._stamp, self._site_id)

    def _tick(self) -> Version:
        self._stamp = self._stamp.tick(self._now)
        return self._version

    def _cell(self, key: str, change: Change) -> Cell:
        cell = Cell(key, change.value, self._tick(), None if change.ttl_us is None else self.now_us + change.ttl_us)
        return self._buried(cell)

    def _buried(self, cell: Cell) -> Cell:
        """A tombstone is dead from now on, by our clock: its grace is counted here."""
        return replace(cell, dead_at=self.now_us) if cell.is_tombstone else cell

    def _decides(self, operation_id: str, changes: Mapping[str, Change]) -> bool:
        fingerprint = hashlib.sha256("\0".join(sorted(changes)).encode()).hexdigest()
        if journal.decide(self._session, self.tree_id, operation_id, fingerprint, journal.COMMIT):
            return True
        if journal.fingerprint_of(self._session, self.tree_id, operation_id) != fingerprint:
            raise OperationMismatch(
                f"operation {operation_id!r} was used for a batch with other keys; take a new id for another batch"
            )
        return False

    def _write(self) -> None:
        records = self._records if self.mode is not None else []
        if records:
            journal.append(self._session, self.tree_id, self._head.next_seq, records)
        if self._stamp != self._head.stamp:
            registry.write_head(self._session, self.tree_id, self._stamp, self._head.next_seq + len(records))


@contextmanager
def writing(session: Session, tree: str, site_id: str) -> Iterator[Writer]:
    """Hold the head of a tree, registered when missing, for a change; all of it or nothing counts.

    Args:
        tree: the name in the registry.
        site_id: of which site the changes made here are.

    Raises:
        InvalidOperation: it is no tree of cells.
    """
    with session.transaction():
        writer = Writer(session, tree, site_id)
        yield writer
        writer._write()


def _record(cell: Cell) -> Record:
    op = journal.DELETE if cell.is_tombstone else journal.SET
    return Record(op, cell.version, cell.key, value=cell.value, expires_at=cell.expires_at)


def _require_mergeable(cell: Cell) -> None:
    require_key(cell.key)
    stamp, origin = cell.version.stamp, cell.version.origin
    if not (0 <= stamp.wall < _MAX_WALL and 0 <= stamp.counter <= _MAX_COUNTER and (stamp.wall or stamp.counter)):
        raise InvalidInput(f"key {cell.key!r:.40}: stamp ({stamp.wall}, {stamp.counter}) is none that a site makes")
    if not origin or len(origin) > 64 or "\0" in origin:
        raise InvalidInput(f"key {cell.key!r:.40}: origin {origin!r:.40} is no site id")
