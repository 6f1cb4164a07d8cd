"""`LatticeTree`: a sorted key space that everybody in the namespace shares by its name.

Keys are texts, ordered by their UTF-8 bytes whatever the language of the database. Every change is one transaction that
holds the tree's head, so changes have one serial order; reads take no lock and see one moment. A scan sees one moment per
page: it is in order and yields no key twice, and what was there all the time it yields.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from lattice_tasks import clock
from lattice_tasks.clock import Version
from lattice_tasks.errors import InvalidInput, TooLarge, TreeExists, TreeNotFound
from lattice_tasks.fifo import JSON, Serializer
from lattice_tasks.keys import LAST, following, prefix_end, require_bound, require_key, tree_key
from lattice_tasks.store import puts, registry
from lattice_tasks.store import tree as cells
from lattice_tasks.store.engine import Engine, Session
from lattice_tasks.store.tree import Cell
from lattice_tasks.trees.cursor import LatticeCursor, Source, open_cursor
from lattice_tasks.trees.rules import require_name, require_operation, ttl_us
from lattice_tasks.trees.writer import Change, Writer, writing

__all__ = ["ABSENT", "MODES", "Batch", "LatticeTree", "TreeEntry"]

T = TypeVar("T")

#: The version of a key that is not there.
ABSENT = Version()
#: How changes of several sites become one tree.
MODES = ("lww",)

_PAGE_ROWS = 512
_MOST_BYTES = 1_048_576
_IDLE = timedelta(hours=48)


@dataclass(frozen=True, slots=True)
class TreeEntry(Generic[T]):
    """A key with its value, the version to compare and set against, and when it expires; None: never."""

    key: str
    value: T
    version: Version
    expires_at: datetime | None


class Batch(Generic[T]):
    """Changes that count together. Made by `LatticeTree.batch`.

    Attributes:
        was_made: after the block: whether the batch was made now; False: its operation id had been used before.
    """

    def __init__(self, change_of: Callable[[T, timedelta | None], Change]) -> None:
        self._change_of = change_of
        self.changes: dict[str, Change] = {}
        self.was_made = False

    def set(self, key: str, value: T, *, ttl: timedelta | None = None) -> None:
        """Set a key; raises like `LatticeTree.set`."""
        self._add(key, self._change_of(value, ttl))

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._add(key, Change(None))

    def _add(self, key: str, change: Change) -> None:
        require_key(key)
        if key in self.changes:
            raise InvalidInput(f"key {key!r:.40} stands in this batch already; one change for each key")
        self.changes[key] = change


class LatticeTree(Generic[T]):
    """An ordered tree, the same for everybody in the namespace who opens its name; the first write registers it.

    Args:
        store: an engine, or a session whose open transaction the calls shall join.
        name: 1 to 255 characters.
        namespace_id: whose tree it is.
        site_id: which site's changes these are; unique among the sites that replicate the tree.
        serializer: JSON unless given. It runs here, in the caller: the store sees bytes.
        max_bytes: of one serialised value.

    Raises:
        InvalidInput: the name is not acceptable.
        ReservedName: the name is a system tree's. So no call on such a tree, reading included, can be made at all.
    """

    def __init__(
        self,
        store: Engine | Session,
        name: str,
        namespace_id: int,
        *,
        site_id: str = "local",
        serializer: Serializer = JSON,
        max_bytes: int = _MOST_BYTES,
    ) -> None:
        require_name(name)
        self.name = name
        self._store = store
        self._namespace_id = namespace_id
        self._tree = tree_key(namespace_id, name)
        self._site_id = site_id
        self._serializer = serializer
        self._max_bytes = max_bytes
        self._source = Source(self._session, self._tree, site_id, self._entry)

    def __repr__(self) -> str:
        return f"LatticeTree({self.name!r})"

    def is_registered(self) -> bool:
        """Whether anything was ever written to it."""
        with self._session() as session:
            return registry.find(session, self._tree) is not None

    def get(self, key: str, default: Any = None) -> T | Any:
        """The value of a key, or `default`; one look-up."""
        cell = self._live(key)
        return default if cell is None else self._value(cell)

    def get_with_version(self, key: str) -> tuple[T | None, Version]:
        """The value and the version to give to `set_if_version`; (None, `ABSENT`) when the key is not there."""
        cell = self._live(key)
        return (None, ABSENT) if cell is None else (self._value(cell), cell.version)

    def entry(self, key: str) -> TreeEntry[T] | None:
        """The key with all that is known of it, or None."""
        cell = self._live(key)
        return None if cell is None else self._entry(cell)

    def exists(self, key: str) -> bool:
        """Whether the key is there."""
        return self._live(key) is not None

    def set(self, key: str, value: T, *, ttl: timedelta | None = None) -> Version:
        """Set a key, whatever was there, and its expiry with it; returns the version. Raises like `set_many`."""
        return self.set_many({key: value}, ttl=ttl)

    def set_many(self, values: dict[str, T], *, ttl: timedelta | None = None) -> Version:
        """Set keys, all or none; returns the version of the last. Each is a change of its own to a replica.

        Args:
            ttl: after which the keys are gone, by the store's clock; None: they stay, also where there was an expiry.

        Raises:
            InvalidInput: a bad key, or a `ttl` that is not positive. NotEncodable, TooLarge: a value cannot be stored.
        """
        for key in values:
            require_key(key)
        data = {key: self._bytes_of(value) for key, value in values.items()}
        lasts_us = None if ttl is None else ttl_us(ttl)
        with self._session() as session:
            stamp = puts.put(session, self._tree, data, lasts_us, self._site_id)
            if stamp is not None:
                return Version(stamp, self._site_id)
        with self._writing() as writer:
            return writer.put({key: Change(value, lasts_us) for key, value in data.items()})

    def set_if_absent(self, key: str, value: T, *, ttl: timedelta | None = None) -> Version | None:
        """Set a key that is not there, or has expired; None: it is there, and nothing was written."""
        return self.set_if_version(key, value, ABSENT, ttl=ttl)

    def set_if_version(self, key: str, value: T, version: Version, *, ttl: timedelta | None = None) -> Version | None:
        """Compare and set: only when the key still has this version; `ABSENT`: only when it is not there.

        Returns:
            The new version; None: somebody else was faster, and nothing was written.
        """
        require_key(key)
        change = self._change(value, ttl)
        if version != ABSENT and self._live(key) is None:
            return None
        with self._writing() as writer:
            found = writer.live([key]).get(key)
            if (ABSENT if found is None else found.version) != version:
                return None
            return writer.put({key: change})

    def delete(self, key: str) -> bool:
        """Delete a key; False when it was not there, and nothing was written."""
        if self._live(key) is None:
            return False
        with self._writing() as writer:
            if not writer.live([key]):
                return False
            writer.put({key: Change(None)})
            return True

    def delete_range(self, start: str, end: str) -> int:
        """Delete the keys in [start, end) in one transaction; returns how many. Again, it finds none.

        Of many keys it keeps the other writers waiting; a cursor of the kind `delete_range` does it in pages.
        """
        start, end = self._range("", start, end)
        if start >= end:
            raise InvalidInput(
                f"the range [{start!r:.40}, {end!r:.40}) holds no key: its start must come before its end"
            )
        if not self.is_registered():
            return 0
        with self._writing() as writer:
            return writer.delete_range(start, end)

    def scan(
        self,
        prefix: str = "",
        *,
        start: str | None = None,
        end: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[TreeEntry[T]]:
        """The entries of [start, end) whose key begins with `prefix`, in key order or from the last one backwards.

        Read page by page as they are asked for; between pages no connection is kept. To go on after a key, pass
        `start=key + "\\x01"`: no key lies between.

        Raises:
            InvalidInput: a bad bound or a negative limit.
            StoreUnavailable: from the iterator, which has then ended.
        """
        bounds = self._range(prefix, start, end)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidInput(f"limit={limit!r} must be None or a whole number from 0")
        return self._scan(*bounds, limit, reverse)

    def count(self, prefix: str = "", *, start: str | None = None, end: str | None = None) -> int:
        """How many keys `scan` would yield now, as of one moment; it walks them in the store."""
        bounds = self._range(prefix, start, end)
        with self._session() as session:
            return cells.count(session, self._tree, *bounds)

    @contextmanager
    def batch(self, operation_id: str | None = None) -> Iterator[Batch[T]]:
        """Gather changes; they are made at the end of the block, all or none, and seen all or none, unless it raises.

        Args:
            operation_id: makes repeating safe: within 48 hours a batch with this id is made once, whoever tries again.

        Raises:
            InvalidInput: an id that is empty, long, or holds `/` or what no key may.
            OperationMismatch: the id was used for a batch with other keys.
        """
        if operation_id is not None:
            require_operation(operation_id)
        batch: Batch[T] = Batch(self._change)
        yield batch
        with self._writing() as writer:
            batch.was_made = writer.put_together(batch.changes, operation_id or uuid.uuid4().hex, operation_id)

    def open_cursor(
        self,
        kind: str = "entries",
        prefix: str = "",
        *,
        start: str | None = None,
        end: str | None = None,
        reverse: bool = False,
        page_size: int = _PAGE_ROWS,
        idle: timedelta = _IDLE,
    ) -> LatticeCursor:
        """A durable cursor over the range, of the kind `entries`, `keys` or `delete_range`; see `cursor`.

        Args:
            page_size: keys per page, at most 10,000; large values make a page shorter.
            idle: how long it lives after its last use; at least a minute.
        """
        bounds = self._range(prefix, start, end)
        return open_cursor(self._source, kind, *bounds, is_reverse=reverse, page_size=page_size, idle=idle)

    def cursor(self, cursor_id: str) -> LatticeCursor:
        """The cursor of this id, to go on with where another process left it; nothing is looked up yet."""
        return LatticeCursor(self._source, cursor_id)

    def snapshot(self, name: str) -> "LatticeTree[T]":
        """Copy what lives now, as of one moment, with versions and expiry, into a new tree; writers go on meanwhile
        (on SQLite they wait).

        Raises:
            TreeNotFound: there is nothing to copy.
            TreeExists: the new name is taken.
            InvalidInput, ReservedName: it is not acceptable.
        """
        copy = LatticeTree[T](
            self._store,
            name,
            self._namespace_id,
            site_id=self._site_id,
            serializer=self._serializer,
            max_bytes=self._max_bytes,
        )
        with self._session() as session, session.transaction():
            source_id = registry.find(session, self._tree)
            if source_id is None:
                raise TreeNotFound(f"no tree {self.name!r}; a tree is there from its first write on")
            if not registry.create(session, copy._tree):
                raise TreeExists(f"tree {name!r} exists already; a snapshot needs a new name")
            target_id = registry.find(session, copy._tree) or 0
            cells.copy_live(session, source_id, target_id)
            registry.copy_stamp(session, source_id, target_id)
        return copy

    def replicate(self, mode: str | None = "lww") -> None:
        """Declare how the tree is replicated; its changes are journaled from now on. None: no more.

        Raises:
            InvalidInput: an unknown mode.
        """
        if mode is not None and mode not in MODES:
            raise InvalidInput(f"mode={mode!r} of tree {self.name!r} must be None or one of {', '.join(MODES)}")
        with self._writing() as writer:
            writer.replicate(mode)

    def _scan(self, start: str, end: str, limit: int | None, reverse: bool) -> Iterator[TreeEntry[T]]:
        left, has_more = limit, True
        while has_more and left != 0 and start < end:
            rows = _PAGE_ROWS if left is None else min(_PAGE_ROWS, left)
            with self._session() as session:
                found, has_more = cells.page(session, self._tree, start, end, rows, reverse=reverse)
            yield from map(self._entry, found)
            if found and reverse:
                end = found[-1].key
            elif found:
                start = following(found[-1].key)
            left = None if left is None else left - len(found)

    def _range(self, prefix: str, start: str | None, end: str | None) -> tuple[str, str]:
        """What the three say together, as [start, end)."""
        for name, bound in (("prefix", prefix), ("start", start), ("end", end)):
            if bound is not None:
                require_bound(bound, name)
        behind = prefix_end(prefix) if prefix else None
        return max(prefix, start or ""), min(behind or LAST, LAST if end is None else end)

    def _live(self, key: str) -> Cell | None:
        require_key(key)
        with self._session() as session:
            return cells.live_cell(session, self._tree, key)

    def _change(self, value: T, ttl: timedelta | None) -> Change:
        return Change(self._bytes_of(value), None if ttl is None else ttl_us(ttl))

    def _bytes_of(self, value: T) -> bytes:
        data = self._serializer.serialize(value)
        if not isinstance(data, bytes):
            raise InvalidInput(f"the serializer of tree {self.name!r} gave {type(data).__name__}; it must give bytes")
        if len(data) > self._max_bytes:
            raise TooLarge(f"a value of {len(data)} bytes in tree {self.name!r} passes the limit of {self._max_bytes}")
        return data

    def _value(self, cell: Cell) -> T:
        return self._serializer.deserialize(cell.value or b"")

    def _entry(self, cell: Cell) -> TreeEntry[T]:
        expires_at = None if cell.expires_at is None else clock.from_us(cell.expires_at)
        return TreeEntry(cell.key, self._value(cell), cell.version, expires_at)

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        with self._session() as session, writing(session, self._tree, self._site_id) as writer:
            yield writer

    @contextmanager
    def _session(self) -> Iterator[Session]:
        if isinstance(self._store, Session):
            yield self._store
            return
        with self._store.session() as session:
            yield session
