"""A card for each letter: what is filtered and grouped always matches what lies on the shelf."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lattice_tasks.dead_letters.fingerprint import error_class_of, fingerprint, frames_of, normalised
from lattice_tasks.dead_letters.parking import fail_replays, finish_replays, shelf_fifo
from lattice_tasks.dead_letters.replay import begin_replays
from lattice_tasks.errors import InvalidInput
from lattice_tasks.store.engine import Engine, Statement
from lattice_tasks.store.letters import prune_hours
from tests.letters import QUEUE_ID, Desk, letter, letters, life, parked
from tests.stores import fresh_engine

CARDS = Statement("select entry_id, seq, reason, replays from lattice_letter where queue_id = %s order by entry_id")
GROUPS = Statement("select fingerprint, message, hits from lattice_group where queue_id = %s order by hits desc")
HOURS = Statement("select sum(hits) from lattice_group_hour where queue_id = %s")

TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/dramatiq/worker.py", line 500, in process_message
    res = actor(*message.args)
  File "/srv/app/shop/tasks.py", line {line}, in charge
    return pay(order)
  File "/srv/app/shop/pay.py", line 12, in pay
    raise Declined(card)
shop.errors.Declined: card {card} declined
"""


@pytest.fixture
def engine(store_url: str) -> Iterator[Engine]:
    with fresh_engine(store_url) as engine:
        yield engine


def fetched(engine: Engine, statement: Statement) -> list[tuple]:
    with engine.session() as session:
        return session.fetch(statement, (QUEUE_ID,))


def on_shelf(engine: Engine) -> list[int]:
    with engine.session() as session:
        return [row.entry_id for row in shelf_fifo(session, QUEUE_ID).entries()]


def carded(engine: Engine) -> list[int]:
    return [row[0] for row in fetched(engine, CARDS)]


def test_a_card_comes_and_goes_with_its_letter(engine: Engine) -> None:
    """Parked, evicted, discarded, replayed: the cards are the shelf."""
    desk = Desk(engine)
    parked(engine, letters(range(1, 7)), capacity=5)
    assert carded(engine) == on_shelf(engine) == [2, 3, 4, 5, 6]

    desk.shelf.discard_many([3, 4])
    desk.shelf.replay_many([5, 6])
    with engine.session() as session:
        finish_replays(session, QUEUE_ID, [5])
        fail_replays(session, QUEUE_ID, {6: life("OSError: no room", reason="time_limit")})
    assert carded(engine) == on_shelf(engine) == [2, 6]
    assert fetched(engine, CARDS)[1] == (6, 6, "time_limit", 1)


def test_groups_count_every_hit_and_outlive_their_letters(engine: Engine) -> None:
    desk = Desk(engine)
    parked(engine, [*letters([1, 2]), letter(3, error="KeyError: 'a'")])
    with engine.session() as session:
        begin_replays(session, QUEUE_ID, [3])
        fail_replays(session, QUEUE_ID, {3: life("ValueError: no 99", traceback="Traceback …")})
    desk.shelf.discard_many([1, 2, 3])

    assert [(message, hits) for _, message, hits in fetched(engine, GROUPS)] == [
        ("ValueError: no <n>", 3),
        ("KeyError: <text>", 1),
    ]
    assert fetched(engine, HOURS) == [(4,)]
    assert carded(engine) == []
    with engine.session() as session:
        assert prune_hours(session, 24) == 0
        assert prune_hours(session, -1) == 2


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"reason": "time_limit"}, [2]),
        ({"actor": "report"}, [3]),
        ({"error_class": "KeyError"}, [4]),
        ({"key": "k1"}, [1]),
        ({"worker_lost": True}, [5]),
        ({"worker_lost": False, "actor": "train"}, [1, 2, 4]),
        ({"since": datetime(2001, 1, 1, tzinfo=UTC)}, [1, 2, 3, 4, 5]),
        ({"until": datetime(2001, 1, 1, tzinfo=UTC)}, []),
        ({"max_replays": 0}, [1, 2, 3, 4, 5]),
        ({"after": 2}, [3, 4, 5]),
        ({"after": 2, "limit": 1}, [3]),
        ({"reason": "unknown", "limit": 2}, [1, 3]),
    ],
)
def test_every_filter_narrows_and_all_must_hold(engine: Engine, filters: dict[str, Any], kept: list[int]) -> None:
    parked(
        engine,
        [
            letter(1),
            letter(2, reason="time_limit"),
            letter(3, actor="report"),
            letter(4, error="KeyError: 'x'"),
            letter(5, reason="worker_lost", error="the worker process died", traceback=""),
        ],
    )
    assert [one.entry_id for one in Desk(engine).shelf.list(**filters)] == kept


def test_a_group_is_a_filter_by_its_first_letters(engine: Engine) -> None:
    parked(engine, [letter(1), letter(2, error="KeyError: 'x'"), letter(3)])
    shelf = Desk(engine).shelf
    ((group, _, _), _) = fetched(engine, GROUPS)

    assert [one.entry_id for one in shelf.list(group=group)] == [1, 3]
    assert [one.entry_id for one in shelf.list(group=group[:6])] == [1, 3]


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ({"colour": "red"}, "there is no filter 'colour'; there are reason, actor"),
        ({"reason": "bad luck"}, "reason 'bad luck' is none of schema"),
        ({"since": datetime(2001, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"max_replays": -1}, "negative"),
        ({"actor": 5}, "filter: Expected"),
        ({"group": "xyz"}, "not a fingerprint"),
        ({"limit": -1}, "negative"),
    ],
)
def test_an_unknown_filter_or_value_is_an_error(engine: Engine, filters: dict[str, Any], text: str) -> None:
    with pytest.raises((InvalidInput, ValueError), match=text):
        Desk(engine).shelf.list(**filters)


def test_what_varies_makes_no_new_group() -> None:
    first = fingerprint("charge", "Declined: card 4242 declined", TRACE.format(line=10, card=4242))
    assert first == fingerprint("charge", "Declined: card 1881 declined", TRACE.format(line=99, card=1881))
    assert first != fingerprint("refund", "Declined: card 4242 declined", TRACE.format(line=10, card=4242))
    assert first != fingerprint("charge", "Declined: card 4242 stolen", TRACE.format(line=10, card=4242))
    assert first != fingerprint(
        "charge", "Declined: card 1 declined", TRACE.replace("in pay", "in ask").format(line=1, card=1)
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ValueError: row 17 of 2026-11-30", "ValueError: row <n> of <n>"),
        ("KeyError: 'order-5'", "KeyError: <text>"),
        ("no 01890a5d-ac96-774b-bcce-b302099a8057 here", "no <uuid> here"),
        ("at 0x7f3a  in\n deadbeef01", "at <hex> in <hex>"),
        ("added feed", "added feed"),
        ("x" * 5_000, "x" * 300),
    ],
)
def test_a_message_is_told_without_what_varies(error: str, message: str) -> None:
    assert normalised(error) == message


def test_the_class_of_an_error_is_the_one_that_the_traceback_names() -> None:
    trace = TRACE.format(line=1, card=2)
    assert error_class_of("Declined: card 2 declined", trace) == "Declined"
    assert error_class_of("why: it is wrong", trace) == "Declined"
    assert error_class_of("ValueError", "Traceback\nValueError") == "ValueError"
    assert error_class_of("ValueError: no traceback", "") == "ValueError"
    assert error_class_of("the worker process died while running it (h:1, worker 2)", "") == ""
    assert error_class_of("", "") == ""


def test_the_frames_are_the_users_own_innermost_first() -> None:
    assert frames_of(TRACE.format(line=1, card=2)) == ["pay.py:pay", "tasks.py:charge"]
    assert frames_of('  File "/usr/lib/python3.11/json/decoder.py", line 1, in raw_decode') == ["decoder.py:raw_decode"]
    assert frames_of("") == []


def test_a_page_reads_only_the_letters_that_it_shows(engine: Engine) -> None:
    """The index of cards, not the letters, is read: a page does not decode what it leaves out."""
    some = [letter(seq, error=f"E{seq % 200}: {'ab'[seq % 2]}") for seq in range(1, 2_001)]
    parked(engine, some, capacity=100_000)
    before = datetime.now(UTC) + timedelta(hours=1)

    assert [one.seq for one in Desk(engine).shelf.list(error_class="E7", until=before, limit=3)] == [7, 207, 407]
