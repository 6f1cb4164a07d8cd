"""`lattice-tasks trees`: which ordered trees there are, and what is in them."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

import click

from lattice_tasks.admin.desk import Desk, pass_desk
from lattice_tasks.admin.options import Noun
from lattice_tasks.errors import KeyNotFound, TreeNotFound
from lattice_tasks.keys import stamp_key
from lattice_tasks.trees.tree import LatticeTree, TreeEntry

__all__ = ["trees"]

_TREE_FIELDS = ("name", "mode", "changed_at", "created_at")
_FIELDS = ("key", "value", "encoding", "version", "origin", "expires_at")
_COLUMNS = ("key", "expires_at", "value")


class _AsStored:
    """Bytes as they are: who looks need not know how an app writes its values."""

    def serialize(self, value: Any) -> bytes:
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        return data


@click.group(cls=Noun)
def trees() -> None:
    """Ordered trees: list, scan, get."""


@trees.command("list")
@pass_desk
def list_(desk: Desk) -> None:
    """Every tree, how it is replicated, and when it changed last."""
    found = desk.lattice.trees()
    desk.read_clock()
    desk.screen.many([asdict(tree) for tree in found], _TREE_FIELDS, _TREE_FIELDS, "trees")


@trees.command()
@click.argument("tree")
@click.option("--prefix", default="", metavar="TEXT", help="Only keys that begin so.")
@click.option("--start", metavar="KEY", help="From this key on.")
@click.option("--end", metavar="KEY", help="Up to this key, which is left out.")
@click.option("--reverse", is_flag=True, help="From the last key backwards.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most so many.")
@pass_desk
def scan(desk: Desk, tree: str, prefix: str, start: str | None, end: str | None, reverse: bool, limit: int) -> None:
    """Entries of TREE in the order of their keys."""
    entries = _opened(desk, tree).scan(prefix, start=start, end=end, limit=limit + 1, reverse=reverse)
    found = list(entries)
    desk.read_clock()
    desk.screen.many([_record(entry) for entry in islice(found, limit)], _FIELDS, _COLUMNS, "entries")
    if len(found) > limit:
        desk.screen.note(f"the {'last' if reverse else 'first'} {limit}; --limit N shows more")


@trees.command()
@click.argument("tree")
@click.argument("key")
@pass_desk
def get(desk: Desk, tree: str, key: str) -> None:
    """The value of KEY in TREE."""
    entry = _opened(desk, tree).entry(key)
    if entry is None:
        raise KeyNotFound(f"no key {key!r:.80} in tree {tree!r}; see `lattice-tasks trees scan`")
    desk.read_clock()
    desk.screen.one(_record(entry))


def _opened(desk: Desk, name: str) -> LatticeTree[bytes]:
    tree = desk.lattice.tree(name, serializer=_AsStored())
    if not tree.is_registered():
        raise TreeNotFound(f"no tree {name!r}; see `lattice-tasks trees list`")
    return tree


def _record(entry: TreeEntry[bytes]) -> Mapping[str, Any]:
    encoding, value = "json", None
    try:
        value = json.loads(entry.value)
    except (ValueError, RecursionError):
        encoding, value = "base64", base64.b64encode(entry.value).decode()
    stamp = entry.version.stamp
    version = stamp_key(stamp.wall, stamp.counter)
    return dict(
        zip(_FIELDS, (entry.key, value, encoding, version, entry.version.origin, entry.expires_at), strict=True)
    )
