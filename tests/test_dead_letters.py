"""Parking on a bounded shelf, and what becomes of a letter whose replay has ended; on both engines."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import msgspec
import pytest

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import REASONS, DeadLetter
from lattice_tasks.dead_letters.parking import (
    Evicted,
    ShelfSpec,
    announce,
    fail_replay,
    fail_replays,
    finish_replay,
    finish_replays,
    letter_of,
    park,
    shelf_fifo,
)
from lattice_tasks.dead_letters.replay import begin_replay, begin_replays
from lattice_tasks.errors import AlreadyHandled, InvalidInput, InvalidOperation
from lattice_tasks.settings import Settings
from lattice_tasks.store.engine import Engine, Session
from tests.letters import QUEUE, QUEUE_ID, Desk, letter, letters, life, parked
from tests.stores import Crash, fresh_engine, watched


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with engine.session() as session:
        yield session


def shown(session: Session, queue_id: int = QUEUE_ID) -> list[DeadLetter]:
    return [letter_of(row) for row in shelf_fifo(session, queue_id).entries()]


def seqs(session: Session) -> list[int]:
    return [one.seq for one in shown(session)]


def pin(session: Session, entry_ids: Sequence[int]) -> None:
    assert len(begin_replays(session, QUEUE_ID, entry_ids).letters) == len(entry_ids)


def spoil(session: Session, entry_id: int, data: bytes = b"\x80\x81") -> None:
    with shelf_fifo(session, QUEUE_ID).held() as held:
        held.replace({entry_id: data})


def test_a_parked_letter_is_kept_whole(engine: Engine, session: Session) -> None:
    """D-10, D-40, D-46, D-100: byte for byte, and when, by the store's clock."""
    sent = [letter(seq, body=bytes(range(256)) * seq, reason=reason) for seq, reason in enumerate(REASONS, 1)]
    before = clock.from_us(clock.wall_us()) - timedelta(minutes=1)

    parking = parked(engine, sent)

    assert parking.entry_ids == tuple(range(1, len(REASONS) + 1))
    kept = shown(session)
    assert all(before < one.parked_at < before + timedelta(minutes=2) for one in kept)
    assert [msgspec.structs.replace(one, entry_id=0, parked_at=sent[0].parked_at) for one in kept] == sent


def test_the_stores_clock_stamps_the_letter(store_url: str) -> None:
    with fresh_engine(store_url):
        ahead = Engine(Settings(store_url=store_url, clock_offset_ms=86_400_000))
        parked(ahead, letters([1]))
        with ahead.session() as session:
            parked_at = shown(session)[0].parked_at
        ahead.close()

    assert parked_at > clock.from_us(clock.wall_us()) + timedelta(hours=23)


def test_a_reason_outside_the_closed_set_is_refused(session: Session) -> None:
    """D-91"""
    with pytest.raises(InvalidInput, match="'tired'"):
        park(session, ShelfSpec(QUEUE_ID), [letter(1), letter(2, reason="tired")])

    assert seqs(session) == []


@pytest.mark.parametrize(("capacity", "on_full"), [(0, "evict"), (-1, "evict"), (None, "evict"), (10, "drop")])
def test_a_shelf_without_sound_rules_is_refused(capacity: int, on_full: str) -> None:
    """D-53"""
    with pytest.raises(InvalidInput):
        ShelfSpec(QUEUE_ID, capacity, on_full)


def test_a_full_shelf_loses_its_oldest_and_says_which(engine: Engine, session: Session) -> None:
    """D-45, D-50, C04: alive and evicted add up to what was parked."""
    parked(engine, letters([1, 2]), capacity=3)

    parking = parked(engine, letters([3, 4, 5]), capacity=3)

    assert seqs(session) == [3, 4, 5]
    assert parking.entry_ids == (3, 4, 5)
    assert parking.evicted == tuple(Evicted(seq, letter(seq).task_id, seq, "unknown") for seq in (1, 2))
    assert shelf_fifo(session, QUEUE_ID).count() == 3


def test_a_shelf_of_a_thousand_keeps_the_last_thousand(engine: Engine, session: Session) -> None:
    """D-45: the default bound, in batches and one by one."""
    gone = [one for start in (1, 401, 801) for one in parked(engine, letters(range(start, start + 400))).evicted]
    gone += parked(engine, letters([1201])).evicted

    assert [one.seq for one in gone] == list(range(1, 202))
    assert seqs(session) == list(range(202, 1202))


def test_a_batch_larger_than_the_shelf_is_told_in_full(engine: Engine, session: Session) -> None:
    """C04"""
    parking = parked(engine, letters(range(1, 8)), capacity=2)

    assert parking.entry_ids == (1, 2, 3, 4, 5, 6, 7)
    assert [(one.entry_id, one.seq) for one in parking.evicted] == [(seq, seq) for seq in range(1, 6)]
    assert seqs(session) == [6, 7]


def test_a_change_of_the_bound_counts_with_the_next_letter(engine: Engine, session: Session) -> None:
    """D-52, C44"""
    parked(engine, letters(range(1, 6)), capacity=5)
    lowered = parked(engine, letters([6]), capacity=2)
    parked(engine, letters([7]), capacity=3)

    assert [one.seq for one in lowered.evicted] == [1, 2, 3, 4]
    assert seqs(session) == [5, 6, 7]


def test_a_refusing_shelf_keeps_what_it_has(engine: Engine, session: Session) -> None:
    parking = parked(engine, letters([1, 2, 3]), capacity=2, on_full="refuse")
    again = parked(engine, letters([3]), capacity=2, on_full="refuse")
    with_room = parked(engine, letters([3]), capacity=3, on_full="refuse")

    assert (parking.entry_ids, again.entry_ids, with_room.entry_ids) == ((1, 2, None), (None,), (3,))
    assert parking.evicted == again.evicted == ()
    assert seqs(session) == [1, 2, 3]


def test_one_queues_shelf_is_not_anothers(engine: Engine, session: Session) -> None:
    """D-42, D-52"""
    parked(engine, letters([1]), capacity=1)

    parking = park(session, ShelfSpec(QUEUE_ID + 1, capacity=1), letters([2]))

    assert (parking.entry_ids, parking.evicted) == ((1,), ())
    assert (seqs(session), [one.seq for one in shown(session, QUEUE_ID + 1)]) == ([1], [2])


def test_ids_are_not_issued_again_when_the_shelf_was_emptied(engine: Engine, session: Session) -> None:
    """D-101, A-01, Q-34, Q-35: an operator's old id never hits a new letter."""
    parked(engine, letters([1, 2, 3]))
    finish_replays(session, QUEUE_ID, [3])
    assert parked(engine, letters([4])).entry_ids == (4,)

    finish_replays(session, QUEUE_ID, [1, 2, 4])

    assert parked(engine, letters([5])).entry_ids == (5,)


def test_parking_follows_the_callers_transaction(engine: Engine, session: Session) -> None:
    """D-44, A-04"""
    parked(engine, letters([1]), capacity=1)

    def park_and_fail() -> None:
        with session.transaction():
            assert park(session, ShelfSpec(QUEUE_ID, 1), letters([2])).entry_ids == (2,)
            raise LookupError

    with pytest.raises(LookupError):
        park_and_fail()

    assert seqs(session) == [1]


@pytest.mark.parametrize("crash_before", range(1, 12))
def test_a_crash_while_parking_loses_neither_old_nor_new(engine: Engine, crash_before: int) -> None:
    """A-04: evicted and parked together, or not at all."""
    parked(engine, letters([1, 2]), capacity=2)

    with watched(engine, crash_before) as doomed:
        try:
            park(doomed, ShelfSpec(QUEUE_ID, 2), letters([3]))
            alive = [2, 3]
        except Crash:
            alive = [1, 2]

    with engine.session() as session:
        assert seqs(session) == alive
    assert (alive == [1, 2]) == (crash_before <= 10)


def test_the_statements_do_not_grow_with_the_letters(engine: Engine) -> None:
    """Five hundred at once cost what one costs: parked, evicted, failed again, and done with."""
    with watched(engine) as session:
        parked_costs, ended_costs = [], []
        park(session, ShelfSpec(QUEUE_ID), letters(range(500)))
        for number in (1, 500):
            before = session.statements
            ids = park(session, ShelfSpec(QUEUE_ID, 500), letters(range(1, number + 1))).entry_ids
            parked_costs.append(session.statements - before)
            for end in (
                lambda ids=ids: begin_replays(session, QUEUE_ID, ids),
                lambda ids=ids: fail_replays(session, QUEUE_ID, {entry_id: life() for entry_id in ids}),
                lambda ids=ids: finish_replays(session, QUEUE_ID, ids),
            ):
                before = session.statements
                end()
                ended_costs.append(session.statements - before)
            park(session, ShelfSpec(QUEUE_ID), letters(range(1, number + 1)))

    assert parked_costs == [10, 10]
    assert ended_costs == [3, 8, 5] * 2


def test_nothing_to_do_costs_nothing(engine: Engine) -> None:
    with watched(engine) as session:
        assert park(session, ShelfSpec(QUEUE_ID), []).entry_ids == ()
        assert finish_replays(session, QUEUE_ID, []) == fail_replays(session, QUEUE_ID, {}) == []

        assert session.statements == 0


def test_a_letter_being_replayed_is_passed_over_by_eviction(engine: Engine, session: Session) -> None:
    parked(engine, letters([1, 2, 3]), capacity=3)
    pin(session, [1])

    parking = parked(engine, letters([4, 5]), capacity=3)

    assert [one.seq for one in parking.evicted] == [2, 3]
    assert [(one.seq, one.is_replaying) for one in shown(session)] == [(1, True), (4, False), (5, False)]


def test_a_shelf_that_is_all_replays_holds_the_newcomer(engine: Engine, session: Session) -> None:
    parked(engine, letters([1, 2]), capacity=2)
    pin(session, [1, 2])

    held = parked(engine, letters([3]), capacity=2)
    fail_replay(session, QUEUE_ID, 2, life())
    with_room = parked(engine, letters([3]), capacity=2)

    assert (held.entry_ids, held.evicted) == ((None,), ())
    assert (with_room.entry_ids, [one.seq for one in with_room.evicted]) == ((3,), [2])
    assert seqs(session) == [1, 3]


def test_a_replay_that_succeeded_takes_its_letter_away(engine: Engine, session: Session) -> None:
    """D-66"""
    parked(engine, letters([1, 2]))
    pin(session, [1])

    done = finish_replay(session, QUEUE_ID, 1)

    assert (done.entry_id, done.seq, done.body) == (1, 1, letter(1).body)
    assert finish_replay(session, QUEUE_ID, 1) is None
    assert seqs(session) == [2]


def test_a_replay_that_failed_leaves_its_letter_with_one_more_life(engine: Engine, session: Session) -> None:
    """D-65, D-68, C26"""
    parked(engine, letters([1, 2]))
    pin(session, [1])

    assert fail_replay(session, QUEUE_ID, 1, life("still no", reason="time_limit"))

    first, second = shown(session)
    assert (first.entry_id, first.reason, first.error, first.is_replaying) == (1, "time_limit", "still no", False)
    assert [(one.error, one.ended) for one in first.lives] == [("ValueError: no 1", "parked")]
    assert first.parked_at > first.lives[0].parked_at
    assert second == msgspec.structs.replace(letter(2), entry_id=2, parked_at=second.parked_at)


def test_one_replay_fails_once(engine: Engine, session: Session) -> None:
    """A letter that nobody replays gets no more lives: not by a second report, not after its end."""
    parked(engine, letters([1]))
    pin(session, [1])
    fail_replay(session, QUEUE_ID, 1, life("one"))

    assert not fail_replay(session, QUEUE_ID, 1, life("two"))
    assert not fail_replay(session, QUEUE_ID, 99, life("three"))

    assert [one.error for one in shown(session)] == ["one"]


def test_twenty_rounds_between_shelf_and_work_lose_nothing(engine: Engine, session: Session) -> None:
    """C25"""
    parked(engine, letters([1]))
    for number in range(20):
        pin(session, [1])
        fail_replay(session, QUEUE_ID, 1, life(f"round {number}"))

    (one,) = shown(session)
    assert [past.error for past in (*one.lives, one)] == ["ValueError: no 1", *(f"round {n}" for n in range(20))]
    assert (one.body, one.key, one.forgotten_lives) == (letter(1).body, "k1", 0)


def test_a_letter_is_replayed_once_at_a_time(engine: Engine, session: Session) -> None:
    """D-64"""
    parked(engine, letters([1]))

    assert begin_replay(session, QUEUE_ID, 1).is_replaying
    with pytest.raises(AlreadyHandled, match="dead letter 1"):
        begin_replay(session, QUEUE_ID, 1)
    assert begin_replay(session, QUEUE_ID, 2) is None
    fail_replay(session, QUEUE_ID, 1, life())

    assert begin_replay(session, QUEUE_ID, 1).error == "again"


def test_a_begun_replay_that_is_rolled_back_never_was(engine: Engine, session: Session) -> None:
    parked(engine, letters([1]))

    def begin_and_fail() -> None:
        with session.transaction():
            begin_replay(session, QUEUE_ID, 1)
            raise LookupError

    with pytest.raises(LookupError):
        begin_and_fail()

    assert not shown(session)[0].is_replaying


def test_an_unreadable_letter_harms_no_other(engine: Engine, session: Session) -> None:
    """C13: it is shown, evicted and unpinned like others; only nobody can replay it."""
    parked(engine, letters([1, 2, 3]), capacity=3)
    pin(session, [2])
    spoil(session, 1)
    spoil(session, 2)

    with pytest.raises(InvalidOperation, match="cannot be read"):
        begin_replay(session, QUEUE_ID, 1)
    assert fail_replay(session, QUEUE_ID, 2, life())
    parking = parked(engine, letters([4]), capacity=3)

    assert parking.evicted == (Evicted(1, "", 0, "schema"),)
    assert [(one.entry_id, one.is_readable, one.is_replaying) for one in shown(session)] == [
        (2, False, False),
        (3, True, False),
        (4, True, False),
    ]
    assert shown(session)[0].body == b"\x80\x81"


def test_events_tell_what_went_before_what_came(engine: Engine) -> None:
    """D-51, D-90, D-97: and after the commit, which is the caller's."""
    desk = Desk(engine)
    parked(engine, letters([1, 2]), capacity=2)
    sent = letters([3, 4])
    parking = parked(engine, sent, capacity=2)
    assert desk.events == []

    announce(desk.telemetry, QUEUE, sent, parking)

    told = [(name, fields["entry_id"], fields["task_id"]) for name, fields in desk.events]
    assert told == [
        ("dead_letter.evicted", 1, letter(1).task_id),
        ("dead_letter.evicted", 2, letter(2).task_id),
        ("dead_letter.enqueued", 3, letter(3).task_id),
        ("dead_letter.enqueued", 4, letter(4).task_id),
    ]
    assert all(fields["shelf"] == QUEUE and fields["reason"] == "unknown" for _, fields in desk.events)


def test_a_letter_without_a_place_is_told_as_held(engine: Engine) -> None:
    desk = Desk(engine)
    sent = letters([1, 2])

    announce(desk.telemetry, QUEUE, sent, parked(engine, sent, capacity=1, on_full="refuse"))

    assert [name for name, _ in desk.events] == ["dead_letter.enqueued", "task.held"]
    assert desk.events[1][1] == {"queue": QUEUE, "task_id": letter(2).task_id}
