"""The shelf of a tree: bounded, ids never issued again, a replay that applies and removes together; on both engines."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from lattice_tasks import clock
from lattice_tasks.dead_letters.record import RECORD_REASONS, RecordLetter
from lattice_tasks.dead_letters.tracking import Attempt, Failure, Parked, Tracker
from lattice_tasks.dead_letters.tree_shelf import ParkedRecords, TreeShelf
from lattice_tasks.errors import InvalidInput, InvalidOperation, ReservedName
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Engine, Session, Statement
from lattice_tasks.telemetry import Telemetry, make_log
from tests.stores import Crash, fresh_engine, watched

pytestmark = pytest.mark.recycled

TREE = "orders"
_TABLE = Statement("create table if not exists applied (record text)")
_APPLY = Statement("insert into applied (record) values (%s)")
_APPLIED = Statement("select record from applied order by record")
_TREES = Statement("select name from lattice_tree order by name")
_SPOIL = Statement("update lattice_tree_row set value = %s")


@dataclass(frozen=True)
class Result:
    applied: bool = True
    is_deferred: bool = False


def letter(number: int, **changes: Any) -> RecordLetter:
    values = {"reason": "unknown", "error": f"no {number}", "attempts": 5, "record": b"\0%d" % number}
    return RecordLetter(**values | {"facts": {"key": f"k{number}", "wall": 2**62, "end_key": None}} | changes)


class Bench:
    """A shelf, an apply that does as it is told and writes what it applied, and the events."""

    def __init__(self, engine: Engine, tree: str = TREE, **options: Any) -> None:
        self.engine = engine
        self.events: list[tuple[Any, ...]] = []
        self.calls = 0
        self.answer: Callable[[Session, RecordLetter], Result] = lambda _session, _letter: Result()
        telemetry = Telemetry(make_log("critical"))
        telemetry.subscribe(lambda name, fields: self.events.append((name.split(".")[1], *list(fields.values())[1:])))
        self.shelf = TreeShelf(engine, tree, telemetry=telemetry, apply=self._apply, **options)
        with engine.session() as session:
            session.execute(_TABLE)

    def park(self, *numbers: int, **changes: Any) -> ParkedRecords:
        with self.engine.session() as session, session.transaction():
            parked = self.shelf.park(session, [letter(number, **changes) for number in numbers])
        self.shelf.announce(parked)
        return parked

    @property
    def ids(self) -> list[int]:
        return [one.entry_id for one in self.shelf.list()]

    @property
    def applied(self) -> list[str]:
        with self.engine.session() as session:
            return [row[0] for row in session.fetch(_APPLIED)]

    def balance(self) -> int:
        """Enqueued less removed, as a reader of the events adds them up."""
        return sum(1 if name == "enqueued" else -1 for name, *_ in self.events)

    def _apply(self, session: Session, one: RecordLetter) -> Result:
        self.calls += 1
        session.execute(_APPLY, (one.facts["key"],))
        return self.answer(session, one)


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


@pytest.fixture
def bench(engine: Engine) -> Bench:
    return Bench(engine)


def test_a_record_is_kept_whole(bench: Bench, store_url: str) -> None:
    """D-10, D-40, D-44, D-46, D-100: byte for byte, with its facts, across a restart."""
    before = clock.from_us(clock.wall_us()) - timedelta(minutes=1)
    sent = [letter(number, reason=reason, record=bytes(range(256))) for number, reason in enumerate(RECORD_REASONS, 1)]
    with bench.engine.session() as session, session.transaction():
        bench.shelf.park(session, sent)
    other = Engine(Settings(store_url=store_url))

    kept = Bench(other).shelf.list()

    other.close()
    assert all(before < one.parked_at < before + timedelta(minutes=2) for one in kept)
    assert [one.entry_id for one in kept] == list(range(1, len(sent) + 1))
    assert [msgspec.structs.replace(one, entry_id=0, parked_at=sent[0].parked_at) for one in kept] == sent
    with bench.engine.session() as session:
        assert session.fetch(_TREES) == [("_lattice_replog_dlq_0/orders",)]


def test_looking_changes_nothing(bench: Bench) -> None:
    """D-60, D-61, D-63, D-64: an empty shelf, an unknown id, and no event of either."""
    assert (bench.shelf.list(), bench.shelf.count(), bench.shelf.try_get(1)) == ([], 0, None)
    assert (bench.shelf.discard(1), bench.shelf.replay(1), bench.calls) == (False, None, 0)
    bench.park(1, 2, 3)
    told = list(bench.events)

    for entry_id in (0, -1, 4, 2**63):
        assert bench.shelf.try_get(entry_id) is None
        assert bench.shelf.discard(entry_id) is False
        assert bench.shelf.replay(entry_id) is None

    assert [one.entry_id for one in bench.shelf.list(limit=2)] == [1, 2]
    found = bench.shelf.try_get(2)
    assert found is not None
    assert (found.record, found.facts["key"], bench.shelf.count()) == (b"\x002", "k2", 3)
    assert (bench.events, bench.calls) == (told, 0)


def test_the_oldest_goes_before_the_newest_comes(engine: Engine) -> None:
    """D-45, D-50, D-51, D-97, D-98"""
    bench = Bench(engine, capacity=2)
    bench.park(1, 2)
    bench.events.clear()

    parked = bench.park(3, 4, 5)

    assert (parked.entry_ids, bench.ids) == ((3, 4, 5), [4, 5])
    assert [one.entry_id for one in parked.evicted] == [1, 2, 3]
    evictions = [("evicted", number, "unknown") for number in (1, 2, 3)]
    assert bench.events == [*evictions, *(("enqueued", number, "unknown") for number in (3, 4, 5))]


def test_a_shelf_may_refuse(engine: Engine) -> None:
    """Spec 3.3: then the caller is told, and nothing is lost."""
    bench = Bench(engine, capacity=2, on_full="refuse")

    parked = bench.park(1, 2, 3)

    assert (parked.entry_ids, parked.evicted, bench.ids, bench.balance()) == ((1, 2, None), (), [1, 2], 2)


def test_one_trees_shelf_is_not_anothers(engine: Engine) -> None:
    """D-42, D-52: nor that of the same tree in another namespace."""
    small, other = Bench(engine, capacity=1), Bench(engine, "users")
    elsewhere = Bench(engine, namespace_id=1)
    for bench in (other, elsewhere):
        bench.park(1)
    small.park(2, 3)

    assert (small.ids, other.ids, elsewhere.ids) == ([2], [1], [1])


def test_the_bound_is_that_of_the_moment(engine: Engine) -> None:
    """D-52, C44"""
    Bench(engine, capacity=5).park(1, 2, 3, 4, 5)
    bench = Bench(engine, capacity=2)

    assert [one.entry_id for one in bench.park(6).evicted] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tree": ""}, InvalidInput),
        ({"tree": " "}, InvalidInput),
        ({"tree": None}, InvalidInput),
        ({"tree": "a\0"}, InvalidInput),
        ({"tree": "_lattice_queue_x"}, ReservedName),
        ({"capacity": 0}, InvalidInput),
        ({"capacity": None}, InvalidInput),
        ({"on_full": "drop"}, InvalidInput),
    ],
)
def test_a_shelf_without_sound_rules_is_refused(
    engine: Engine, options: dict[str, Any], error: type[Exception]
) -> None:
    """D-53, D-69"""
    with pytest.raises(error):
        Bench(engine, **options)


def test_a_reason_outside_the_closed_set_is_refused(bench: Bench) -> None:
    """D-91..D-96"""
    with pytest.raises(InvalidInput, match="'tired'"):
        bench.park(1, reason="tired")

    assert bench.ids == []


def test_a_discard_is_told_once(bench: Bench) -> None:
    """D-62, D-63"""
    bench.park(1, 2)

    assert [bench.shelf.discard(1), bench.shelf.discard(1)] == [True, False]
    assert (bench.ids, bench.events[2:], bench.balance()) == ([2], [("removed", 1, "discarded")], 1)


@pytest.mark.parametrize("applied", [True, False])
def test_what_was_not_deferred_is_gone(bench: Bench, applied: bool) -> None:
    """D-66, D-70: whether it changed anything or not."""
    bench.park(1, 2)
    bench.answer = lambda _session, _letter: Result(applied)

    assert bench.shelf.replay(1) == Result(applied)

    assert (bench.ids, bench.applied, bench.events[2:]) == ([2], ["k1"], [("removed", 1, "replayed")])


def test_what_was_deferred_stays_as_it_was(bench: Bench) -> None:
    """D-67, D-77: again and again, and nothing that the apply wrote remains."""
    bench.park(1, 2)
    bench.answer = lambda _session, _letter: Result(applied=False, is_deferred=True)
    before = bench.shelf.list()

    for _ in range(3):
        assert bench.shelf.replay(1) == Result(applied=False, is_deferred=True)

    assert (bench.shelf.list(), bench.applied, len(bench.events)) == (before, [], 2)
    bench.answer = lambda _session, _letter: Result()
    assert bench.shelf.replay(1) == Result()


def test_a_replay_that_fails_leaves_everything_as_it_was(bench: Bench) -> None:
    """D-65, D-68: no second letter, no failure counted, however often."""
    bench.park(1, 2)
    before = bench.shelf.list()
    bench.answer = _fail

    for _ in range(7):
        with pytest.raises(OSError, match="still"):
            bench.shelf.replay(1)

    assert (bench.shelf.list(), bench.applied, len(bench.events)) == (before, [], 2)
    with bench.engine.session() as session:
        assert session.fetch(Statement("select 1 from lattice_failure")) == []
    assert bench.shelf.discard(1)


def _fail(_session: Session, _letter: RecordLetter) -> Result:
    raise OSError("still")


def test_a_record_that_is_parked_again_needs_no_second_place(engine: Engine) -> None:
    """D-75, A-14: at the bound the letter itself makes room; it is neither evicted nor lost."""
    bench = Bench(engine, capacity=2)
    bench.park(1, 2)
    parked: list[ParkedRecords] = []

    def park_again(session: Session, one: RecordLetter) -> Result:
        parked.append(bench.shelf.park(session, [letter(1, reason="mode_mismatch", record=one.record)]))
        return Result(applied=False)

    bench.answer = park_again
    bench.shelf.replay(1)
    bench.shelf.announce(parked[0])

    assert [(one.entry_id, one.reason) for one in bench.shelf.list()] == [(2, "unknown"), (3, "mode_mismatch")]
    assert bench.events[2:] == [("removed", 1, "replayed"), ("enqueued", 3, "mode_mismatch")]
    assert bench.balance() == bench.shelf.count()


def test_ids_are_not_issued_again_when_the_shelf_was_emptied(bench: Bench) -> None:
    """D-101, A-01, Q-34, Q-35"""
    bench.park(1, 2, 3)
    bench.shelf.replay(3)
    assert bench.park(4).entry_ids == (4,)
    for entry_id in (1, 2, 4):
        bench.shelf.discard(entry_id)

    assert bench.park(5).entry_ids == (5,)


def test_of_twenty_operators_one_replays(bench: Bench) -> None:
    """A-15, C28: the record is applied once, the others find nothing."""
    bench.park(1, 2)
    answers = _at_once([lambda: bench.shelf.replay(1)] * 20)

    assert sorted(answers, key=str) == [None] * 19 + [Result()]
    assert (bench.calls, bench.applied, bench.ids, bench.balance()) == (1, ["k1"], [2], 1)


def test_of_a_replay_and_a_discard_one_wins(bench: Bench) -> None:
    """A-15, C28"""
    bench.park(*range(1, 11))
    for entry_id in range(1, 11):
        replayed, discarded = _at_once(
            [lambda one=entry_id: bench.shelf.replay(one), lambda one=entry_id: bench.shelf.discard(one)]
        )
        assert (replayed is None) == discarded

    removed = [event[1] for event in bench.events if event[0] == "removed"]
    assert (bench.ids, removed, bench.balance()) == ([], list(range(1, 11)), 0)


def _at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    start, answers = threading.Barrier(len(calls)), [None] * len(calls)

    def run(place: int, call: Callable[[], Any]) -> None:
        start.wait()
        answers[place] = call()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize("crash_before", range(1, 9))
def test_a_crash_during_a_replay_applies_and_removes_or_neither(
    engine: Engine, crash_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-16"""
    bench = Bench(engine)
    bench.park(1)

    with watched(engine, crash_before) as doomed, monkeypatch.context() as patch:
        patch.setattr(engine, "session", lambda: nullcontext(doomed))
        try:
            bench.shelf.replay(1)
            is_done = True
        except Crash:
            is_done = False

    assert (bench.applied, bench.ids) == ((["k1"], []) if is_done else ([], [1]))
    assert is_done == (crash_before > 7)


def test_the_lock_of_the_tree_comes_before_the_head_of_the_shelf(engine: Engine) -> None:
    """Order of locks: what applies holds the tree, then parks; a replay takes them in the same order."""
    order: list[str] = []
    bench = Bench(engine, hold=lambda _session: order.append("tree"))
    bench.park(1)
    bench.answer = lambda _session, _letter: (order.append("apply"), Result())[1]

    bench.shelf.replay(1)

    assert order == ["tree", "apply"]


def test_an_entry_that_cannot_be_read_can_be_seen_and_discarded(bench: Bench) -> None:
    """C13: it hides no other, and is not applied."""
    bench.park(1)
    for data in (b"\x80\x81", b"", b"{}", b'{"v":99,"letter":{}}', b"[" * 100_000):
        with bench.engine.session() as session:
            session.execute(_SPOIL, (data,))
        bench.park(2)
        damaged, good = bench.shelf.list()
        assert (damaged.is_readable, damaged.record, good.is_readable) == (False, data, True)
        with pytest.raises(InvalidOperation, match="cannot be read"):
            bench.shelf.replay(damaged.entry_id)
        assert bench.shelf.discard(good.entry_id)

    assert bench.calls == 0
    assert bench.shelf.discard(1)


def test_what_fails_five_times_lies_on_its_trees_shelf(bench: Bench) -> None:
    """D-01, D-10, D-90, D-98: counting and shelf together."""

    def park(session: Session, failure: Failure) -> ParkedRecords:
        parked = letter(1, reason=failure.reason, error=failure.text, attempts=failure.attempts)
        return bench.shelf.park(session, [parked])

    def malformed() -> None:
        raise KeyError("end_key")

    tracker = Tracker(bench.engine)
    for _ in range(4):
        with pytest.raises(KeyError):
            tracker.track(Attempt(TREE, ("paris", "k1"), malformed, park))
    answer = tracker.track(Attempt(TREE, ("paris", "k1"), malformed, park))
    assert isinstance(answer, Parked)
    bench.shelf.announce(answer.place)

    (found,) = bench.shelf.list()
    assert (found.reason, found.error, found.attempts, found.record) == ("schema", "'end_key'", 5, b"\x001")
    assert (bench.events, bench.balance()) == ([("enqueued", 1, "schema")], bench.shelf.count())
