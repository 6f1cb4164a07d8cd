"""Any sequence of changes, merges, crashes and hours that pass, against a dict; and at the end the journal tells it all."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lattice_tasks.clock import Version
from lattice_tasks.keys import LAST, prefix_end
from lattice_tasks.maintenance import compact_trees
from lattice_tasks.settings import Settings
from lattice_tasks.store import journal
from lattice_tasks.store import tree as cells
from lattice_tasks.store.engine import Engine
from lattice_tasks.store.tree import later
from lattice_tasks.trees.tree import ABSENT, LatticeTree
from lattice_tasks.trees.writer import writing
from tests.forest import SITE, cell, engine_at, journaled, stored, tree_of
from tests.stores import Crash, watched

pytestmark = pytest.mark.recycled

KEYS = st.sampled_from(["a", "a/1", "a/2", "B", "b", "ä", "\uffff", "\U00010000"])
BOUNDS = st.none() | st.sampled_from(["a", "a/", "a0", "b", "ä", "\uffff", "\U00010000"])
VALUES = st.integers(0, 9)
CRASHES = st.none() | st.integers(1, 7)
HOUR = timedelta(hours=1)


class TreeMachine(RuleBasedStateMachine):
    """The model: key → (value, version, hour of expiry or None). Hours pass by stepping the clock, also backwards."""

    engine: Engine
    runs = iter(range(10**9))

    @initialize()
    def begin(self) -> None:
        self.name = f"machine{next(self.runs)}"
        self.hour = 0
        self.model: dict[str, tuple[int, Version, int | None]] = {}
        self.highest = ABSENT
        self.cursor: Any = None
        self.tree.replicate()

    @property
    def tree(self) -> LatticeTree[int]:
        return tree_of(self.engine, self.name)

    def teardown(self) -> None:
        self.engine._settings = Settings(store_url=self.engine.url)
        self.engine.close()
        self.engine._open_pool()

    def live(self) -> dict[str, int]:
        return {
            key: value
            for key, (value, _, until) in sorted(self.model.items(), key=lambda item: item[0].encode())
            if until is None or until > self.hour
        }

    def attempt(self, crash_before: int | None, change: Any) -> Any:
        """What the change answers; None when its process went away in the middle, and then nothing happened."""
        with watched(self.engine, crash_before) as session:
            try:
                return change(tree_of(session, self.name))
            except Crash:
                return None

    def newer(self, version: Version) -> Version:
        assert version > self.highest
        self.highest = version
        return version

    @rule(key=KEYS, value=VALUES, hours=st.none() | st.integers(1, 4), crash_before=CRASHES)
    def set(self, key: str, value: int, hours: int | None, crash_before: int | None) -> None:
        ttl = None if hours is None else hours * HOUR
        version = self.attempt(crash_before, lambda tree: tree.set(key, value, ttl=ttl))
        if version is not None:
            self.model[key] = (value, self.newer(version), None if hours is None else self.hour + hours)

    @rule(key=KEYS, value=VALUES, stale=st.booleans())
    def set_if_version(self, key: str, value: int, stale: bool) -> None:
        _, known = self.tree.get_with_version(key)
        assert known == (self.model[key][1] if key in self.live() else ABSENT)
        version = self.tree.set_if_version(key, value, Version(known.stamp, "nobody") if stale else known)
        assert (version is None) == stale
        if version is not None:
            self.model[key] = (value, self.newer(version), None)

    @rule(key=KEYS, value=VALUES)
    def set_if_absent(self, key: str, value: int) -> None:
        version = self.tree.set_if_absent(key, value)
        assert (version is None) == (key in self.live())
        if version is not None:
            self.model[key] = (value, self.newer(version), None)

    @rule(key=KEYS, crash_before=CRASHES)
    def delete(self, key: str, crash_before: int | None) -> None:
        done = self.attempt(crash_before, lambda tree: tree.delete(key))
        if done is not None:
            assert done == (key in self.live())
        if done:
            del self.model[key]

    @rule(start=BOUNDS, end=BOUNDS, crash_before=CRASHES)
    def delete_range(self, start: str | None, end: str | None, crash_before: int | None) -> None:
        low, high = start or "", end or "\U0010ffff"
        if low >= high:
            return
        gone = self.attempt(crash_before, lambda tree: tree.delete_range(low, high))
        if gone is not None:
            doomed = [key for key in self.live() if low <= key < high]
            assert gone == len(doomed)
            for key in doomed:
                del self.model[key]

    @rule(changes=st.dictionaries(KEYS, st.none() | VALUES, max_size=4), crash_before=CRASHES)
    def batch(self, changes: dict[str, int | None], crash_before: int | None) -> None:
        def make(tree: LatticeTree[int]) -> bool:
            with tree.batch() as batch:
                for key, value in changes.items():
                    batch.delete(key) if value is None else batch.set(key, value)
            return batch.was_made

        if self.attempt(crash_before, make) is None:
            return
        versions = stored(self.engine, f"t/1/{self.name}")
        live = self.live()
        for key, value in changes.items():
            if value is not None:
                self.model[key] = (value, versions[key].version, None)
            elif key in live:
                del self.model[key]
        self.highest = max([self.highest, *(one.version for one in versions.values())])

    @rule(key=KEYS, value=st.none() | VALUES, ahead=st.integers(-3, 3))
    def merge(self, key: str, value: int | None, ahead: int) -> None:
        tree_name = f"t/1/{self.name}"
        wall = max(1, self.highest.stamp.wall + ahead)
        foreign = cell(key, None if value is None else b"%d" % value, wall)
        ours = stored(self.engine, tree_name).get(key)
        with self.engine.session() as session, writing(session, tree_name, SITE) as writer:
            won = writer.merge([foreign])
        assert won == ([key] if ours is None or later(ours, foreign) is foreign else [])
        self.highest = max(self.highest, foreign.version)
        if won and value is not None:
            self.model[key] = (value, foreign.version, None)
        elif won:
            self.model.pop(key, None)

    @rule(hours=st.integers(-2, 3))
    def pass_time(self, hours: int) -> None:
        """The clock moves; what has expired stays so in the model only while the clock says so."""
        self.hour += hours
        shifted = Settings(store_url=self.engine.url, clock_offset_ms=self.hour * 3_600_000)
        self.engine.close()
        self.engine._settings = shifted
        self.engine._open_pool()

    @rule()
    def compact(self) -> None:
        with self.engine.session() as session:
            compact_trees(session, 0)
        self.model = {key: row for key, row in self.model.items() if row[2] is None or row[2] > self.hour}

    @rule(page_size=st.integers(1, 3))
    def read_on(self, page_size: int) -> None:
        if self.cursor is None:
            self.cursor, self.seen = self.tree.open_cursor("keys", page_size=page_size), []
        before = self.live()
        page = self.tree.cursor(self.cursor.id).next_page()
        assert page == [key for key in before if not self.seen or key > self.seen[-1]][: len(page)]
        self.seen += page
        assert self.seen == sorted(set(self.seen))
        if not page:
            self.cursor = None

    @invariant()
    def shows_what_the_model_holds(self) -> None:
        live, tree = self.live(), self.tree
        found = [(entry.key, entry.value, entry.version) for entry in tree.scan()]
        assert found == [(key, value, self.model[key][1]) for key, value in live.items()]
        assert [entry.key for entry in tree.scan(reverse=True)] == list(live)[::-1]
        assert [entry.key for entry in tree.scan("a")] == [key for key in live if key.startswith("a")]
        assert tree.count() == len(live)
        assert (tree.get("b"), tree.exists("b")) == (live.get("b"), "b" in live)

    @invariant()
    def the_journal_tells_it_all(self) -> None:
        """Whoever applies the records one by one has the same values. (What expires may be gone there a moment earlier.)"""
        told: dict[str, tuple[bytes | None, Version]] = {}
        for record in journaled(self.engine, f"t/1/{self.name}"):
            if record.op == journal.DELETE_RANGE:
                for key in [key for key in told if (record.key or "") <= key < (record.end_key or "")]:
                    told[key] = (None, record.version)
            elif record.op != journal.COMMIT:
                told[record.key or ""] = (record.value, record.version)
        values = {key: b"%d" % value for key, (value, _, until) in self.model.items() if until is None}
        assert {key: told[key][0] for key in values} == values


def test_any_sequence_of_changes_agrees_with_the_model(store_url: str) -> None:
    """spec 2.1 tick, 2.2 LWW, 2.10 order, TTL, range delete, CAS, atomic writes, cursors"""
    with engine_at(store_url) as engine:
        machine = type("Machine", (TreeMachine,), {"engine": engine, "runs": iter(range(10**9))})

        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with engine_at(store_url) as engine:
        yield engine


def test_every_pair_of_bounds_is_cut_as_python_cuts_it(engine: Engine) -> None:
    """spec 2.10 order: prefix, start and end together are one half-open range."""
    tree = tree_of(engine)
    names = ["a", "a/1", "a/2", "a0", "B", "b", "ä", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
    tree.set_many(dict.fromkeys(names, 0))
    bounds = [None, *names, "a/", "\U0010ffff\U0010ffff"]
    in_order = sorted(names, key=str.encode)

    for prefix in ("", "a", "a/", "\U0010ffff"):
        for start in bounds:
            for end in bounds:
                expected = [
                    key
                    for key in in_order
                    if key.startswith(prefix) and key >= (start or "") and (end is None or key < end)
                ]
                low, high = max(prefix, start or ""), min(prefix_end(prefix) or LAST, LAST if end is None else end)
                with engine.session() as session:
                    found, has_more = cells.page(session, "t/1/orders", low, high, 100, keys_only=True)
                assert ([one.key for one in found], has_more) == (expected, False)
                assert [entry.key for entry in tree.scan(prefix, start=start, end=end)] == expected
