"""Scans beside writers and faults: in order, nothing twice, nothing torn, and what was there all the time is there."""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks.errors import StoreError, StoreUnavailable
from lattice_tasks.keys import following
from lattice_tasks.store.engine import POSTGRES, Engine
from lattice_tasks.store.session import Session
from lattice_tasks.trees import tree as trees
from lattice_tasks.trees.tree import LatticeTree, TreeEntry
from tests.forest import end_backends, engine_at, journaled, stored, tree_of

WRITERS = 4
#: Keys that are there all the time, those that come and go, and pairs that are only ever written together.
FIXED = [f"fixed/{n:03}" for n in range(150)]
COMING = [f"coming/{n:03}" for n in range(150)]
PAIRS = [(f"pair/{n:02}/a", f"pair/{n:02}/b") for n in range(10)]
UNIVERSE = {*FIXED, *COMING, *(key for pair in PAIRS for key in pair)}
#: Whether the running test lets this process lose its connections, and how often: one of so many statements.
FAULT_ODDS = 150


@dataclass
class Field:
    """What the threads share: when to end, what they met, and the first thing that must not be."""

    ends_at: float
    met: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends_at and not self.wrong

    def must(self, truth: bool, what: Any) -> None:
        if not truth:
            self.wrong.append(str(what))


def value_of(key: str, writer: int, turn: int) -> dict[str, Any]:
    """A value that tells whose it is; its length differs from one write to the next."""
    return {"key": key, "writer": writer, "turn": turn, "pad": "x" * (turn % 50)}


def describes_itself(entry: TreeEntry[Any]) -> bool:
    value = entry.value
    return entry.key in UNIVERSE and value == value_of(entry.key, value["writer"], value["turn"])


def write(engine: Engine, field: Field, writer: int) -> None:
    tree, chance, turn = tree_of(engine), random.Random(writer), 0
    while field.goes_on:
        turn += 1
        try:
            one_change(tree, chance, writer, turn)
            field.met["changes"] += 1
        except StoreError as error:
            field.must(isinstance(error, StoreUnavailable) or "closed database" in str(error), repr(error))
            field.met["changes lost"] += 1


def one_change(tree: LatticeTree[Any], chance: random.Random, writer: int, turn: int) -> None:
    key = chance.choice(COMING)
    match chance.randrange(6):
        case 0:
            tree.delete(key)
        case 1:
            tree.set(key, value_of(key, writer, turn), ttl=timedelta(milliseconds=chance.randrange(1, 200)))
        case 2:
            tree.delete_range(key, key + "0")
        case 3:
            with tree.batch() as batch:
                for one in chance.choice(PAIRS):
                    batch.set(one, value_of(one, writer, turn))
        case 4:
            tree.set(key, value_of(key, writer, turn))
        case _:
            key = chance.choice(FIXED)
            tree.set_many({key: value_of(key, writer, turn)})


def scan(engine: Engine, field: Field, reverse: bool) -> None:
    """Whole scans, each gone on with after a fault behind the last key that it yielded."""
    tree = tree_of(engine)
    while field.goes_on:
        found: list[TreeEntry[Any]] = []
        while True:
            try:
                for entry in rest(tree, found, reverse):
                    found.append(entry)
                break
            except StoreError:
                field.met["scans cut"] += 1
        keys = [entry.key for entry in found]
        field.must(keys == sorted(set(keys), reverse=reverse), f"out of order or twice: {keys}")
        field.must(all(map(describes_itself, found)), [entry for entry in found if not describes_itself(entry)][:3])
        fixed = [key for key in keys if key.startswith("fixed/")]
        field.must(sorted(fixed) == FIXED, f"missing: {set(FIXED) - set(fixed)}")
        field.met["scans"] += 1
        field.met["entries"] += len(keys)


def rest(tree: LatticeTree[Any], found: list[TreeEntry[Any]], reverse: bool) -> Iterator[TreeEntry[Any]]:
    if not found:
        return tree.scan(reverse=reverse)
    if reverse:
        return tree.scan(end=found[-1].key, reverse=True)
    return tree.scan(start=following(found[-1].key))


def look_at_pairs(engine: Engine, field: Field) -> None:
    """A batch is seen whole or not at all by whoever reads one page."""
    tree = tree_of(engine)
    while field.goes_on:
        try:
            for pair in PAIRS:
                a, b = (entry.value for entry in tree.scan(pair[0][:-1]))
                field.must((a["writer"], a["turn"]) == (b["writer"], b["turn"]), f"torn: {a} {b}")
                field.met["pairs"] += 1
        except StoreError:
            field.met["pairs cut"] += 1


@pytest.fixture
def connections_close(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While set, sessions of this process lose their connection now and then, before or after a statement."""
    on, chance = threading.Event(), random.Random(0)
    for name in ("fetch", "execute"):
        original = getattr(Session, name)

        def run(session: Session, statement: Any, params: Any = (), original: Any = original) -> Any:
            fate = chance.randrange(FAULT_ODDS) if on.is_set() else -1
            if fate == 0:
                session.close()
            answer = original(session, statement, params)
            if fate == 1 and session.in_transaction:
                session.close()
            return answer

        monkeypatch.setattr(Session, name, run)
    yield on
    on.clear()


def scan_beside_writers(store_url: str, on: threading.Event, seconds: float) -> Counter[str]:
    with engine_at(store_url) as engine:
        tree = tree_of(engine)
        tree.replicate()
        tree.set_many({key: value_of(key, 9, 0) for key in sorted(UNIVERSE)})
        field = Field(time.monotonic() + seconds)
        threads = [threading.Thread(target=write, args=(engine, field, number)) for number in range(WRITERS)]
        threads += [threading.Thread(target=scan, args=(engine, field, reverse)) for reverse in (False, True)]
        threads.append(threading.Thread(target=look_at_pairs, args=(engine, field)))
        on.set()
        for thread in threads:
            thread.start()
        with engine_at(store_url) as apart:
            while field.goes_on:
                time.sleep(0.25)
                if engine.dialect == POSTGRES:
                    on.clear()
                    field.met["backends ended"] += end_backends(apart, 2)
                    on.set()
        for thread in threads:
            thread.join(30)
        on.clear()
        assert not any(thread.is_alive() for thread in threads)
        assert field.wrong == []
    with engine_at(store_url) as engine:
        told = {record.key: record.value for record in journaled(engine) if record.op in ("set", "delete")}
        cells = stored(engine)
        assert {key: cells[key].value for key in FIXED} == {key: told[key] for key in FIXED}
    return field.met


def bit(met: Counter[str], dialect: str) -> None:
    """The run proves something only when writers, scans and faults really met."""
    for what in ("changes", "changes lost", "scans", "scans cut", "pairs"):
        assert met[what] >= 3, (what, met)
    assert dialect != POSTGRES or met["backends ended"] >= 3, met


@pytest.mark.slow
def test_scans_stay_in_order_and_exact_under_writers_and_faults(
    store_url: str, connections_close: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec 2.10 order, TTL, range delete, atomic writes: 4 writers, 10 s, connections closed and backends ended."""
    monkeypatch.setattr(trees, "_PAGE_ROWS", 40)
    met = scan_beside_writers(store_url, connections_close, 10)

    bit(met, POSTGRES if "postgres" in store_url else "sqlite")


@pytest.mark.soak
def test_scans_stay_in_order_for_a_minute(
    store_url: str, connections_close: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec 2.10 order, TTL, range delete, atomic writes: as above, 60 s."""
    monkeypatch.setattr(trees, "_PAGE_ROWS", 40)
    met = scan_beside_writers(store_url, connections_close, 60)

    bit(met, POSTGRES if "postgres" in store_url else "sqlite")
    print(dict(met), file=sys.stderr)
