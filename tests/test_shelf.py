"""The operator's seam: looking, replaying, discarding; alone, in bulk, and against each other; on both engines."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lattice_tasks import clock
from lattice_tasks.dead_letters.entry import DeadLetter
from lattice_tasks.dead_letters.parking import fail_replay, finish_replay, shelf_fifo
from lattice_tasks.dead_letters.replay import Outcome
from lattice_tasks.errors import (
    AlreadyHandled,
    DeadLetterNotFound,
    InvalidInput,
    InvalidOperation,
    NaiveInstant,
    StoreUnavailable,
    TaskNotFound,
)
from lattice_tasks.store.engine import Engine
from tests.letters import QUEUE, QUEUE_ID, Desk, letter, letters, life, parked
from tests.stores import fresh_engine


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


@pytest.fixture
def desk(engine: Engine) -> Desk:
    return Desk(engine)


def refuse(unwanted: int, error: Exception) -> Callable[[Sequence[DeadLetter]], None]:
    def work(some: Sequence[DeadLetter]) -> None:
        if unwanted in [one.seq for one in some]:
            raise error

    return work


def spoil(engine: Engine, entry_id: int) -> None:
    with engine.session() as session, shelf_fifo(session, QUEUE_ID).held() as held:
        held.replace({entry_id: b"\x80\x81"})


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each call gave or raised, all started together."""
    start = threading.Barrier(len(calls))

    def call(one: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return one()
        except AlreadyHandled as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, calls))


def test_a_shelf_that_was_never_used_is_empty(desk: Desk) -> None:
    """D-60, D-61, D-63, D-64"""
    assert (desk.shelf.list(), desk.shelf.count()) == ([], 0)
    assert (desk.shelf.discard(1), desk.shelf.replay(1)) == (False, None)
    with pytest.raises(DeadLetterNotFound, match=r"1 .*'gpu'"):
        desk.shelf.get(1)
    assert desk.events == []


def test_looking_changes_nothing(engine: Engine, desk: Desk) -> None:
    """D-46, D-60, D-61, C29: also while somebody replays."""
    parked(engine, letters(range(1, 6)))
    before = desk.shelf.list()

    looks = at_once([lambda: (desk.shelf.list(), desk.shelf.count())] * 5 + [lambda: desk.shelf.replay(3)])[:5]

    for seen, count in looks:
        assert [one.entry_id for one in seen] == [1, 2, 3, 4, 5]
        assert count == 5
        assert [one for one in seen if one.entry_id != 3] == [one for one in before if one.entry_id != 3]
    assert [one.is_replaying for one in desk.shelf.list()] == [False, False, True, False, False]


def test_a_list_can_be_narrowed(engine: Engine, desk: Desk) -> None:
    """A-21, D-119"""
    parked(engine, [letter(1, reason="schema"), letter(2, actor="eval"), letter(3), letter(4, reason="schema")])
    first, second, third, fourth = desk.shelf.list()

    assert desk.shelf.list(limit=2) == [first, second]
    assert desk.shelf.list(limit=0) == []
    assert desk.shelf.list(reason="schema") == [first, fourth]
    assert desk.shelf.list(actor="train", limit=2) == [first, third]
    assert desk.shelf.list(reason="schema", actor="eval") == desk.shelf.list(actor="nobody") == []
    assert desk.shelf.list(since=first.parked_at) == [first, second, third, fourth]
    assert desk.shelf.list(since=first.parked_at + timedelta(microseconds=1)) == []


@pytest.mark.parametrize(
    ("narrow", "error"),
    [
        ({"reason": "tired"}, InvalidInput),
        ({"limit": -1}, InvalidInput),
        ({"since": clock.from_us(0).replace(tzinfo=None)}, NaiveInstant),
    ],
)
def test_a_filter_that_means_nothing_is_refused(desk: Desk, narrow: dict[str, Any], error: type[Exception]) -> None:
    """C55: an unknown filter is an error, not everything."""
    with pytest.raises(error):
        desk.shelf.list(**narrow)


def test_a_damaged_letter_is_listed_and_can_only_be_discarded(engine: Engine, desk: Desk) -> None:
    """C13"""
    parked(engine, letters([1, 2]))
    spoil(engine, 1)

    damaged, sound = desk.shelf.list()
    assert (damaged.entry_id, damaged.body, sound.seq) == (1, b"\x80\x81", 2)
    assert desk.shelf.get(1) == damaged
    with pytest.raises(InvalidOperation, match="cannot be read"):
        desk.shelf.replay(1)
    assert desk.shelf.discard(1)
    assert desk.shelf.count() == 1


def test_a_discard_removes_letter_and_task_together(engine: Engine, desk: Desk) -> None:
    """D-62, D-63, D-97"""
    parked(engine, letters([1, 2]))

    assert desk.shelf.discard(1)
    assert not desk.shelf.discard(1)

    assert ([one.seq for one in desk.shelf.list()], desk.worked("discard")) == ([2], [1])
    told = {"shelf": QUEUE, "entry_id": 1, "task_id": letter(1).task_id, "reason": "discarded"}
    assert desk.events == [("dead_letter.removed", told)]


def test_a_replay_pins_the_letter_and_requeues_the_task_together(engine: Engine, desk: Desk) -> None:
    parked(engine, letters([1]))

    replayed = desk.shelf.replay(1)

    assert (replayed.seq, replayed.is_replaying, desk.shelf.get(1)) == (1, True, replayed)
    assert (desk.worked("requeue"), desk.woken) == ([1], 1)
    assert desk.events == [
        ("dead_letter.replaying", {"shelf": QUEUE, "entry_id": 1, "task_id": letter(1).task_id}),
    ]


def test_a_letter_being_replayed_is_neither_replayed_nor_discarded(engine: Engine, desk: Desk) -> None:
    """D-64"""
    parked(engine, letters([1]))
    desk.shelf.replay(1)

    for again in (desk.shelf.replay, desk.shelf.discard):
        with pytest.raises(AlreadyHandled, match="being replayed"):
            again(1)

    assert (desk.worked("requeue"), desk.worked("discard"), desk.woken) == ([1], [], 1)
    with engine.session() as session:
        fail_replay(session, QUEUE_ID, 1, life())
    assert desk.shelf.replay(1).error == "again"


@pytest.mark.parametrize("verb", ["replay", "discard"])
def test_an_error_above_leaves_the_letter_as_it_was(engine: Engine, desk: Desk, verb: str) -> None:
    """D-68: and the error reaches the operator."""
    parked(engine, letters([1]))
    before = desk.shelf.list()
    desk.at_work = refuse(1, TaskNotFound("gone"))

    with pytest.raises(TaskNotFound):
        getattr(desk.shelf, verb)(1)

    assert desk.shelf.list() == before
    assert (desk.worked("requeue"), desk.worked("discard"), desk.events, desk.woken) == ([], [], [], 0)


def test_of_twenty_replays_at_once_one_wins_and_the_others_are_told(engine: Engine, desk: Desk) -> None:
    """C28, A-15"""
    parked(engine, letters([1]))

    outcomes = at_once([lambda: desk.shelf.replay(1)] * 20)

    assert Counter(type(one) for one in outcomes) == {DeadLetter: 1, AlreadyHandled: 19}
    assert desk.worked("requeue") == [1]


def test_of_twenty_discards_at_once_one_wins(engine: Engine, desk: Desk) -> None:
    """A-15"""
    parked(engine, letters([1]))

    outcomes = at_once([lambda: desk.shelf.discard(1)] * 20)

    assert Counter(outcomes) == {True: 1, False: 19}
    assert desk.worked("discard") == [1]


@pytest.mark.parametrize("turn", range(5))
def test_replay_against_discard_has_exactly_one_winner(engine: Engine, desk: Desk, turn: int) -> None:
    """C28, A-15"""
    parked(engine, letters(range(1, 9)))
    ids = [one.entry_id for one in desk.shelf.list()]
    calls = [lambda verb=verb, one=one: verb(one) for one in ids for verb in (desk.shelf.replay, desk.shelf.discard)]

    outcomes = at_once(calls[turn:] + calls[:turn])

    replayed, discarded = desk.worked("requeue"), desk.worked("discard")
    assert sorted(replayed + discarded) == list(range(1, 9))
    assert sum(isinstance(one, DeadLetter) for one in outcomes) == len(replayed)
    assert sum(one is True for one in outcomes) == len(discarded)
    assert [one.seq for one in desk.shelf.list()] == replayed


def test_parking_replaying_and_settling_at_once_add_up(engine: Engine, desk: Desk) -> None:
    """C04, C28, D-98: every letter is alive, evicted, discarded or replayed, once."""
    evicted: list[int] = []
    finished: list[int] = []

    def park_some(first: int) -> None:
        for seq in range(first, first + 20, 4):
            evicted.extend(one.seq for one in parked(engine, letters(range(seq, seq + 4)), capacity=10).evicted)

    def operate() -> None:
        for _ in range(10):
            ids = [one.entry_id for one in desk.shelf.list(limit=3)]
            begun = [one.entry_id for one in desk.shelf.replay_many(ids[:2]) if one.outcome is Outcome.DONE]
            with engine.session() as session:
                ended = [finish_replay(session, QUEUE_ID, entry_id) for entry_id in begun]
            finished.extend(one.seq for one in ended)
            desk.shelf.discard_many(ids[2:])

    at_once([lambda first=first: park_some(first) for first in (1, 21, 41)] + [operate, operate])

    alive = [one.seq for one in desk.shelf.list()]
    assert sorted(alive + evicted + finished + desk.worked("discard")) == list(range(1, 61))
    assert len(alive) == desk.shelf.count() <= 10
    assert sorted(finished) == desk.worked("requeue")


def test_many_ids_get_an_answer_each(engine: Engine, desk: Desk) -> None:
    parked(engine, letters([1, 2, 3, 4]))
    spoil(engine, 3)
    desk.shelf.replay(2)

    answers = desk.shelf.replay_many([4, 99, 2, 1, 3, 4])

    assert [(one.entry_id, one.outcome) for one in answers] == [
        (4, Outcome.DONE),
        (99, Outcome.UNKNOWN),
        (2, Outcome.ALREADY_HANDLED),
        (1, Outcome.DONE),
        (3, Outcome.FAILED),
    ]
    assert all(bool(one.detail) == (one.outcome is not Outcome.DONE) for one in answers)
    assert (desk.worked("requeue"), desk.woken) == ([1, 2, 4], 2)
    assert [(one.entry_id, one.outcome) for one in desk.shelf.discard_many([1, 3])] == [
        (1, Outcome.ALREADY_HANDLED),
        (3, Outcome.DONE),
    ]
    assert desk.shelf.replay_many([]) == []


def test_a_whole_shelf_is_replayed_in_parts(engine: Engine, desk: Desk) -> None:
    """C27: the ones that were seen, and only those."""
    parked(engine, letters(range(1, 251)))
    seen = [one.entry_id for one in desk.shelf.list()]
    parked(engine, letters([900]))

    answers = desk.shelf.replay_many(seen)

    assert Counter(one.outcome for one in answers) == {Outcome.DONE: 250}
    assert desk.worked("requeue") == list(range(1, 251))
    assert desk.woken == 3
    assert not desk.shelf.list()[-1].is_replaying


@pytest.mark.parametrize(
    ("error", "outcome"), [(AlreadyHandled("taken"), Outcome.ALREADY_HANDLED), (TaskNotFound("gone"), Outcome.FAILED)]
)
def test_one_letter_that_cannot_be_done_spoils_no_other(
    engine: Engine, desk: Desk, error: Exception, outcome: Outcome
) -> None:
    parked(engine, letters(range(1, 131)))
    desk.at_work = refuse(42, error)

    answers = desk.shelf.discard_many(range(1, 131))

    assert Counter(one.outcome for one in answers) == {Outcome.DONE: 129, outcome: 1}
    assert (answers[41].entry_id, answers[41].outcome, answers[41].detail) == (42, outcome, str(error))
    assert [one.seq for one in desk.shelf.list()] == [42]
    assert desk.worked("discard") == [seq for seq in range(1, 131) if seq != 42]
    assert len(desk.events) == 129


def test_a_store_that_goes_away_leaves_the_rest_unanswered_for_later(engine: Engine, desk: Desk) -> None:
    parked(engine, letters(range(1, 251)))
    desk.at_work = refuse(150, StoreUnavailable("no answer"))

    answers = desk.shelf.replay_many(range(1, 251))
    desk.at_work = lambda _some: None
    again = desk.shelf.replay_many(range(1, 251))

    assert [one.outcome for one in answers] == [Outcome.DONE] * 100 + [Outcome.FAILED] * 150
    assert answers[-1].detail == "no answer"
    assert [one.outcome for one in again] == [Outcome.ALREADY_HANDLED] * 100 + [Outcome.DONE] * 150
    assert desk.worked("requeue") == list(range(1, 251))


def test_in_a_callers_transaction_an_error_is_the_callers(engine: Engine, desk: Desk) -> None:
    """What it spoiled cannot be told apart there, so nothing is swallowed and nothing remains."""
    parked(engine, letters([1, 2, 3]))
    desk.at_work = refuse(3, TaskNotFound("gone"))

    def discard_all() -> None:
        with engine.session() as session, session.transaction():
            desk.shelf.discard_many([1])
            desk.shelf.discard_many([2, 3])

    with pytest.raises(TaskNotFound):
        discard_all()

    assert [one.seq for one in desk.shelf.list()] == [1, 2, 3]
    assert desk.worked("discard") == []
